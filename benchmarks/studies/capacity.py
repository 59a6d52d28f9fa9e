"""What must be reserved for pipelines with deadlines: `python -m benchmarks.studies.capacity`.

Plans beside CP-SAT alone on generated instances, plans after a change, and projects of PSPLIB beside proven optima.
Writes docs/studies/capacity.md. Needs psplib_j30_j60.tar.xz and the extra `optimize`. With a number of
deterministic seconds for CP-SAT it prints the page instead.
"""

from __future__ import annotations

import random
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.data import DATA
from benchmarks.measure import cpu_seconds
from benchmarks.studies.judges import capacity_faults as faults
from benchmarks.studies.parts import write_part
from kant.optimize.capacity.exact import solve_free
from kant.optimize.capacity.file import read_instance
from kant.optimize.capacity.generate import generate
from kant.optimize.capacity.instance import (
    MOST,
    Instance,
    Process,
    ProcessTask,
    Starts,
    cost_of,
    flat,
    peaks,
    unchanged,
)
from kant.optimize.capacity.planning import planning_of
from kant.optimize.capacity.solve import insert_best, lower, plan, replan
from kant.optimize.solvers import cp_sat, deterministic

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "capacity.md"
CASES = ((500, 1), (2_500, 1), (5_000, 1), (5_000, 2), (10_000, 1), (10_000, 2))
"""Tasks and seeds."""
SECONDS = 30.0
DEADLINES = (1.0, 1.2, 1.5)
EVERY = 60
"""Of the 480 projects of j30 every so manieth is planned."""
CHANGED = 0.05


def changed(instance: Instance, share: float, seed: int = 0) -> Instance:
    """The instance with this share of its processes changed: task durations vary, windows move."""
    rng = random.Random(seed)
    count = max(1, round(share * len(instance.processes)))
    chosen = set(rng.sample(range(len(instance.processes)), count))
    processes = []
    for p, process in enumerate(instance.processes):
        if p in chosen:
            tasks = tuple(
                ProcessTask(task.id, max(1, task.duration + rng.randint(-2, 2)), task.demand, task.after)
                for task in process.tasks
            )
            shift = rng.randint(-min(10, process.release), 10)
            span = process.deadline - process.release + 2 * len(tasks)
            process = Process(process.id, process.release + shift, min(process.release + shift + span, MOST), tasks)
        processes.append(process)
    return Instance(instance.resources, tuple(processes), instance.tick_us)


def cold(instance: Instance, seconds: float) -> int | None:
    """The cost of what CP-SAT alone finds in so many deterministic seconds; None for nothing."""
    cp_model = cp_sat()
    model = cp_model.CpModel()
    starts, spans = {}, {}
    for process, task in flat(instance):
        key = process.id, task.id
        starts[key] = model.new_int_var(process.release, process.deadline - task.duration, "")
        spans[key] = model.new_fixed_size_interval_var(starts[key], task.duration, "")
        for other in task.after:
            before = next(each for each in process.tasks if each.id == other)
            model.add(starts[key] >= starts[process.id, other] + before.duration)
    caps = []
    for resource in instance.resources:
        used = [(p.id, t.id, t.demand[resource.name]) for p, t in flat(instance) if t.demand.get(resource.name)]
        caps.append(model.new_int_var(0, sum(amount for *_, amount in used), ""))
        model.add_cumulative([spans[p, t] for p, t, _ in used], [amount for *_, amount in used], caps[-1])
    model.minimize(sum(resource.cost * cap for resource, cap in zip(instance.resources, caps, strict=True)))
    solver = deterministic(seconds)
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    found: Starts = {key: solver.value(start) for key, start in starts.items()}
    assert not faults(instance, found)
    return cost_of(instance, peaks(instance, found))


def sizes(seconds: float) -> Iterator[str]:
    yield (
        "| tasks | seed | bound | inserted | CPU s | planned | above the bound | CPU s | CP-SAT alone "
        "| CPU s | planned / CP-SAT | after the change | above its bound | CPU s | share | moved |"
    )
    yield "|" + "---|" * 16
    for size, seed in CASES:
        instance = generate(size, seed=seed)

        def insert(instance: Instance = instance) -> int:
            planning = planning_of(instance)
            insert_best(planning)
            return planning.cost

        inserting, inserted = cpu_seconds(insert)
        planning_s, made = cpu_seconds(lambda instance=instance: plan(instance, windows=0))
        assert not faults(instance, made.starts)
        rival_s, rival = cpu_seconds(lambda instance=instance: cold(instance, seconds))
        new = changed(instance, CHANGED, seed)
        again_s, again = cpu_seconds(lambda new=new, instance=instance, made=made: replan(new, instance, made.starts))
        assert not faults(new, again.starts)
        same = unchanged(instance, new)
        moved = sum(made.starts[key] != again.starts[key] for key in made.starts if key[0] in same)
        beside = (
            f"none | {rival_s:.1f} | -" if rival is None else f"{rival:,} | {rival_s:.1f} | {made.cost / rival:.2f}"
        )
        yield (
            f"| {size:,} | {seed} | {made.bound:,} | {inserted:,} | {inserting:.2f} | {made.cost:,} "
            f"| {100 * made.gap:.1f} % | {planning_s:.1f} "
            f"| {beside} "
            f"| {again.cost:,} | {100 * again.gap:.1f} % | {again_s:.2f} | {again_s / planning_s:.3f} | {moved} |"
        )


def projects() -> Iterator[str]:
    yield "| deadline | projects | proven | plans that cost the optimum | above it, mean | most | CPU s of a plan |"
    yield "|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder, tarfile.open(DATA / "psplib_j30_j60.tar.xz") as archive:
        archive.extractall(folder, filter="data")
        files = sorted(Path(folder).glob("psplib/j30.sm/*.sm"))[::EVERY]
        for deadline in DEADLINES:
            gaps, spent = [], 0.0
            for file in files:
                instance = read_instance(file, deadline=deadline)
                seconds, made = cpu_seconds(lambda instance=instance: plan(instance, windows=0))
                spent += seconds
                planning = planning_of(instance)
                insert_best(planning)
                lower(planning, 20, 0)
                solve_free(planning, planning.starts >= 0, 5.0)
                best = planning.plan()
                assert not faults(instance, made.starts) + faults(instance, best.starts)
                assert made.cost >= best.bound
                if best.cost == best.bound:
                    gaps.append(made.cost / best.cost - 1)
            yield (
                f"| {deadline} | {len(files)} | {len(gaps)} | {sum(gap == 0 for gap in gaps)} "
                f"| {100 * sum(gaps) / max(len(gaps), 1):.2f} % | {100 * max(gaps, default=0):.1f} % "
                f"| {spent / len(files):.2f} |"
            )


ABOUT = """\
The resource investment problem (iScheduler, arXiv 2602.06064): tasks with durations, demands and precedence inside
processes that have a release and a deadline; the cost is the weighted sum of the peaks. The paper's instances are
not public, so these are generated (`kant plan generate`): processes of about 20 tasks, four resources, deadlines of
twice the longest path. The bound is that of energetic reasoning for each resource alone. *Inserted* is
process-by-process insertion alone, *planned* is with repair, without any solver. CP-SAT alone has one worker and
{seconds:.0f} deterministic seconds. Then {changed:.0f} % of the processes change,
and the plan is made again around what stays: *share* is its CPU time over that of the first plan, *moved* counts tasks
of unchanged processes that start at another time. Plans are checked by `benchmarks/studies/judges.py`.
Times are CPU seconds of one core.
"""

PSPLIB = """
## Projects of PSPLIB

Every {every}th of the 480 projects of j30 (R. Kolisch, A. Sprecher, 1997), each resource at a cost of 1, with deadlines
in lengths of the critical path. The plans are those without a solver; the optima are proven by CP-SAT, warm.
"""


def page(seconds: float) -> Iterator[str]:
    small = generate(60, seed=5)
    replan(small, small, plan(small, rounds=2, windows=0).starts)  # kernels are compiled
    yield "# What must be reserved for pipelines with deadlines\n"
    yield "Made by `python -m benchmarks.studies.capacity`.\n"
    yield ABOUT.format(seconds=seconds, changed=100 * CHANGED)
    yield from sizes(seconds)
    yield PSPLIB.format(every=EVERY)
    yield from projects()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    text = "\n".join(page(seconds)) + "\n"
    if seconds == SECONDS:
        write_part(PAGE, "capacity", [text])
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
