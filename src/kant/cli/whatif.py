"""`kant whatif`: the effect of a change on everybody's waits, from now or from a time of a journal on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kant.cli.inputs import At, Home, JournalFile, Json, check_out, load_profile
from kant.cli.kube_options import KubeQuestion
from kant.cli.machine_place import MachinePlace
from kant.cli.output import Reply, print_json
from kant.cli.places import questions_of
from kant.cli.whatif_show import show_answer
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
        list[str] | None, Parameter(help="Add nodes: 10, or 10xNAME to have them like node NAME.", negative="")
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

    Without a journal they begin with the present state of the Kant of this machine (`kant up`), of the one at KANT_URL,
    or with --kube of a Kubernetes cluster."""
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
