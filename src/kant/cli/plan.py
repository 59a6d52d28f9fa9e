"""`kant plan`: what next week needs, and whether it fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kant.cli.inputs import Json, Seed, whole
from kant.cli.output import Reply
from kant.cli.plan_stream import stream, train
from kant.cli.plan_workflow import workflow
from kant.model.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kant.optimize.calendar.file import CalendarFile
    from kant.optimize.calendar.solve import Answer
    from kant.optimize.capacity.instance import Instance
    from kant.optimize.capacity.planning import CapacityPlan

plan_app = App(
    name="plan", help="Plan ahead: calendars of contiguous GPUs, capacity, workflows.", help_format="plaintext"
)
for verb in (workflow, stream, train):
    plan_app.command(verb)

SHOWN = 40
"""Rows that a table has at most; --json has all."""

Limit = Annotated[str, Parameter(help="Time to search; after it the best that was found is said.")]


@plan_app.command
def calendar(
    file: Annotated[Path, Parameter(help="A CSV file of bookings, or one of MiniMalloc (docs/planning.md).")],
    /,
    *,
    capacity: Annotated[
        int | None, Parameter(help="GPUs of the line. Default: as few as will do.", converter=whole)
    ] = None,
    slice: Annotated[str | None, Parameter(help="One calendar of a file that holds several.")] = None,
    limit: Limit = "60s",
    json: Json = False,
) -> int:
    """Say whether bookings of contiguous GPUs over windows of time fit, and where each goes; or which collide."""
    from kant.optimize.calendar.file import read_calendar
    from kant.optimize.calendar.solve import solve, solve_least

    read = read_calendar(file, slice)
    stop = stop_after(limit)
    bookings = read.bookings
    answer = solve_least(bookings, stop=stop) if capacity is None else solve(bookings, capacity, stop=stop)
    Reply(calendar_json(read, answer), lambda: _show_calendar(read, answer)).print(json)
    return 0 if answer.status == "fits" else 1


@plan_app.command
def capacity(
    instance: Annotated[Path, Parameter(help="Pipelines with their deadlines: JSON or PSPLIB (docs/planning.md).")],
    /,
    *,
    format: Annotated[str | None, Parameter(help="json or psplib. Default: by the name of the file.")] = None,
    deadline: Annotated[float, Parameter(help="Of a PSPLIB project, in lengths of its critical path.")] = 1.0,
    before: Annotated[Path | None, Parameter(help="The instance before a change; with --plan.")] = None,
    plan: Annotated[
        Path | None, Parameter(help="Its plan, as --json printed it: what has not changed keeps its starts.")
    ] = None,
    limit: Limit = "30s",
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Say how much of each resource must be reserved so that all pipelines meet their deadlines, and when each task
    starts."""
    from kant.model.units import SECOND, parse_duration
    from kant.optimize.capacity.file import read_instance, read_plan
    from kant.optimize.capacity.solve import plan as make_plan
    from kant.optimize.capacity.solve import replan

    if (before is None) != (plan is None):
        raise InputError("--before and --plan", "both or none")
    asked = read_instance(instance, format, deadline)
    if before is not None and plan is not None:
        old, starts = read_instance(before, format, deadline), read_plan(plan)
        found = replan(asked, old, starts, stop=stop_after(limit), seed=seed)
    else:
        seconds = parse_duration(limit, "--limit") / SECOND * 0.7
        found = make_plan(asked, stop=stop_after(limit), seconds=seconds, seed=seed)
    return Reply(capacity_json(asked, found), lambda: _show_capacity(asked, found)).print(json)


@plan_app.command
def generate(
    *,
    out: Annotated[Path, Parameter(help="The JSON file to write.")],
    tasks: Annotated[int, Parameter(help="Tasks, in processes of about 20.", converter=whole)] = 500,
    resources: Annotated[int, Parameter(help="Resources.", converter=whole)] = 4,
    seed: Seed = 0,
) -> None:
    """Draw an instance of capacity planning: pipelines with deadlines of twice their longest path."""
    from kant.cli.show import console
    from kant.optimize.capacity.file import instance_json
    from kant.optimize.capacity.generate import generate as draw

    drawn = draw(tasks, resources, seed)
    try:
        out.write_text(instance_json(drawn), encoding="utf-8")
    except OSError as error:
        raise InputError(str(out), f"a file that can be written ({error})") from None
    console.print(f"{tasks:,} tasks in {len(drawn.processes):,} processes written to {out}", soft_wrap=True)


def stop_after(limit: str) -> Callable[[float], bool]:
    """What tells whether a share of the time is over."""
    from time import monotonic

    from kant.model.units import SECOND, parse_duration

    span = parse_duration(limit, "--limit") / SECOND
    if span <= 0:
        raise InputError("--limit", "a time to search, such as 60s", limit)
    begun = monotonic()
    return lambda share: monotonic() - begun >= share * span


def calendar_json(read: CalendarFile, answer: Answer) -> dict[str, Any]:
    """The answer as `--json` prints it. Times are as in the file: seconds, or plain numbers."""
    from kant.model.units import SECOND

    def seconds(time: int) -> float:
        return time / SECOND if read.timed else time

    offsets = answer.offsets or (None,) * len(read.bookings)
    return {
        "status": answer.status,
        "capacity": answer.capacity,
        "needed": answer.needed if answer.offsets else None,
        "lower_bound": answer.lower_bound,
        "first_fit": answer.first_fit if answer.offsets else None,
        "nodes": answer.nodes,
        "collide": [read.bookings[i].id for i in answer.collide],
        "minimal": answer.minimal,
        "bookings": [
            {"id": b.id, "start": seconds(b.start), "end": seconds(b.end), "gpus": b.gpus, "first_gpu": first}
            for b, first in zip(read.bookings, offsets, strict=True)
        ],
    }


def _show_calendar(read: CalendarFile, answer: Answer) -> None:
    from rich.table import Table

    from kant.cli.show import console
    from kant.model.units import show_duration

    count = f"{len(read.bookings):,} bookings"
    gpus = f"{answer.capacity:,} GPUs"
    if answer.status == "fits":
        least = " (no fewer will do)" if answer.needed == answer.lower_bound else ""
        console.print(f"{count} fit on {gpus}; the plan uses {answer.needed:,}{least}.", style="green")
    elif answer.status == "infeasible":
        console.print(f"{count} do not fit on {gpus}.", style="red")
    else:
        console.print(f"{count}: no plan on {gpus} was found in the time, and none is ruled out.", style="yellow")
    if answer.collide:
        names = ", ".join(read.bookings[i].id for i in answer.collide)
        without = ": without any one of them the others of these fit" if answer.minimal else ""
        console.print(f"{len(answer.collide)} collide{without}: {names}", soft_wrap=True)
    if not answer.offsets:
        return
    if answer.status != "fits":
        console.print(f"The best plan needs {answer.needed:,} GPUs; fewer than {answer.lower_bound:,} cannot do.")
    console.print(f"First fit needs {answer.first_fit:,}.")
    table = Table(title=f"The plan on {max(answer.needed, 1):,} GPUs", title_justify="left")
    for name in ("booking", "from", "to", "GPUs", "first GPU", "last GPU"):
        table.add_column(name, justify="left" if name == "booking" else "right")
    rows = sorted(range(len(read.bookings)), key=lambda i: (read.bookings[i].start, answer.offsets[i], i))
    for i in rows[:SHOWN]:
        b, first = read.bookings[i], answer.offsets[i]
        start, end = (show_duration(t) if read.timed else f"{t:,}" for t in (b.start, b.end))
        table.add_row(b.id, start, end, f"{b.gpus:,}", f"{first:,}", f"{first + b.gpus - 1:,}")
    console.print(table)
    if len(rows) > SHOWN:
        console.print(f"and {len(rows) - SHOWN:,} more (--json has all)")


def capacity_json(instance: Instance, plan: CapacityPlan) -> dict[str, Any]:
    """The plan as `--json` prints it, and as `--plan` reads it."""
    from kant.optimize.capacity.file import by_day

    return {
        "cost": plan.cost,
        "bound": plan.bound,
        "resources": [
            {"name": each.name, "cost": each.cost, "peak": plan.peaks[each.name], "bound": plan.bounds[each.name]}
            for each in instance.resources
        ],
        "days": by_day(instance, plan),
        "tick_s": instance.tick_us / 1_000_000 if instance.tick_us else None,
        "tasks": [
            {"process": process.id, "task": task.id, "start": plan.starts[process.id, task.id]}
            for process in instance.processes
            for task in process.tasks
        ],
    }


def _show_capacity(instance: Instance, plan: CapacityPlan) -> None:
    from rich.table import Table

    from kant.cli.show import console, percent
    from kant.optimize.capacity.file import by_day

    count = sum(len(process.tasks) for process in instance.processes)
    proven = "no plan costs less" if plan.cost == plan.bound else f"at most {percent(plan.gap)} above the least"
    console.print(
        f"{count:,} tasks of {len(instance.processes):,} processes meet their deadlines at a cost of ", end=""
    )
    console.print(f"{plan.cost:,} ({proven}).")
    table = Table(title="What to reserve", title_justify="left")
    for name in ("resource", "units", "at least", "cost of one"):
        table.add_column(name, justify="left" if name == "resource" else "right")
    for each in instance.resources:
        table.add_row(each.name, f"{plan.peaks[each.name]:,}", f"{plan.bounds[each.name]:,}", f"{each.cost:,}")
    console.print(table)
    days = by_day(instance, plan)
    if len(days) > 1:
        table = Table(title="Peak by day", title_justify="left")
        for name in ("day", *(each.name for each in instance.resources)):
            table.add_column(name, justify="right")
        for n, peak in enumerate(days[:SHOWN]):
            table.add_row(str(n), *(f"{peak[each.name]:,}" for each in instance.resources))
        console.print(table)
