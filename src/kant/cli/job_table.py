"""The table of `kant jobs`: its columns, and which of them are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kant.cli.place import LIVE
from kant.cli.plain import local_time, ranges, say, table
from kant.model.errors import InputError
from kant.model.units import show_duration

Row = dict[str, Any]
HOUR = 3600 * 1_000_000
RUNS = ("running", "stopping")
WAITS = ("held", "blocked", "waiting")


def show_jobs(rows: list[Row], now: int, states: str, columns: Sequence[str] = ()) -> None:
    """Print jobs. `columns` are some of `COLUMNS`; by default, those of `USUAL` that are not empty."""
    if not rows and not columns:
        say("no jobs wait or run (kant jobs --all lists ended jobs too)" if states == LIVE else "no jobs")
        return
    cells = {name: [COLUMNS[name](row, now) for row in rows] for name in columns or USUAL}
    shown = [name for name, column in cells.items() if columns or name not in OPTIONAL or any(column)]
    heads = {name: "GPUs" if name == "gpus" else name for name in shown}
    lines = list(zip(*(cells[name] for name in shown), strict=True))
    table(list(heads.values()), lines, right=[heads[name] for name in shown if name in RIGHT], whole=("job",))


def columns_of(text: str | None) -> tuple[str, ...]:
    """Parse the columns of `--format`. Raises InputError for an unknown column."""
    names = tuple(name.strip().lower() for name in text.split(",")) if text is not None else ()
    for name in names:
        if name not in COLUMNS:
            raise InputError("--format", f"some of {', '.join(COLUMNS)}, separated by commas", name)
    return names


def _where(row: Row) -> str:
    """Return the first node of a running job with its GPUs, and the number of further nodes; "" for other jobs."""
    nodes: dict[str, str] = row.get("nodes") or {}
    if not nodes or row["phase"] not in RUNS:
        return ""
    name, gpus = next(iter(nodes.items()))
    more = f" +{len(nodes) - 1}" if len(nodes) > 1 else ""
    parts = gpus.split(",")
    named = ranges(map(int, parts)) if all(map(str.isdecimal, parts)) else gpus
    return f"{name}:{named}{more}" if gpus else name + more


def _time(row: Row, now: int) -> str:
    """Return how long the job has run, or has waited."""
    if row["phase"] in WAITS:
        return show_duration(max(now - row["submitted"], 0))
    return show_duration(_ran(row, now)) if row["started"] >= 0 else "-"


def _ran(row: Row, now: int) -> int:
    """Return how long the last run lasted, in microseconds."""
    if row["started"] < 0 or row["phase"] in WAITS:
        return 0
    return max((now if row["phase"] in RUNS else row["ended"]) - int(row["started"]), 0)


def _since(row: Row) -> int:
    """Return when a job entered its current state, in microseconds since the Unix epoch."""
    if row["phase"] in RUNS:
        return int(row["started"])
    return int(row["submitted"] if row["phase"] in WAITS else row["ended"])


def _left(row: Row, now: int) -> str:
    limit = row.get("limit_us", -1)
    return show_duration(max(row["started"] + limit - now, 0)) if limit >= 0 and row["phase"] in RUNS else ""


def _limit(row: Row) -> str:
    limit = row.get("limit_us", -1)
    return show_duration(limit) if limit >= 0 else ""


def _exit(row: Row) -> str:
    if row["signal"] is not None:
        return f"signal {row['signal']}"
    return "" if row["code"] is None else str(row["code"])


def _priority(row: Row) -> str:
    return "" if row["priority"] is None else str(row["priority"])


COLUMNS: dict[str, Callable[[Row, int], str]] = {
    "place": lambda row, now: str(row.get("place") or ""),
    "job": lambda row, now: row["id"],
    "name": lambda row, now: row["name"],
    "queue": lambda row, now: row["queue"],
    "user": lambda row, now: row["user"],
    "state": lambda row, now: row["phase"],
    "gpus": lambda row, now: f"{row['gpus']:g}",
    "on": lambda row, now: _where(row),
    "time": _time,
    "left": _left,
    "limit": lambda row, now: _limit(row),
    "since": lambda row, now: local_time(_since(row)),
    "priority": lambda row, now: _priority(row),
    "submitted": lambda row, now: local_time(row["submitted"]),
    "started": lambda row, now: local_time(row["started"]),
    "ended": lambda row, now: local_time(row["ended"]),
    "exit": lambda row, now: _exit(row),
    "gpu-hours": lambda row, now: f"{row['gpus'] * _ran(row, now) / HOUR:.2f}",
    "because": lambda row, now: str(row["waits"] or row["reason"]),
}
"""The text of each column for a job, at a time in microseconds since the Unix epoch."""

USUAL = ("place", "job", "name", "queue", "user", "state", "gpus", "on", "time", "left", "because")
OPTIONAL = ("place", "on", "left")
RIGHT = ("place", "gpus", "time", "left", "limit", "priority", "exit", "gpu-hours")
