"""`kant plan`: plans bookings of GPUs, capacity, workflows and the models kept in GPU memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kant.cli.booked import booked_calendar
from kant.cli.inputs import At, Json, Limit, Seed, effort, whole, write_text
from kant.cli.output import Reply
from kant.cli.plan_dispatch import dispatch
from kant.cli.plan_residency import residency
from kant.cli.plan_stream import stream, train
from kant.cli.plan_workflow import workflow
from kant.cli.show import SHOWN, console, percent, print_table
from kant.model.errors import InputError
from kant.model.node import MAX_GPUS
from kant.model.units import SECOND, parse_duration, show_duration
from kant.optimize.calendar.file import read_calendar
from kant.optimize.capacity.from_jobs import asked_of, nodes_for
from kant.optimize.capacity.generate import generate as draw
from kant.optimize.instance_file import instance_text
from kant.optimize.residency.generate import generate as draw_program
from kant.optimize.workflow.file import workflow_toml
from kant.optimize.workflow.generate import generate as draw_graph

if TYPE_CHECKING:
    from kant.optimize.calendar.file import CalendarFile
    from kant.optimize.calendar.solve import Answer
    from kant.optimize.capacity.instance import Instance
    from kant.optimize.capacity.planning import CapacityPlan

plan_app = App(
    name="plan", help="Plan ahead: calendars of contiguous GPUs, capacity, workflows.", help_format="plaintext"
)
for verb in (workflow, stream, train, residency, dispatch):
    plan_app.command(verb)


@plan_app.command
def calendar(
    file: Annotated[
        Path,
        Parameter(help="A CSV file of bookings, or one of MiniMalloc (docs/planning.md); or a journal.jsonl."),
    ],
    /,
    *,
    at: At = None,
    capacity: Annotated[
        int | None, Parameter(help="GPUs of the line. Default: the smallest number that suffices.", converter=whole)
    ] = None,
    slice: Annotated[str | None, Parameter(help="One calendar of a file that holds several.")] = None,
    limit: Limit = "60s",
    json: Json = False,
) -> int:
    """Say whether bookings of contiguous GPUs in time windows fit, and where each is placed; or which of them collide.

    For a journal: say whether running jobs, reservations and nodes out of service collide at a given time.
    """
    seconds = effort(limit)
    if file.suffix == ".jsonl":
        if capacity is not None or slice is not None:
            raise InputError("--capacity and --slice", "a file of bookings; a journal has its own cluster")
        return booked_calendar(file, at, json)
    if at is not None:
        raise InputError("--at", "a journal.jsonl as the file")
    from kant.optimize.calendar.solve import solve, solve_least

    read = read_calendar(file, slice)
    bookings = read.bookings
    answer = solve_least(bookings, limit=seconds) if capacity is None else solve(bookings, capacity, limit=seconds)
    Reply(calendar_json(read, answer), lambda: _show_calendar(read, answer)).print(json)
    return 0 if answer.status == "fits" else 1


@plan_app.command
def capacity(
    instance: Annotated[
        Path,
        Parameter(help="Pipelines with their deadlines: JSON or PSPLIB (docs/planning.md); or a journal.jsonl."),
    ],
    /,
    *,
    wait: Annotated[str | None, Parameter(help="For a journal: the longest wait of a job. Default: 1h.")] = None,
    tick: Annotated[str | None, Parameter(help="For a journal: the time step. Default: 5m.")] = None,
    node: Annotated[
        int | None, Parameter(help="GPUs of a node, to convert the resource `gpus` to nodes.", converter=whole)
    ] = None,
    format: Annotated[str | None, Parameter(help="json or psplib. Default: by the name of the file.")] = None,
    deadline: Annotated[
        float, Parameter(help="For a PSPLIB project: the deadline, as a multiple of its critical path.")
    ] = 1.0,
    before: Annotated[Path | None, Parameter(help="The instance before a change; with --plan.")] = None,
    plan: Annotated[
        Path | None,
        Parameter(help="The plan before the change, as printed by --json: unchanged tasks keep their starts."),
    ] = None,
    search: Annotated[
        Literal["insertion", "learned"],
        Parameter(help="The initial plan: the best of three orders of processes, or a learned order."),
    ] = "insertion",
    limit: Limit = "30s",
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Say how much of each resource must be reserved so that all pipelines meet their deadlines, and when each task
    starts.
    """
    from kant.optimize.capacity.file import read_instance, read_plan
    from kant.optimize.capacity.learned import LearnedInsertion
    from kant.optimize.capacity.solve import plan as make_plan
    from kant.optimize.capacity.solve import replan

    if (before is None) != (plan is None):
        raise InputError("--before and --plan", "both or none")
    order = LearnedInsertion() if search == "learned" else None
    seconds = effort(limit)
    asked, node_gpus, left_out = _asked(instance, format, deadline, wait, tick, node)
    if before is not None and plan is not None:
        old, starts = read_instance(before, format, deadline), read_plan(plan)
        found = replan(asked, old, starts, limit=seconds, seed=seed, order=order)
    else:
        found = make_plan(asked, limit=seconds, seed=seed, order=order)
    reply = Reply(
        capacity_json(asked, found, node_gpus) | ({"left_out": left_out} if left_out else {}),
        lambda: _show_capacity(asked, found, node_gpus, left_out),
    )
    return reply.print(json)


def _asked(
    path: Path, format: str | None, deadline: float, wait: str | None, tick: str | None, node: int | None
) -> tuple[Instance, dict[str, int], tuple[str, ...]]:
    """Return the instance of a file or a journal, the GPUs per node of its resources, and the omitted jobs."""
    from kant.optimize.capacity.file import read_instance

    if node is not None and not 1 <= node <= MAX_GPUS:
        raise InputError("--node", f"GPUs of a node, from 1 to {MAX_GPUS}", node)
    if path.suffix == ".jsonl":
        from kant.live.journal_jobs import runs_of

        if node is not None:
            raise InputError("--node", "a file of pipelines: a journal states the size of its nodes")
        step = parse_duration(tick or "5m", "--tick")
        if step <= 0:
            raise InputError("--tick", "a duration such as 5m", tick)
        cluster, runs = runs_of(path)
        asked = asked_of(runs, cluster, parse_duration(wait or "1h", "--wait"), step)
        return asked.instance, asked.node_gpus, asked.left_out
    for name, given in (("--wait", wait), ("--tick", tick)):
        if given is not None:
            raise InputError(name, "a journal.jsonl; a file of pipelines states its own deadlines and tick")
    instance = read_instance(path, format, deadline)
    if node is not None and all(each.name != "gpus" for each in instance.resources):
        raise InputError("--node", "a resource of the name gpus", [each.name for each in instance.resources])
    return instance, {} if node is None else {"gpus": node}, ()


@plan_app.command
def generate(
    *,
    out: Annotated[Path, Parameter(help="The file to write.")],
    kind: Annotated[Literal["capacity", "workflow", "residency"], Parameter(help="The kind of plan.")] = "capacity",
    tasks: Annotated[
        int | None,
        Parameter(help="Tasks, in processes of about 20; stages; or steps. Default: 500, 20 or 30.", converter=whole),
    ] = None,
    resources: Annotated[int, Parameter(help="Resources of an instance.", converter=whole)] = 4,
    processors: Annotated[int, Parameter(help="Processors of a workflow.", converter=whole)] = 3,
    transfers: Annotated[float, Parameter(help="Mean transfer of a workflow, in mean durations.")] = 1.0,
    seed: Seed = 0,
) -> None:
    """Draw an instance of capacity planning (pipelines with deadlines of twice their longest path), a workflow, or a
    program of models that share a GPU."""
    if kind == "workflow":
        graph = draw_graph(20 if tasks is None else tasks, processors, seed, ccr=transfers)
        text, what = workflow_toml(graph), f"{len(graph.stages):,} stages on {processors:,} processors"
    elif kind == "residency":
        program = draw_program(30 if tasks is None else tasks, seed=seed)
        text, what = instance_text(program), f"{len(program.steps):,} steps with {len(program.buffers):,} buffers"
    else:
        from kant.optimize.capacity.file import instance_json

        drawn = draw(500 if tasks is None else tasks, resources, seed)
        count = sum(len(process.tasks) for process in drawn.processes)
        text, what = instance_json(drawn), f"{count:,} tasks in {len(drawn.processes):,} processes"
    write_text(text, out)
    console.print(f"{what} written to {out}", soft_wrap=True)


def calendar_json(read: CalendarFile, answer: Answer) -> dict[str, Any]:
    """Return the answer as `--json` prints it. Times are as in the file: seconds, or plain numbers."""

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
    count = f"{len(read.bookings):,} bookings"
    gpus = f"{answer.capacity:,} GPUs"
    if answer.status == "fits":
        proven = answer.needed == answer.lower_bound
        least = " (no fewer suffice)" if proven else f" (fewer than {answer.lower_bound:,} are impossible)"
        console.print(f"{count} fit on {gpus}; the plan uses {answer.needed:,}{least}.", style="green")
    elif answer.status == "infeasible":
        console.print(f"{count} do not fit on {gpus}.", style="red")
    else:
        console.print(f"{count}: no plan on {gpus} was found within the limit, but there may be one.", style="yellow")
    if answer.collide:
        names = ", ".join(read.bookings[i].id for i in answer.collide)
        without = ": the others fit without any one of them" if answer.minimal else ""
        console.print(f"{len(answer.collide)} collide{without}: {names}", soft_wrap=True)
    if not answer.offsets:
        return
    if answer.status != "fits":
        console.print(f"The best plan needs {answer.needed:,} GPUs; fewer than {answer.lower_bound:,} are impossible.")
    console.print(f"First fit needs {answer.first_fit:,}.")
    cells = []
    rows = sorted(range(len(read.bookings)), key=lambda i: (read.bookings[i].start, answer.offsets[i], i))
    for i in rows:
        b, first = read.bookings[i], answer.offsets[i]
        start, end = (show_duration(t) if read.timed else f"{t:,}" for t in (b.start, b.end))
        cells.append((b.id, start, end, f"{b.gpus:,}", f"{first:,}", f"{first + b.gpus - 1:,}"))
    columns = ("booking", "from", "to", "GPUs", "first GPU", "last GPU")
    print_table(columns, cells, f"The plan on {max(answer.needed, 1):,} GPUs", most=SHOWN)


def capacity_json(instance: Instance, plan: CapacityPlan, node_gpus: dict[str, int] | None = None) -> dict[str, Any]:
    """Return the plan as `--json` prints and `--plan` reads it. Resources of `node_gpus` are counted in nodes too."""
    from kant.optimize.capacity.file import by_day

    nodes = node_gpus or {}
    days = by_day(instance, plan)
    return {
        "cost": plan.cost,
        "bound": plan.bound,
        "resources": [
            {"name": each.name, "cost": each.cost, "peak": plan.peaks[each.name], "bound": plan.bounds[each.name]}
            | ({"nodes": nodes_for(plan.peaks[each.name], nodes[each.name])} if each.name in nodes else {})
            for each in instance.resources
        ],
        "days": days,
        "nodes_by_day": [
            {name: nodes_for(day[name], size) for name, size in nodes.items() if name in day} for day in days if nodes
        ],
        "tick_s": instance.tick_us / 1_000_000 if instance.tick_us else None,
        "tasks": [
            {"process": process.id, "task": task.id, "start": plan.starts[process.id, task.id]}
            for process in instance.processes
            for task in process.tasks
        ],
    }


def _show_capacity(
    instance: Instance, plan: CapacityPlan, node_gpus: dict[str, int], left_out: tuple[str, ...]
) -> None:
    from kant.optimize.capacity.file import by_day

    count = sum(len(process.tasks) for process in instance.processes)
    proven = "no plan costs less" if plan.cost == plan.bound else f"at most {percent(plan.gap)} above the least"
    console.print(
        f"{count:,} tasks of {len(instance.processes):,} processes meet their deadlines at a cost of ", end=""
    )
    console.print(f"{plan.cost:,} ({proven}).")
    if left_out:
        console.print(f"{len(left_out):,} jobs are left out: they request no GPU, or their run time is unknown.")
    counted = [each.name for each in instance.resources if each.name in node_gpus]
    rows = []
    for each in instance.resources:
        peak = plan.peaks[each.name]
        nodes = [f"{nodes_for(peak, node_gpus[each.name]):,}" if each.name in counted else ""] if counted else []
        rows.append((each.name, f"{peak:,}", f"{plan.bounds[each.name]:,}", f"{each.cost:,}", *nodes))
    columns = ("resource", "units", "at least", "cost of one", *(["nodes"] if counted else []))
    print_table(columns, rows, "What to reserve")
    days = by_day(instance, plan)
    if len(days) > 1:
        by_days = []
        for n, day in enumerate(days[:SHOWN]):
            nodes = [f"{nodes_for(day[name], node_gpus[name]):,}" for name in counted]
            by_days.append((str(n), *(f"{day[each.name]:,}" for each in instance.resources), *nodes))
        names = ("day", *(each.name for each in instance.resources), *(f"nodes of {name}" for name in counted))
        print_table(names, by_days, "Peak by day", left=())
