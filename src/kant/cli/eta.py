"""`kant eta`: when the waiting jobs of a journal were expected to start, as things stood at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.kube_place import Asked
from kant.cli.simulate import print_json
from kant.cli.up import Home
from kant.cli.why import At, JournalFile, Learn, check_job, parse_at, refuse_at, section
from kant.model.units import clock, show_duration


def eta(
    journal: JournalFile | None = None,
    job: Annotated[str | None, Parameter(help="One job alone. Default: all that wait.")] = None,
    /,
    *,
    at: At = None,
    learn: Learn = True,
    home: Home = None,
    json: Json = False,
    there: Asked = Asked(),  # noqa: B008 - it is frozen
) -> int:
    """Lay the whole queue out in time, and print when each waiting job is expected to start.

    Without a journal the Kant of this machine is asked (`kant up`), with --kube that of a Kubernetes cluster: then a
    job stands in the place of the journal."""
    if there and home is None and not (journal is not None and journal.is_file()):
        from kant.cli import kube_jobs, live

        refuse_at(at)
        named = str(journal) if journal is not None else None
        return live.eta(kube_jobs.live(there), kube_jobs.namespace_of(there), named, json)
    if journal is None:
        return _ask(at, home, json)
    from kant.live.answers import expectations
    from kant.model.errors import InputError
    from kant.sim.retrace import stand_at

    standing = stand_at(journal, parse_at(at), keep_answers=learn)
    state = standing.state
    if job is not None:
        check_job(standing, job, journal)
        if state.rows[job] not in state.pending:
            raise InputError("JOB", f"a job that waits at {clock(standing.now)} (see `kant why`)", job)
    rows = expectations(standing.scheduler, standing.now, job, standing.answers)
    if json:
        print_json({"time_us": standing.now, "jobs": rows})
    else:
        show_expectations(rows, standing.now)
    return 0


def _ask(at: str | None, home: Path | None, json: bool) -> int:
    """Ask the Kant of this machine."""
    from kant.model.errors import InputError
    from kant.model.units import count_from
    from kant.service.client import Client, home_of

    if at is not None:
        raise InputError("--at", "a journal beside it: a Kant that runs is asked about now", at)
    found = Client(home_of(home)).get("/v1/eta")
    count_from(found["zero_us"])
    print_json(found) if json else show_expectations(found["jobs"], found["time_us"])
    return 0


def show_expectations(rows: list[dict[str, Any]], now: int) -> None:
    """The expectations for the terminal."""
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
    section("how good such answers were", _earlier(rows))
    section(
        "wait or place", [f"{row['job']}: {row['wait_or_place']['sentence']}" for row in rows if row["wait_or_place"]]
    )


def _earlier(rows: list[dict[str, Any]]) -> list[str]:
    """A line for all jobs of which the same can be said, in their order."""
    jobs: dict[str, list[str]] = {}
    for row in rows:
        if row["earlier"] is not None and str(row["earlier"]):
            jobs.setdefault(str(row["earlier"]), []).append(row["job"])
    return [f"{named[0]}{f' and {len(named) - 1:,} more' if named[1:] else ''}: {said}" for said, named in jobs.items()]


def _when(expected: dict[str, Any], name: str, now: int) -> str:
    start = expected[name]
    if start is None:
        return "never" if expected["never"] else "unknown"
    return f"{clock(start)} (in {show_duration(start - now)})"
