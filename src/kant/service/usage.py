"""Usage totals of jobs that have ended: from the store of a machine, or from rows of another source."""

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
"""The groupings in the store: name and SQL expression. Only the store has each job's account, in its submission."""
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
"""The totals: name and SQL expression."""

FIELDS = ("id", "phase", "queue", "user", "gpus", "submitted", "started", "ended", "attempt")
DETAILS = ("user", "queue", "name", "phase", "code", "signal", "reason", "submitted", "started", "ended", "rss_kib")
"""Further columns of the row of a single job, as far as they are known."""


def usage_in(
    db: sqlite3.Connection, by: Sequence[str], since: int, until: int, where: dict[str, str]
) -> list[dict[str, Any]]:
    """Return the usage of jobs in the table `jobs` that ended from `since` until `until` (microseconds, Unix epoch).

    The totals are grouped `by` one or more names in `STORE_BY` (days are in local time). `where` selects jobs, by
    column and value. GPU time is that of a job's last run. Rows of single jobs also have `DETAILS`, and are in the
    order in which the jobs ended.
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
    """Return the result of `usage_in` for jobs outside the store, each with `FIELDS` and the known `DETAILS`."""
    columns = list(dict.fromkeys((*FIELDS, *DETAILS)))
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE jobs ({', '.join(columns)})")
        rows = ([job.get(name) for name in columns] for job in jobs)
        db.executemany(f"INSERT INTO jobs VALUES ({', '.join('?' * len(columns))})", rows)
        return usage_in(db, by, since, until, where)
