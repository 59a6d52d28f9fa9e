"""What `kant pack` proves is true: everything here is checked against all assignments of a tiny cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.optimize.packings import every_assignment, fits, instances

from kant.model.errors import InputError
from kant.optimize.packing import paper, portfolio
from kant.optimize.packing.answer import PackingAnswer, pack
from kant.optimize.packing.counts import CountModel
from kant.optimize.packing.generate import generate
from kant.optimize.packing.instance import PackingInstance, PackingNode, PackingPod
from kant.optimize.packing.problem import Assignment, Problem
from kant.optimize.packing.relaxation import Relaxation
from kant.optimize.packing.steps import ordered


def disturbed(problem: Problem, found: Assignment) -> int:
    """Pods that ran and do not run where they did."""
    return sum(1 for old, new in zip(problem.current, found, strict=True) if old >= 0 and old != new)


def test_a_node_that_is_exactly_full_is_not_overfull() -> None:
    pods = (PackingPod("runs", {"gpu": 3}, node="n"), PackingPod("fits", {"gpu": 1}), PackingPod("more", {"gpu": 2}))
    problem = Problem(PackingInstance((PackingNode("n", {"gpu": 4}),), pods))
    assert problem.violations((0, 0, -1)) == []
    assert problem.violations((0, -1, 0)) == ["node n holds more than it has"]


@given(instances())
@settings(max_examples=examples(60), deadline=None)
def test_the_portfolio_finds_and_proves_the_best_of_all_assignments(instance: PackingInstance) -> None:
    problem = Problem(instance)
    found = portfolio.solve(problem, 1.0)
    everything = every_assignment(instance)
    assert fits(instance, found.assignment)
    best = max(problem.placed(one) for one in everything)
    assert problem.placed(found.assignment) == best == found.bounds
    least = min(disturbed(problem, one) for one in everything if problem.placed(one) == best)
    assert found.proven and disturbed(problem, found.assignment) == least == found.least


@given(instances(), st.sampled_from([0.01, 0.02, 0.05]))
@settings(max_examples=examples(40), deadline=None)
def test_what_is_claimed_without_a_proof_is_true_as_well(instance: PackingInstance, limit: float) -> None:
    problem = Problem(instance)
    found = portfolio.solve(problem, limit)
    everything = every_assignment(instance)
    placed = problem.placed(found.assignment)
    assert fits(instance, found.assignment) and placed >= problem.placed(problem.current)
    for t, bound in enumerate(found.bounds):
        above = [counts[t] for counts in map(problem.placed, everything) if _all_at_least(counts[:t], placed[:t])]
        assert bound >= max(above)
    as_many = [disturbed(problem, one) for one in everything if _all_at_least(problem.placed(one), placed)]
    assert found.least <= min(as_many)


def _all_at_least(counts: tuple[int, ...], least: tuple[int, ...]) -> bool:
    return all(have >= want for have, want in zip(counts, least, strict=True))


@given(instances())
@settings(max_examples=examples(60), deadline=None)
def test_the_published_model_finds_the_best_in_its_own_order(instance: PackingInstance) -> None:
    """Tier by tier: pods placed, then an eviction counted 1 and a move 2, among plans that place one who waits."""
    problem = Problem(instance)
    found = paper.solve(problem, 30.0)
    assert found.proven and fits(instance, found.assignment)
    running = [i for i, node in enumerate(problem.current) if node >= 0]
    waiting = [i for i, node in enumerate(problem.current) if node < 0]

    def value(one: Assignment) -> list[int]:
        levels: list[int] = []
        for t, count in enumerate(problem.placed(one)):
            mine = [i for i in running if problem.tier[i] <= t]
            cost = sum(0 if one[i] == problem.current[i] else 1 if one[i] < 0 else 2 for i in mine)
            levels += [count, -cost]
        return levels

    allowed = [one for one in every_assignment(instance) if any(one[i] >= 0 for i in waiting)]
    best = max(map(value, allowed), default=value(problem.current))
    expected = max(tuple(best[::2]), problem.placed(problem.current))
    assert problem.placed(found.assignment) == expected
    if found.assignment != problem.current:
        assert value(found.assignment) == best


@given(instances())
@settings(max_examples=examples(60), deadline=None)
def test_counting_bounds_are_never_below_what_can_be_placed(instance: PackingInstance) -> None:
    problem = Problem(instance)
    relaxation = Relaxation(problem)
    now = problem.placed(problem.current)
    for t in range(len(now)):
        bound, _ = relaxation.bound(t, now[:t], 1.0)
        counts = [problem.placed(one) for one in every_assignment(instance)]
        assert bound >= max(one[t] for one in counts if _all_at_least(one[:t], now[:t]))


@given(instances(nodes=3, pods=5), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_a_neighbourhood_changes_what_is_in_it_alone(instance: PackingInstance, data: st.DataObject) -> None:
    problem = Problem(instance)
    nodes = data.draw(st.sets(st.integers(0, len(instance.nodes) - 1), min_size=1))
    model = CountModel(problem, problem.current, sorted(nodes))
    model.model.maximize(sum(model.placed(k) for k in range(len(model.classes))))
    model.hint(problem.current)
    solver, status = model.solve(1.0)
    assert status == "OPTIMAL"
    found = model.decode(solver)
    assert fits(instance, found)
    for old, new in zip(problem.current, found, strict=True):
        assert old == new or {old, new} <= nodes | {-1}
    within = [
        one
        for one in every_assignment(instance)
        if all(a == b or {a, b} <= nodes | {-1} for a, b in zip(problem.current, one, strict=True))
    ]
    assert sum(n >= 0 for n in found) == max(sum(n >= 0 for n in one) for one in within)


@given(instances(), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_every_step_is_feasible_and_the_last_one_is_the_plan(instance: PackingInstance, data: st.DataObject) -> None:
    problem = Problem(instance)
    target = data.draw(st.sampled_from(every_assignment(instance)))
    carried_out = walk(instance, target, ordered(problem, target))
    assert carried_out == Counter(
        evict=len(problem.evicted(target)),
        moved=len(problem.moved(target)),
        start=sum(old < 0 <= new for old, new in zip(problem.current, target, strict=True)),
    )


def walk(instance: PackingInstance, target: Assignment, steps: list) -> Counter[str]:
    """Carry steps out with nothing but the words of the format; returns what happened to how many pods."""
    index = {pod.name: i for i, pod in enumerate(instance.pods)}
    nodes = {node.name: n for n, node in enumerate(instance.nodes)}
    now = [-1 if pod.node is None else nodes[pod.node] for pod in instance.pods]
    first = tuple(now)
    for step in steps:
        source = [instance.nodes[now[index[name]]].name for name in step.pods if now[index[name]] >= 0]
        assert source == list(step.source)
        goes = [nodes[name] for name in step.target] or [-1] * len(step.pods)
        assert (step.do in ("evict", "stop")) == (goes[0] == -1) and (step.do == "start") == (not source)
        for name, node in zip(step.pods, goes, strict=True):
            now[index[name]] = node
        assert fits(instance, tuple(now)), step
    assert tuple(now) == target
    both = list(zip(first, now, strict=True))
    return Counter(
        evict=sum(old >= 0 > new for old, new in both),
        moved=sum(old >= 0 and new >= 0 and old != new for old, new in both),
        start=sum(old < 0 <= new for old, new in both),
    )


def test_pods_that_wait_for_each_other_in_a_circle_are_stopped_and_come_back() -> None:
    nodes = (PackingNode("a", {"gpu": 4}), PackingNode("b", {"gpu": 4}))
    pods = (PackingPod("x", {"gpu": 3}, 1, "a"), PackingPod("y", {"gpu": 3}, 2, "b"))
    steps = ordered(Problem(PackingInstance(nodes, pods)), (1, 0))
    assert [(step.do, step.pods) for step in steps] == [("stop", ("x",)), ("move", ("y",)), ("start", ("x",))]


def test_the_answer_is_the_same_each_time_and_counts_what_it_says() -> None:
    instance = generate(6, 4, 2, 1.0, 3)
    answer = pack(instance, limit=0.1)
    assert answer == pack(instance, limit=0.1)
    assert isinstance(answer, PackingAnswer) and answer.moved + answer.evicted == answer.disturbed
    placed = Counter(pod.priority for pod in instance.pods if answer.placements[pod.name] is not None)
    assert [placed[row.priority] for row in answer.priorities] == [row.after for row in answer.priorities]
    assert sum(row.after for row in answer.priorities) > sum(row.before for row in answer.priorities)
    nodes = {node.name: n for n, node in enumerate(instance.nodes)}
    target = tuple(-1 if node is None else nodes[node] for node in answer.placements.values())
    problem = Problem(instance)
    assert not problem.violations(target)
    walk(instance, target, list(answer.steps))


@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.9, 1.0, 1.05]), st.integers(0, 99))
@settings(max_examples=examples(30), deadline=None)
def test_generated_instances_keep_the_published_rules(n: int, each: int, tiers: int, util: float, seed: int) -> None:
    instance = generate(n, each, tiers, util, seed)
    assert instance == generate(n, each, tiers, util, seed)
    assert len(instance.nodes) == n and len(instance.pods) == n * each
    assert len({tuple(node.resources.items()) for node in instance.nodes}) == 1
    sets = Counter(pod.name.split("-")[0] for pod in instance.pods)
    assert max(sets.values()) <= 4
    for resource, size in instance.nodes[0].resources.items():
        asked = [pod.requests[resource] for pod in instance.pods]
        assert all(100 <= amount <= 1000 for amount in asked) and size >= max(asked)
        assert size == max(asked) or util * n * size >= sum(asked) > util * n * (size - 2)
    problem = Problem(instance)
    assert not problem.violations(problem.current)
    for i, node in enumerate(problem.current):  # the default scheduler leaves nobody waiting who fits
        free = problem.free(problem.current)
        assert node >= 0 or not any(all(a <= b for a, b in zip(problem.request[i], left, strict=True)) for left in free)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"model": "best"}, "--model: expected paper or portfolio"), ({"limit": 0.0}, "--limit: expected a time from")],
)
def test_what_cannot_be_asked_is_said(options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pack(generate(1, 1, 1, 1.0, 0), **options)
