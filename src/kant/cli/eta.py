"""`kant eta`: when waiting jobs are expected to start: now, or as things stood at a time of a journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json
from kant.cli.kube_place import Asked
from kant.cli.simulate import print_json
from kant.cli.up import Home
from kant.cli.why import At, Learn, check_job, earlier_said, parse_at, refuse_at, section
from kant.model.units import clock, show_duration


def eta(
    journal: Annotated[
        str | None, Parameter(help="A journal.jsonl that a run has written; else a job of this machine's Kant.")
    ] = None,
    job: Annotated[str | None, Parameter(help="One job of the journal alone. Default: all that wait.")] = None,
    /,
    *,
    at: At = None,
    learn: Learn = True,
    home: Home = None,
    json: Json = False,
    there: Asked = Asked(),  # noqa: B008 - it is frozen
) -> int:
    """Lay the whole queue out in time, and print when each waiting job is expected to start.

    Without a journal the Kant of this machine is asked (`kant up`), with --kube that of a Kubernetes cluster:
    `kant eta`, or `kant eta JOB`."""
    elsewhere = bool(there) and home is None
    if journal is None or (job is None and not is_journal(journal, paths=not elsewhere)):
        if elsewhere:
            from kant.cli import kube_jobs, live

            refuse_at(at)
            return live.eta(kube_jobs.live(there), kube_jobs.namespace_of(there), journal, json)
        return _ask(journal, at, home, json)
    return _look_up(Path(journal), job, at, learn, json)


def is_journal(text: str, paths: bool = True) -> bool:
    """Whether this means a journal and not a job. With `paths` no id of a job has a slash."""
    if re.fullmatch(r"[0-9_]+", text):
        return False
    return text.endswith(".jsonl") or (paths and "/" in text) or Path(text).is_file()


def _look_up(journal: Path, job: str | None, at: str | None, learn: bool, json: bool) -> int:
    """Read the journal."""
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


def _ask(job: str | None, at: str | None, home: Path | None, json: bool) -> int:
    """Ask the Kant of this machine."""
    from kant.model.errors import InputError
    from kant.model.units import count_from
    from kant.service.client import Client, home_of

    if at is not None:
        raise InputError("--at", "a journal beside it: a Kant that runs is asked about now", at)
    found = Client(home_of(home)).get("/v1/eta", job=job)
    count_from(found["zero_us"])
    if json:
        print_json(found)
    elif job is not None and len(found["jobs"]) == 1:
        show_one(found["jobs"][0], found["time_us"])
    else:
        show_expectations(found["jobs"], found["time_us"])
    return 0


def show_one(row: dict[str, Any], now: int) -> None:
    """The expectation of one job for the terminal."""
    from kant.cli.show import console

    early, late = (_when(row["expected_us"], name, now) for name in ("p50", "p90"))
    console.print(f"{row['job']}: P50 {early}, P90 {late}", style="bold", soft_wrap=True)
    why = row["sentence"] or "nothing keeps it, the next cycle can start it"
    console.print(f"number {row['place']:,} of {row['of']:,} that wait; {why}", style="dim", soft_wrap=True)
    section("how good such answers were", _earlier([row]))
    section("wait or place", [row["wait_or_place"]["sentence"]] if row["wait_or_place"] else [])


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
        if said := earlier_said(row["earlier"]):
            jobs.setdefault(said, []).append(row["job"])
    return [f"{named[0]}{f' and {len(named) - 1:,} more' if named[1:] else ''}: {said}" for said, named in jobs.items()]


def _when(expected: dict[str, Any], name: str, now: int) -> str:
    start = expected[name]
    if start is None:
        return "never" if expected["never"] else "unknown"
    return f"{clock(start)} (in {show_duration(start - now)})"
