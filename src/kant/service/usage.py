"""What jobs used that are over, added up: in the store of a machine, or of rows that come from elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

OVER = ("finished", "failed", "cancelled", "rejected")
USAGE_BY = {
    "user": "user", "queue": "queue", "day": "date(ended / 1000000, 'unixepoch', 'localtime')", "job": "id",
}  # fmt: skip
STORE_BY = USAGE_BY | {
    "account": "(SELECT coalesce(json_extract(CAST(body AS TEXT), '$.account'), '') FROM submissions"
    " WHERE submissions.digest = jobs.digest)"
}
"""In the store of a machine, which has what was submitted, too by the account that a job named."""
_RAN = "CASE WHEN started >= 0 THEN ended - started ELSE 0 END"
USAGE = {
    "jobs": "count(*)",
    "finished": "coalesce(sum(phase = 'finished'), 0)",
    "failed": "coalesce(sum(phase = 'failed'), 0)",
    "cancelled": "coalesce(sum(phase = 'cancelled'), 0)",
    "runs": "coalesce(sum(attempt), 0)",
    "waited_s": "coalesce(sum(CASE WHEN started >= 0 THEN started - submitted ELSE ended - submitted END), 0) / 1e6",
    "ran_s": f"coalesce(sum({_RAN}), 0) / 1e6",
    "gpu_s": f"coalesce(sum(gpus * ({_RAN})), 0) / 1e6",
}
"""What is added up: the name, and how SQL says it."""

FIELDS = ("id", "phase", "queue", "user", "gpus", "submitted", "started", "ended", "attempt")
DETAILS = ("user", "queue", "name", "phase", "code", "signal", "reason", "submitted", "started", "ended", "rss_kib")
"""What is said besides of a job where each has a row of its own, as far as it is known."""


def usage_in(
    db: sqlite3.Connection, by: Sequence[str], since: int, until: int, where: dict[str, str]
) -> list[dict[str, Any]]:
    """What the jobs of a table `jobs` used that ended from `since` until `until`, microseconds since the Unix epoch.

    It is added up `by` some of user, queue, day (of the local time) and job. `where` names a user or a queue. GPU time
    is that of the last run of a job. Rows of single jobs have `DETAILS` too, the first that ended first.
    """
    parts = [STORE_BY[name] for name in by]
    wheres = ["ended >= ?", "ended < ?", f"phase IN ({', '.join('?' * len(OVER))})", *(f"{n} = ?" for n in where)]
    details = [name for name in DETAILS if name not in by] if "job" in by else []
    order = ["ended", "id"] if details else parts
    group = f"GROUP BY {', '.join(parts)} ORDER BY {', '.join(order)}" if parts else ""
    rows = db.execute(
        f"SELECT {', '.join([*parts, *USAGE.values(), *details])} FROM jobs WHERE {' AND '.join(wheres)} {group}",
        [since, until, *OVER, *where.values()],
    )
    names = [*by, *USAGE, *details]
    return [dict(zip(names, row, strict=True)) for row in rows]


def usage_of(
    jobs: Iterable[dict[str, Any]], by: Sequence[str], since: int, until: int, where: dict[str, str]
) -> list[dict[str, Any]]:
    """The same of jobs that are no store's, each with `FIELDS` and what it has of `DETAILS`."""
    columns = list(dict.fromkeys((*FIELDS, *DETAILS)))
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE jobs ({', '.join(columns)})")
        rows = ([job.get(name) for name in columns] for job in jobs)
        db.executemany(f"INSERT INTO jobs VALUES ({', '.join('?' * len(columns))})", rows)
        return usage_in(db, by, since, until, where)
