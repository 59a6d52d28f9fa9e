"""`kant history`: the usage of ended jobs."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Home, Json
from kant.cli.job_table import COLUMNS
from kant.cli.kube_options import Kube
from kant.cli.output import Reply
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration
from kant.service.client import ServiceClient, home_of

HEADS = {
    "jobs": "jobs", "finished": "finished", "failed": "failed", "cancelled": "cancelled", "runs": "runs",
    "waited_s": "waited, h", "ran_s": "ran, h", "gpu_s": "GPU-hours",
}  # fmt: skip
JOB_HEADS = {
    "name": "name", "user": "user", "queue": "queue", "phase": "state", "exit": "exit", "memory": "memory, MiB",
    "runs": "runs", "waited_s": "waited, h", "ran_s": "ran, h", "gpu_s": "GPU-hours", "reason": "because",
}  # fmt: skip
"""The headings used instead of `HEADS` if each job has its own row."""
OF_JOBS = ("name", "user", "queue", "phase", "code", "signal", "rss_kib", "submitted", "started", "ended", "reason")
"""Further columns of each job in comma-separated output."""
HOUR = 3600


def history(
    *,
    by: Annotated[
        str, Parameter(help="Group by any of user, queue, account, day, separated by commas; or job: one row each.")
    ] = "user,queue",
    since: Annotated[str, Parameter(help="Jobs that ended from this time on: 30d (ago), or 2030-01-31.")] = "30d",
    until: Annotated[str | None, Parameter(help="Jobs that ended before this time. Default: now.")] = None,
    user: Annotated[str, Parameter(help="Only jobs of this user.")] = "",
    queue: Annotated[str, Parameter(help="Only jobs of this queue.")] = "",
    csv: Annotated[bool, Parameter(help="Comma-separated values, times in seconds.", negative="")] = False,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Print what ended jobs used: their number, how they ended, how long they waited and ran, and their GPU-hours.

    With `--by job` each job has a row, with how it ended and the peak memory of its largest process. The time of a job
    is that of its last run; it counts for the day on which the job ended. On Kubernetes these are the Jobs that still
    exist, and those brought by `kant import`.
    """
    now = datetime.now()
    asked: dict[str, Any] = {
        "by": by, "since": moment(since, now, "--since"), "user": user, "queue": queue,
        "until": moment(until, now, "--until") if until is not None else None,
    }  # fmt: skip
    if there and home is None:
        from kant.cli.kubernetes_past import usage

        found = usage(there, **asked)
    else:
        found = ServiceClient(home_of(home)).get("/v1/usage", **asked)
    names = [part for part in by.split(",") if part]
    if csv and not json:
        return print_csv(dict.fromkeys((*names, *HEADS, *(OF_JOBS if "job" in names else ()))), found["rows"])
    return Reply(found, lambda: _show(names, found["rows"])).print(json)


def print_csv(columns: Iterable[str], rows: list[dict[str, Any]]) -> int:
    """Print the columns of rows as comma-separated values, empty if there is no value; return 0."""
    writer, names = csv.writer(sys.stdout, lineterminator="\n"), list(columns)
    writer.writerow(names)
    writer.writerows([[row.get(name) for name in names] for row in rows])
    return 0


def _show(by: list[str], rows: list[dict[str, Any]]) -> None:
    from kant.cli.show_answers import table

    hours = {name: round(1 / HOUR, 12) for name in ("waited_s", "ran_s", "gpu_s")}
    shown = [row | {name: f"{row[name] * hours[name]:,.2f}" for name in hours} for row in rows]
    for row in shown if "job" in by else ():
        known = {"code": None, "signal": None} | row
        row["exit"] = COLUMNS["exit"](known, 0)
        row["memory"] = f"{row['rss_kib'] / 1024:,.1f}" if row.get("rss_kib") else ""
    table("Ended jobs", shown, {name: name for name in by} | (JOB_HEADS if "job" in by else HEADS))


def moment(text: str, now: datetime, option: str) -> int:
    """Parse a time into microseconds since the Unix epoch: a duration before now, or a day. Raises InputError."""
    try:
        found = datetime.fromisoformat(text).timestamp()
    except ValueError:
        try:
            found = now.timestamp() - parse_duration(text, option) / SECOND
        except InputError:
            raise InputError(option, "a day such as 2030-01-31, or a duration before now such as 30d", text) from None
    return max(round(found * 1e6), 0)
