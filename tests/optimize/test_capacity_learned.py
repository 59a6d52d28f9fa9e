"""The learned order of insertion: its plans hold, its choice is the one that it says, and training repeats."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
from benchmarks.studies.capacity import changed
from benchmarks.studies.capacity_training import WEIGHTS, cost_by, train
from benchmarks.studies.judges import capacity_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples
from tests.optimize.test_capacity import instances

from kant.model.errors import InputError
from kant.optimize.capacity import kernels
from kant.optimize.capacity.file import instance_json
from kant.optimize.capacity.generate import generate
from kant.optimize.capacity.instance import Instance, Process, ProcessTask, Resource, unchanged
from kant.optimize.capacity.learned import LearnedInsertion, features
from kant.optimize.capacity.planning import planning_of
from kant.optimize.capacity.solve import plan, replan

ORDERS = st.builds(LearnedInsertion, **{name: st.floats(-3, 3) for name in WEIGHTS})


@given(instances(), ORDERS)
@settings(max_examples=examples(40))
def test_plans_in_any_learned_order_hold(instance: Instance, order: LearnedInsertion) -> None:
    planning = planning_of(instance)
    order.insert(planning)
    made = planning.plan()
    assert not faults(instance, made.starts)
    assert made.cost == planning.cost >= made.bound


@given(st.integers(0, 1000), ORDERS)
@settings(max_examples=examples(5))
def test_insertion_does_the_same_compiled_and_not(seed: int, order: LearnedInsertion) -> None:
    instance = generate(60, resources=2, seed=seed)
    one, two = planning_of(instance), planning_of(instance)
    order.insert(one)
    windows, known, shares = features(two.tasks, two.horizon)
    target = np.ceil(np.maximum(two.bounds * (1 + order.allowance), 0)).astype(np.int64)
    movable, weights = np.flatnonzero(two.movable).astype(np.int64), np.array(astuple(order)[:-1])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("choose", "insert", "cheapest", "price", "put", "overload_of"):
            patch.setattr(kernels, name, getattr(getattr(kernels, name), "py_func", getattr(kernels, name)))
        plain = getattr(kernels.insert_chosen, "py_func", kernels.insert_chosen)
        plain(two.tasks, movable, windows, known, shares, weights, two.starts, two.usage, target)
    assert (one.starts == two.starts).all() and (one.usage == two.usage).all()


def test_what_is_known_of_two_processes_that_share_a_window() -> None:
    long, short = ProcessTask("t", 2, {"g": 3}), ProcessTask("t", 1, {"g": 2})
    instance = Instance((Resource("g", 1),), (Process("a", 0, 3, (long,)), Process("b", 0, 3, (short,))))
    windows, known, shares = features(planning_of(instance).tasks, 3)
    assert windows.tolist() == [[0, 3], [0, 3]] and shares.tolist() == [[1.0], [1.0]]
    assert known[:, 0].tolist() == [1.5, 0.5] and known[:, 4].tolist() == [1.0, 1.0]
    first = LearnedInsertion(**dict.fromkeys(WEIGHTS, 0.0) | {"work": 1.0, "allowance": -1.0})
    assert plan(instance, rounds=0, windows=0, order=first).cost == 3


def test_an_order_that_looks_at_the_crowd_goes_where_it_is_full_first() -> None:
    """a is first by its number; then c, whose window it has filled, goes before b."""
    tasks = (ProcessTask("t", 4, {"g": 2}),)
    spans = ((0, 4), (10, 15), (0, 5))
    processes = tuple(Process(name, *span, tasks) for name, span in zip("abc", spans, strict=True))
    planning = planning_of(Instance((Resource("g", 1),), processes))
    windows, known, shares = features(planning.tasks, planning.horizon)
    filled = np.zeros((1, planning.horizon + 1))
    filled[0] = 2.0 * np.minimum(np.arange(planning.horizon + 1), 4)
    left, target = np.arange(3), np.array([2])
    for crowd, chosen in ((1.0, 2), (-1.0, 1)):
        weights = np.array([crowd, *[0.0] * (len(WEIGHTS) - 2)])
        choose = getattr(kernels.choose, "py_func", kernels.choose)
        assert choose(left, 1, windows, known, shares, weights, filled, target) == chosen


@given(st.integers(0, 1000))
@settings(max_examples=examples(3))
def test_a_new_plan_in_the_learned_order_moves_nothing_that_has_not_changed(seed: int) -> None:
    old = generate(100, seed=seed)
    new = changed(old, 0.2, seed)
    first = plan(old, rounds=2, windows=0, order=LearnedInsertion())
    second = replan(new, old, first.starts, rounds=2, order=LearnedInsertion())
    assert not faults(new, second.starts)
    same = unchanged(old, new)
    assert same and all(second.starts[key] == at for key, at in first.starts.items() if key[0] in same)


@pytest.mark.long
def test_training_repeats_and_judges_by_the_best_fixed_order() -> None:
    one, two = list(train([60], seed=3, generations=2)), list(train([60], seed=3, generations=2))
    assert one == two and [each.number for each in one] == [0, 1]
    assert next(train([60], seed=4, generations=1)) != one[0]
    with pytest.raises(InputError, match="at least one size"):
        next(train([]))


def test_a_cost_leaves_the_empty_plan_empty() -> None:
    empty = planning_of(generate(60, seed=1))
    cost = cost_by(LearnedInsertion().insert, empty)
    assert cost > 0 and not empty.usage.any() and cost_by(LearnedInsertion().insert, empty) == cost


@pytest.mark.long
def test_the_command_plans_in_the_learned_order(tmp_path: Path) -> None:
    path = tmp_path / "drawn.json"
    path.write_text(instance_json(generate(40, seed=2)))
    answer = kant("plan", "capacity", path, "--search", "learned", "--limit", "1s", "--json").json()
    assert answer["cost"] >= answer["bound"] > 0
    assert "learned" in kant("plan", "capacity", path, "--search", "best").refusal()
