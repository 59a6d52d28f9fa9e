"""`kant whatif`: the effect of a change on all waits, from now on or from a time of a journal on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from kant.cli.inputs import At, Home, JournalFile, Json, check_out, load_profile
from kant.cli.kube_options import KubeQuestion
from kant.cli.machine_place import MachinePlace
from kant.cli.output import Reply, print_json
from kant.cli.places import questions_of
from kant.cli.show import console, percent, plain, points, print_table, seconds, section
from kant.model.units import SECOND, clock, show_duration
from kant.sim.question import Question

if TYPE_CHECKING:
    from kant.sim.past import Past
    from kant.sim.run import RunHooks
    from kant.sim.whatif import WhatIf
    from kant.sim.whatif_changes import Changes


def whatif(
    journal: JournalFile | None = None,
    /,
    *,
    at: At = None,
    submit: Annotated[
        list[str] | None,
        Parameter(help="Submit a job, such as gpus=8,pods=16,time=4h,queue=vision,within=leaf.", negative=""),
    ] = None,
    drain: Annotated[
        list[str] | None,
        Parameter(help="Drain a node, a leaf or a spine: NAME[@FROM[..UNTIL]], such as leaf3@+2h..+8h.", negative=""),
    ] = None,
    evict: Annotated[bool, Parameter(help="Stop the jobs on drained nodes.", negative="")] = False,
    quota: Annotated[
        list[str] | None,
        Parameter(help="Change a quota: QUEUE:gpu[:MODEL]=+64, or =64, or =-8; also cpu and memory.", negative=""),
    ] = None,
    nodes: Annotated[
        list[str] | None, Parameter(help="Add nodes: 10, or 10xNAME for nodes like node NAME.", negative="")
    ] = None,
    cancel: Annotated[list[str] | None, Parameter(help="Cancel this job, which waits or runs.", negative="")] = None,
    profile: Annotated[str | None, Parameter(help="Switch to this profile, a built-in one or a TOML file.")] = None,
    arrivals: Annotated[
        bool, Parameter(name="--no-arrivals", help="No job arrives after that time.", negative="", show_default=False)
    ] = False,
    until: Annotated[str | None, Parameter(help="Stop both futures at this time, such as 30d or +12h.")] = None,
    home: Home = None,
    json: Json = False,
    out: Annotated[Path | None, Parameter(help="Folder for both futures: journals, tables and the report.")] = None,
    there: KubeQuestion = KubeQuestion(),  # noqa: B008 - it is frozen
) -> int:
    """Simulate two futures, without and with the changes, and print how the changes affect all waits.

    Without a journal they begin with the present state of Kant on this machine (`kant up`), of the Kant at KANT_URL,
    or with --kube of a Kubernetes cluster.
    """
    from kant.sim.whatif_request import changes_of, end_of_futures

    asked = Question(
        tuple(submit or ()), tuple(drain or ()), evict, tuple(quota or ()), tuple(nodes or ()), profile or "",
        until or "", tuple(cancel or ()),
    )  # fmt: skip
    asked.check()
    other = load_profile(profile) if profile is not None else None
    check_out(out)
    source = questions_of(home, there, journal, at)
    answer = source.futures(asked, profile, out) if isinstance(source, MachinePlace) else None
    if answer is not None:
        return Reply(answer, lambda: show_answer(answer, None)).print(json)
    past = source.past()
    changes = changes_of(past, asked, other)
    found = _simulated(past, changes, not arrivals, end_of_futures(past, asked), out)
    report = _written(out, found, past.header.workload) if out is not None else None
    if json:
        print_json(found.answer)
    else:
        show_answer(found.answer, report)
    return 0


FOLDERS = ("before", "after")


def _simulated(past: Past, changes: Changes, arrivals: bool, until: int, out: Path | None) -> WhatIf:
    """Simulate both futures with progress; each writes its journal into `out`. Ctrl-C ends them without an answer."""
    from kant.cli.runs import one_interrupt, progress_bar
    from kant.sim.run import RunHooks
    from kant.sim.whatif import AFTER, what_if

    with ExitStack() as stack:
        asked = stack.enter_context(one_interrupt())
        bar = stack.enter_context(progress_bar())

        def hooks(name: str) -> RunHooks:
            task = bar.add_task(name, total=None)
            own = RunHooks(
                progress=lambda done, total, now: bar.update(task, completed=done, total=total),
                stop=lambda: bool(asked),
            )
            if out is not None:
                folder = out / FOLDERS[name == AFTER]
                folder.mkdir(parents=True, exist_ok=True)
                own.journal = stack.enter_context((folder / "journal.jsonl").open("wb", buffering=1 << 20)).write
            return own

        found = what_if(past, changes, arrivals=arrivals, until=until, hooks=hooks)
    if found is None:
        raise KeyboardInterrupt
    return found


def _written(out: Path, found: WhatIf, workload: str) -> Path:
    from kant.cli.runs import write_results

    title = f"{workload}: what if {'; '.join(found.answer['change'])}"
    return write_results(out, [found.before, found.after], FOLDERS, title)


SOURCES = {
    "recorded": "from the journal",
    "learned": "learned (P50)",
    "estimate": "as stated by their owners",
    "limit": "up to their limits",
    "assumed": "as the median of those that finished",
}
SHARES = {"gar": "GAR mean", "sor": "SOR", "gfr": "GFR mean"}


def show_answer(answer: dict[str, Any], report: Path | None) -> None:
    """Print what changes, for whom, and by how much."""
    console.print(
        f"What if, at {clock(answer['time_us'])}: {'; '.join(answer['change'])}", style="bold", soft_wrap=True
    )
    known = ", ".join(f"{count:,} {SOURCES[source]}" for source, count in answer["run_times"].items())
    coming = "1 job arrives" if answer["coming"] == 1 else f"{plain(answer['coming'])} jobs arrive"
    console.print(f"{coming} later; run times: {known or 'of no job'}", style="dim", soft_wrap=True)
    section("submitted", [_submitted(job, answer["time_us"]) for job in answer["submitted"]])
    _show_waits(answer["waits"])
    _show_ratios(answer["ratios"])
    for name, title in (
        ("helped", "Waits that become shorter by most"),
        ("harmed", "Waits that become longer by most"),
    ):
        _show_jobs(answer[name], title)
    for key in ("rejected", "preemptions"):
        before, after = answer["before"][key], answer["after"][key]
        if before != after:
            console.print(f"{key}: {before:,} before, {after:,} after", style="yellow")
    if report is not None:
        console.print(f"report: {report}", soft_wrap=True)


def _submitted(job: dict[str, Any], now: int) -> str:
    if job["start_us"] is None:
        what = "is rejected" if job["status"] == "rejected" else "does not start"
    elif job["start_us"] == now:
        what = "starts at once"
    else:
        what = f"starts at {clock(job['start_us'])}, after {show_duration(job['start_us'] - now)}"
    why = f": {job['sentence']}" if job["sentence"] and job["start_us"] != now else ""
    return f"{job['job']} {what}{why}"


def _show_waits(waits: dict[str, Any]) -> None:
    """Print waits before and after, by queue and by size class."""
    table = Table(title="Waits, before and after", title_justify="left")
    for name in ("jobs of", "jobs", "mean", "P50", "P90", "sooner", "later"):
        table.add_column(name, justify="left" if name == "jobs of" else "right", no_wrap=name in ("jobs of", "jobs"))
    rows = [("all jobs", waits["all"], True)]
    for label, group in (("queue {}", waits["by_queue"]), ("size {}", waits["by_size"])):
        own = [(label.format(name), row, False) for name, row in group.items()]
        rows += [(*own[-1][:2], True) if i == len(own) - 1 else row for i, row in enumerate(own)]
    for name, row, ends in rows:
        cells: list[str | Text] = [name, plain(row["jobs"])]
        cells += [_pair(row["before_s"][key], row["after_s"][key]) for key in ("mean", "p50", "p90")]
        cells += [_moved(row["sooner"], -1), _moved(row["later"], 1)]
        table.add_row(*cells, end_section=ends)
    console.print(table)


def _pair(before: float | None, after: float | None) -> str | Text:
    if before is None or after is None:
        return "-"
    if before == after:
        return seconds(before)
    return Text.assemble(f"{seconds(before)} → ", _coloured(seconds(after), after - before))


def _moved(own: dict[str, Any], sign: int) -> Text:
    """Return how many jobs start sooner (or later), and by how much on average."""
    return _coloured(f"{own['jobs']:,} by {seconds(own['mean_s'])}", sign) if own["jobs"] else Text("-")


def _show_ratios(ratios: dict[str, Any]) -> None:
    rows = []
    for key, label in SHARES.items():
        before, after = ratios["before"][key], ratios["after"][key]
        if before is not None and after is not None:
            rows.append((label, percent(before), percent(after), points(after, before)))
    print_table(("", "before", "after", "change"), rows, f"The cluster until {clock(ratios['until_us'])}")


def _show_jobs(jobs: list[dict[str, Any]], title: str) -> None:
    if not jobs:
        return
    rows = []
    for job in jobs:
        change = job["after_s"] - job["before_s"]
        shown = ("+" if change > 0 else "-") + show_duration(abs(change) * SECOND)
        times = (seconds(job["before_s"]), seconds(job["after_s"]))
        rows.append((job["job"], job["queue"], f"{job['gpus']:g}", *times, _coloured(shown, change)))
    print_table(("job", "queue", "GPUs", "before", "after", "change"), rows, title, left=("job", "queue"))


def _coloured(text: str, change: float) -> Text:
    return Text(text, style="green" if change < 0 else "red" if change > 0 else "dim")
