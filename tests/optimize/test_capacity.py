"""Capacity planning: plans hold, bounds are bounds, and small optima are met."""

from __future__ import annotations

import math
import tarfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from benchmarks.studies.capacity import changed
from benchmarks.studies.judges import capacity_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import DataFile
from tests.examples import examples

from kant.model.errors import InputError
from kant.optimize.capacity import exact, kernels
from kant.optimize.capacity.file import read_instance
from kant.optimize.capacity.generate import generate
from kant.optimize.capacity.instance import Instance, Process, ProcessTask, Resource, Starts, cost_of, peaks, unchanged
from kant.optimize.capacity.planning import Planning, planning_of
from kant.optimize.capacity.solve import insert_best, lower, open_by_tick, plan, replan


@st.composite
def instances(draw: st.DrawFn, most: int = 4) -> Instance:
    """One or two small processes with any precedence, tasks without duration or demand, resources without cost."""
    resources = tuple(Resource(f"r{k}", draw(st.integers(0, 3))) for k in range(draw(st.integers(1, 2))))
    processes = []
    for p in range(draw(st.integers(1, 2))):
        tasks: list[ProcessTask] = []
        ends: list[int] = []
        for i in range(draw(st.integers(1, max(most // (p + 1), 1)))):
            after = [j for j in range(i) if draw(st.booleans())]
            demand = {each.name: draw(st.integers(0, 4)) for each in resources if draw(st.booleans())}
            tasks.append(ProcessTask(f"t{i}", draw(st.integers(0, 3)), demand, tuple(f"t{j}" for j in after)))
            ends.append(max((ends[j] for j in after), default=0) + tasks[-1].duration)
        release = draw(st.integers(0, 2))
        deadline = max(release + max(ends) + draw(st.integers(0, 2)), 1)
        order = draw(st.permutations(tasks))
        processes.append(Process(f"p{p}", release, deadline, tuple(order)))
    return Instance(resources, tuple(processes))


def all_plans(instance: Instance) -> Iterator[Starts]:
    """Every plan that holds."""
    rows = [(process, task) for process in instance.processes for task in process.tasks]
    windows = [range(process.release, process.deadline - task.duration + 1) for process, task in rows]
    for chosen in product(*windows):
        starts = {(process.id, task.id): at for (process, task), at in zip(rows, chosen, strict=True)}
        if not faults(instance, starts):
            yield starts


def peaks_by_tick(instance: Instance, starts: Starts, ticks: range | None = None) -> dict[str, int]:
    """Tick by tick, unlike anything in the planner."""
    ticks = ticks or range(max(process.deadline for process in instance.processes))
    return {
        resource.name: max(
            sum(
                task.demand.get(resource.name, 0)
                for process in instance.processes
                for task in process.tasks
                if starts[process.id, task.id] <= tick < starts[process.id, task.id] + task.duration
            )
            for tick in ticks
        )
        for resource in instance.resources
    }


@given(instances())
@settings(max_examples=examples(40))
def test_a_small_plan_is_the_best_of_all(instance: Instance) -> None:
    found = plan(instance, rounds=20)
    assert not faults(instance, found.starts)
    assert found.peaks == peaks_by_tick(instance, found.starts) == peaks(instance, found.starts)
    costs = [cost_of(instance, peaks_by_tick(instance, starts)) for starts in all_plans(instance)]
    assert found.cost == cost_of(instance, found.peaks) == found.bound == min(costs)


@given(instances(), st.integers(0, 6), st.integers(1, 6))
@settings(max_examples=examples(40))
def test_peaks_of_a_day_are_those_of_its_ticks(instance: Instance, begin: int, day: int) -> None:
    starts = plan(instance, rounds=1).starts
    assert peaks(instance, starts, begin, begin + day) == peaks_by_tick(instance, starts, range(begin, begin + day))


@given(instances())
@settings(max_examples=examples(40))
def test_bounds_are_never_above_any_plan(instance: Instance) -> None:
    found = plan(instance, rounds=5, windows=0)
    assert not faults(instance, found.starts) and found.bound <= found.cost
    for starts in all_plans(instance):
        peak = peaks_by_tick(instance, starts)
        assert all(found.bounds[name] <= peak[name] for name in peak)


@given(st.integers(0, 1000), st.integers(20, 90))
@settings(max_examples=examples(6))
def test_generated_instances_are_planned_within_their_deadlines(seed: int, tasks: int) -> None:
    instance = generate(tasks, seed=seed)
    assert sum(len(process.tasks) for process in instance.processes) == tasks
    planning = planning_of(instance)
    insert_best(planning)
    inserted = planning.cost
    lower(planning, 4, seed)
    found = planning.plan()
    assert not faults(instance, found.starts)
    assert found.bound <= found.cost <= inserted
    assert found.peaks == peaks_by_tick(instance, found.starts)
    usage = np.zeros_like(planning.usage)
    for i, start in enumerate(planning.starts):
        kernels.put(planning.tasks, i, start, 1, usage)
    assert (usage == planning.usage).all()


@given(st.integers(0, 1000))
@settings(max_examples=examples(4))
def test_a_new_plan_moves_nothing_that_has_not_changed(seed: int) -> None:
    old = generate(100, seed=seed)
    before = plan(old, rounds=3, windows=0)
    new = changed(old, 0.3, seed)
    same = unchanged(old, new)
    assert 0 < len(same) < len(new.processes)
    after = replan(new, old, before.starts)
    assert not faults(new, after.starts)
    assert all(after.starts[key] == at for key, at in before.starts.items() if key[0] in same)
    assert replan(old, old, before.starts).starts == before.starts


@given(st.integers(0, 1000), st.floats(0, 20))
@settings(max_examples=examples(5))
def test_repair_does_the_same_compiled_and_not(seed: int, heat: float) -> None:
    results = []
    for compiled in (True, False):
        planning = planning_of(generate(40, seed=seed))
        insert_best(planning)
        tasks = planning.tasks
        repair = kernels.repair if compiled else getattr(kernels.repair, "py_func", kernels.repair)
        left = repair(
            tasks, planning.starts, planning.usage, planning.bounds, *open_by_tick(planning), 60, seed, heat,
            work := np.zeros(1, np.int64),
        )  # fmt: skip
        over = np.maximum(planning.usage - planning.bounds[:, None], 0)
        assert left == int(((over**2).sum(axis=1) * tasks.cost).sum())
        assert not faults(planning.instance, planning.plan().starts)
        results.append((left, planning.starts.tolist(), work.tolist()))
    assert results[0] == results[1]


def test_a_limit_ends_repair_between_two_rounds() -> None:
    """The limit counts what repair looks at: after the least of limits one round is made."""

    def lowered(rounds: int, limit: float) -> tuple[float, int]:
        planning = planning_of(generate(120, seed=2))
        insert_best(planning)
        return lower(planning, rounds, 0, limit), planning.cost

    one, few = lowered(1, math.inf), lowered(6, math.inf)
    assert lowered(6, 1e-9) == one and lowered(6, 0.0) == (0.0, lowered(0, math.inf)[1])
    assert 0 < one[0] < few[0] and few[1] <= one[1]
    assert lowered(100, few[0]) == few


def test_a_step_of_repair_costs_what_it_looks_at() -> None:
    """Twice the ticks of one task are twice the entries; a step without any has its own price."""
    costs = []
    for ticks in (200, 400):
        task = ProcessTask("t", ticks // 2, {"r": 2})
        planning = planning_of(Instance((Resource("r"),), (Process("p", 0, ticks, (task,)),)))
        insert_best(planning)
        work = np.zeros(1, np.int64)
        target = np.ones(1, np.int64)
        assert kernels.repair(
            planning.tasks, planning.starts, planning.usage, target, *open_by_tick(planning), 300, 1, 0.0, work
        )
        costs.append(int(work[0]) - 300 * kernels.STEP)
    assert 300 * 100 < costs[0] < 300 * 500 and 1.6 < costs[1] / costs[0] < 2.4


def test_what_repair_leaves_of_the_limit_is_for_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    efforts: list[float] = []

    def limited(planning: Planning, free: np.ndarray, effort: float, seed: int = 0) -> float:
        efforts.append(effort)
        return effort

    monkeypatch.setattr(exact, "solve_free", limited)
    small, large = generate(60, seed=4), generate(240, seed=1)
    for limit in (math.inf, 0.5, 0.25):
        plan(small, rounds=1, limit=limit)
    assert efforts[0] == exact.EFFORT and 0.25 < efforts[1] < 0.5 and 0 < efforts[2] < 0.25
    efforts.clear()
    plan(large, rounds=1, windows=4)
    assert efforts == [exact.EFFORT / 10] * 4
    efforts.clear()
    plan(large, rounds=1, windows=4, limit=0.5)
    assert efforts[0] == exact.EFFORT / 10 and len(efforts) < 4 and sum(efforts) < 0.5
    efforts.clear()
    plan(small, rounds=1, limit=1e-6)
    assert not efforts


@pytest.mark.long
def test_the_same_seed_gives_the_same_plan() -> None:
    instance = generate(30, seed=3)
    assert plan(instance, rounds=8, windows=1, seed=5) == plan(instance, rounds=8, windows=1, seed=5)


def test_a_window_around_a_peak_never_makes_a_plan_dearer() -> None:
    instance = generate(240, seed=1)
    without = plan(instance, rounds=4, windows=0)
    polished = plan(instance, rounds=4, windows=2)
    assert not faults(instance, polished.starts)
    assert polished.bound <= polished.cost <= without.cost


def test_without_the_solver_there_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    instance = generate(40, seed=1)
    assert not faults(instance, plan(instance, rounds=2).starts)


def test_projects_of_psplib(data_file: DataFile, tmp_path: Path) -> None:
    with tarfile.open(data_file("psplib_j30_j60.tar.xz")) as archive:
        member = archive.extractfile("psplib/j30.sm/j301_1.sm")
        assert member is not None
        path = tmp_path / "project.sm"
        path.write_bytes(member.read())
    instance = read_instance(path, deadline=1.2)
    (process,) = instance.processes
    assert len(process.tasks) == 32 and [each.name for each in instance.resources] == ["R1", "R2", "R3", "R4"]
    tight = read_instance(path).processes[0].deadline
    assert process.deadline == int(tight * 1.2 + 1e-9)
    heuristic, exact = plan(instance, rounds=20, windows=0), plan(instance, rounds=2)
    assert not faults(instance, heuristic.starts) and not faults(instance, exact.starts)
    assert heuristic.bound <= exact.bound == exact.cost <= heuristic.cost
    with pytest.raises(InputError, match="critical path"):
        read_instance(path, deadline=0.9)


def test_the_check_of_a_plan_sees_each_fault() -> None:
    tasks = (ProcessTask("a", 2, {"r": 1}), ProcessTask("b", 2, {"r": 1}, ("a",)))
    instance = Instance((Resource("r"),), (Process("p", 1, 6, tasks),))
    assert not faults(instance, {("p", "a"): 1, ("p", "b"): 3})
    assert faults(instance, {("p", "a"): 1, ("p", "b"): 2}) == ["p/b starts before a ends"]
    assert len(faults(instance, {("p", "a"): 0, ("p", "b"): 5})) == 2
    assert faults(instance, {("p", "b"): 3}) == ["p/a has no start"]
