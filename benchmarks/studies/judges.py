"""Judges of plans: each returns the errors of a plan as sentences, and shares no code with the planners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from kant.optimize.calendar.booking import LineBooking
from kant.optimize.capacity.instance import Instance, Starts
from kant.optimize.residency.program import COPY, DROP, KEEP, BufferAction, Program, uses_of
from kant.optimize.workflow.graph import NEVER, Graph, StageRun
from kant.placement.perf import streams


def calendar_faults(bookings: Sequence[LineBooking], offsets: Sequence[int], capacity: int) -> list[str]:
    """The errors of a plan that gives each booking its first GPU, as sentences; empty for a valid plan."""
    found = []
    for booking, offset in zip(bookings, offsets, strict=True):
        if not 0 <= offset <= capacity - booking.gpus:
            found.append(f"{booking.id} leaves the line")
        if offset % booking.alignment:
            found.append(f"{booking.id} is not aligned")
        if booking.offset is not None and booking.offset != offset:
            found.append(f"{booking.id} is not where it must be")
    for (one, first), (other, second) in combinations(zip(bookings, offsets, strict=True), 2):
        if first < second + other.gpus and second < first + one.gpus and one.meets(other):
            found.append(f"{one.id} and {other.id} hold the same GPUs")
    return found


def capacity_faults(instance: Instance, starts: Starts) -> list[str]:
    """The errors of a plan, as sentences; empty for a valid plan."""
    found = []
    for process in instance.processes:
        durations = {task.id: task.duration for task in process.tasks}
        for task in process.tasks:
            name = f"{process.id}/{task.id}"
            at = starts.get((process.id, task.id))
            if at is None:
                found.append(f"{name} has no start")
                continue
            if not process.release <= at <= process.deadline - task.duration:
                found.append(f"{name} is outside the window of its process")
            for other in task.after:
                before = starts.get((process.id, other))
                if before is not None and before + durations[other] > at:
                    found.append(f"{name} starts before {other} ends")
    return found


def residency_faults(program: Program, choices: Sequence[BufferAction]) -> list[str]:
    """The errors of a plan, as sentences; empty for a valid plan.

    A kept buffer was in fast memory at its last use; a copy ends before its use, with one copy at a time and only while
    steps compute; and the fast memory is never overfull.
    """
    found = []
    uses = uses_of(program)
    room = [0] * len(program.steps)
    copies = []
    for use, choice in zip(uses, choices, strict=True):
        name = f"{program.buffers[use.buffer].name} at step {use.step}"
        first = use.step + 1
        if choice.action == KEEP:
            if use.before < 0 and not use.made:
                found.append(f"{name} is kept and was never there")
            elif use.before >= 0 and choices[use.before].action == DROP:
                found.append(f"{name} is kept and was not there at its last use")
            first = use.step if use.made else uses[use.before].step + 1
        elif choice.action == COPY:
            first = choice.start
            after = uses[use.before].step + 1 if use.before >= 0 else 0
            if use.made or not after <= first < use.step:
                found.append(f"{name} is copied from step {first} on, which is not between its uses")
                continue
            copies.append((use.step, first, use.ticks, name))
        for step in range(first, use.step + 1):
            room[step] += use.size
    found += [f"step {n} holds {used}" for n, used in enumerate(room) if used > program.capacity]
    # Copies can be interrupted: the one that is due first has precedence, step by step.
    left = {n: ticks for n, (_, _, ticks, _) in enumerate(copies)}
    for step, each in enumerate(program.steps):
        supply = each.compute
        for n in sorted((n for n in left if copies[n][1] <= step), key=lambda n: (copies[n][0], n)):
            if copies[n][0] <= step:
                continue
            part = min(supply, left[n])
            left[n] -= part
            supply -= part
    found += [f"{copies[n][3]} is not copied in time" for n, rest in left.items() if rest]
    return found


def workflow_faults(
    graphs: Sequence[Graph], runs: Sequence[StageRun], arrivals: Mapping[int, int] | None = None
) -> list[str]:
    """The errors of a plan, as sentences; empty for a valid plan.

    Each stage runs once and for its duration there, not before its graph arrives (0 if not given), and after its data
    has arrived; a processor runs one stage at a time. `arrivals` names the graphs that were accepted.
    """
    arrivals = dict.fromkeys(range(len(graphs)), 0) if arrivals is None else arrivals
    found = []
    of: dict[tuple[int, int], StageRun] = {}
    for run in runs:
        if (run.graph, run.stage) in of:
            found.append(f"{_name(graphs, run)} runs twice")
        of[run.graph, run.stage] = run
    for k, came in arrivals.items():
        graph = graphs[k]
        for i, stage in enumerate(graph.stages):
            if (k, i) not in of:
                found.append(f"stage {stage.id} of graph {k} does not run")
                continue
            run = of[k, i]
            takes = stage.durations[run.processor]
            if takes == NEVER or run.end - run.start != takes:
                found.append(f"{_name(graphs, run)} runs for {run.end - run.start} where it takes {takes}")
            if run.start < came:
                found.append(f"{_name(graphs, run)} starts before its graph arrives")
            for j, ticks in stage.before:
                source = of.get((k, j))
                if source is not None:
                    there = source.end + (ticks if source.processor != run.processor else 0)
                    if run.start < there:
                        found.append(f"{_name(graphs, run)} starts before the data of {graph.stages[j].id} is there")
    last: dict[int, StageRun] = {}
    for run in sorted(runs, key=lambda run: (run.start, run.end, run.graph, run.stage)):
        before = last.get(run.processor)
        if before is not None and run.start < before.end and run.start < run.end:
            found.append(f"{_name(graphs, run)} and {_name(graphs, before)} run on one processor at a time")
        if before is None or run.end > before.end:
            last[run.processor] = run
    return found


def _name(graphs: Sequence[Graph], run: StageRun) -> str:
    return f"stage {graphs[run.graph].stages[run.stage].id} of graph {run.graph}"


def stream_faults(found: streams.StreamTimes) -> list[str]:
    """Return what is wrong with a run, as text; independent of the code that makes runs.

    Each stream runs one task at a time and in order, each task as soon as it may, and does its whole work: its time
    less what it loses while a task of the other message stream runs.
    """
    wrong = []
    near = 1e-9 * (1.0 + found.seconds)
    last = [0.0, 0.0, 0.0]
    for task, start, end in zip(found.tasks, found.starts, found.ends, strict=True):
        ready = max(last[task.stream], found.ends[task.after] if task.after >= 0 else 0.0)
        if abs(start - ready) > near:
            wrong.append(f"{task.name} starts at {start}; expected {ready}")
        beside = 0.0
        if task.stream != streams.COMPUTE:
            for other, begin, finish in zip(found.tasks, found.starts, found.ends, strict=True):
                if other.stream == 1 - task.stream:
                    beside += max(0.0, min(end, finish) - max(start, begin))
        done = end - start - (1.0 - found.contention) * beside
        if abs(done - task.work) > near:
            wrong.append(f"{task.name} does {done} s of its {task.work} s of work")
        last[task.stream] = end
    return wrong
