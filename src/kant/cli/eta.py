"""`kant eta`: when the waiting jobs of a journal were expected to start, as things stood at a time."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.simulate import print_json
from kant.cli.why import At, JournalFile, check_job, either, parse_at, section
from kant.model.units import clock, show_duration


def eta(
    journal: JournalFile,
    job: Annotated[str | None, Parameter(help="One job alone. Default: all that wait.")] = None,
    /,
    *,
    at: At = None,
    json: Json = False,
) -> int:
    """Lay the whole queue out in time, and print when each waiting job is expected to start."""
    from kant.cluster.columns import J_MILLI, J_SINCE
    from kant.model.errors import InputError
    from kant.model.units import GPU
    from kant.scheduler.choice import choices
    from kant.scheduler.eta import expected_starts
    from kant.scheduler.explain import is_final
    from kant.scheduler.inquiry import Inquiry
    from kant.sim.retrace import stand_at

    standing = stand_at(journal, parse_at(at))
    state = standing.state
    if job is not None:
        check_job(standing, job, journal)
        if state.rows[job] not in state.pending:
            raise InputError("JOB", f"a job that waits at {clock(standing.now)} (see `kant why`)", job)
    starts = expected_starts(standing.scheduler, standing.now, only=job or "")
    waits = choices(standing.scheduler, standing.now, only=job or "")
    inquiry = Inquiry(standing.scheduler, standing.now)
    rows: list[dict[str, Any]] = []
    for name, (early, late) in starts.items():
        if job is not None and name != job:
            continue
        row = state.rows[name]
        reason = inquiry.why(row)
        rows.append(
            {
                "job": name,
                "queue": state.live[row].queue,
                "gpus": int(state.jobs[row, J_MILLI]) / GPU,
                "since_us": int(state.jobs[row, J_SINCE]),
                "why": "ready" if reason is None else reason.__struct_config__.tag,
                "expected_us": {"p50": early, "p90": late, "never": is_final(reason)},
                "wait_or_place": either(waits.get(name)),
            }
        )
    if json:
        print_json({"time_us": standing.now, "jobs": rows})
    else:
        _show(rows, standing.now)
    return 0


def _show(rows: list[dict[str, Any]], now: int) -> None:
    from rich.table import Table

    from kant.cli.show import console

    if not rows:
        console.print(f"no job waits at {clock(now)}")
        return
    table = Table(title=f"Expected starts as of {clock(now)}, first in order first", title_justify="left")
    for name, right in (("job", False), ("queue", False), ("GPUs", True), ("waits", True), ("because", False)):
        table.add_column(name, justify="right" if right else "left")
    table.add_column("P50")
    table.add_column("P90")
    for row in rows:
        times = (_when(row["expected_us"], name, now) for name in ("p50", "p90"))
        waits = show_duration(now - row["since_us"])
        table.add_row(row["job"], row["queue"], f"{row['gpus']:g}", waits, row["why"], *times)
    console.print(table)
    section(
        "wait or place", [f"{row['job']}: {row['wait_or_place']['sentence']}" for row in rows if row["wait_or_place"]]
    )


def _when(expected: dict[str, Any], name: str, now: int) -> str:
    start = expected[name]
    if start is None:
        return "never" if expected["never"] else "unknown"
    return f"{clock(start)} (in {show_duration(start - now)})"
