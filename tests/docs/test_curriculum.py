"""The example plug-in of reasoning trees: its scores against every set of edits, and trees that cost others nothing."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.docs.test_examples import forget
from tests.examples import examples

import kant
from kant.model.decision import Preempt, Start
from kant.model.errors import InputError
from kant.model.event import JobPreempted, JobStarted, QueuesChanged
from kant.model.job import Demand, Job, PodGroup
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.scheduler.cycle import Scheduler
from kant.testing.builders import submitted
from kant.workload.cluster_file import read_cluster

PLUG_IN = Path(__file__).parents[2] / "examples" / "curriculum"


def module(name: str) -> ModuleType:
    sys.path.insert(0, str(PLUG_IN))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(PLUG_IN))


CURRICULUM: Any = module("kant_curriculum")
TREES: Any = module("kant_trees")
SHAPES = [(2, 3), (3, 2), (2, 2)]


@st.composite
def marked(draw: st.DrawFn) -> tuple[Any, list[float]]:
    shape = CURRICULUM.Shape(*draw(st.sampled_from(SHAPES)))
    return shape, draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=shape.leaves, max_size=shape.leaves))


def value(tree: list[float], k: int, edits: dict[tuple[int, int], int], level: int = 0, node: int = 0) -> float:
    """The accuracy below a node whose marks are `tree`, where some decisions always take one branch."""
    if len(tree) == 1:
        return tree[0]
    part = len(tree) // k
    below = [value(tree[c * part : (c + 1) * part], k, edits, level + 1, node * k + c) for c in range(k)]
    return below[edits[level, node]] if (level, node) in edits else sum(below) / k


@given(marked(), st.integers(0, 3))
@settings(max_examples=examples(30), deadline=None)
def test_the_exact_score_is_the_best_of_all_sets_of_edits(case: tuple[Any, list[float]], edits: int) -> None:
    shape, tree = case
    nodes = [(level, node) for level in range(shape.d) for node in range(shape.k**level)]
    best = max(
        value(tree, shape.k, dict(zip(chosen, branches, strict=True)))
        for size in range(min(edits, len(nodes)) + 1)
        for chosen in combinations(nodes, size)
        for branches in product(range(shape.k), repeat=size)
    )
    assert CURRICULUM.exact(np.array(tree), edits, shape)[0] == pytest.approx(best - sum(tree) / len(tree))


@given(marked(), st.integers(1, 4))
@settings(max_examples=examples(30), deadline=None)
def test_the_published_score_takes_gains_that_do_not_rule_each_other_out(
    case: tuple[Any, list[float]], most: int
) -> None:
    """By sets of leaves: a decision is ruled out where another one cuts all of its leaves off."""
    shape, tree = case
    found = []
    for level, node in [(up, at) for up in range(shape.d) for at in range(shape.k**up)]:
        width = shape.k ** (shape.d - level)
        own = range(node * width, (node + 1) * width)
        parts = [own[c * width // shape.k : (c + 1) * width // shape.k] for c in range(shape.k)]
        best = max(range(shape.k), key=lambda c: (sum(tree[leaf] for leaf in parts[c]), -c))
        cut = set(own) - set(parts[best])
        left = [mark for leaf, mark in enumerate(tree) if leaf not in cut]
        found.append((sum(left) / len(left) - sum(tree) / len(tree), level, node, set(own), cut))
    total, taken = 0.0, list[Any]()
    for gain, _, _, own, cut in sorted(found, key=lambda each: (-round(each[0], 12), -each[1], -each[2])):
        if gain > 1e-12 and len(taken) < most and not any(own <= c or o <= cut for o, c in taken):
            taken.append((own, cut))
            total += gain
    assert CURRICULUM.greedy(np.array(tree), most, shape)[0] == pytest.approx(total)


def test_the_score_says_what_training_gains_and_accuracy_does_not() -> None:
    rng = np.random.default_rng(3)
    marks = CURRICULUM.draw(200, rng)
    (after,) = CURRICULUM.gains(np.repeat(marks, 6, axis=0), (10,), rng)
    gain = after.reshape(200, 6).mean(axis=1)

    def agrees(score: Any) -> float:
        return float(np.corrcoef(CURRICULUM.ranked(score), CURRICULUM.ranked(gain))[0, 1])

    for score in (CURRICULUM.exact(marks, CURRICULUM.edits_for(10)), CURRICULUM.greedy(marks)):
        assert agrees(score) >= 0.9
        assert gain[np.argsort(-score)[:66]].mean() >= 1.4 * gain.mean()
    assert agrees(marks.mean(axis=1)) < 0.1
    assert [CURRICULUM.edits_for(n) for n in (1, 10, 11, 20, 21)] == [1, 1, 2, 2, 3]


@given(st.lists(st.integers(0, 5), min_size=2, max_size=9), st.floats(0, 1), st.sampled_from(["linear", "sigmoid"]))
@settings(max_examples=examples(40))
def test_weights_go_from_the_easy_to_the_hard(scores: list[int], done: float, law: str) -> None:
    now = CURRICULUM.weights(np.array(scores, float), done, law=law)
    assert (now >= 0.5).all() and (now <= 2).all()
    better = np.subtract.outer(scores, scores) > 0
    gaps = np.subtract.outer(now, now)[better]
    assert (gaps >= -1e-9).all() if done <= 0.5 else (gaps <= 1e-9).all()
    assert now + CURRICULUM.weights(np.array(scores, float), 1 - done, law=law) == pytest.approx(2.5)


def test_orders_of_trees_become_jobs_that_may_be_stopped(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("from_h,queries,tree_s,batch\n2,100,38,48\n0,5,10,\n")
    jobs = TREES.parse(path).jobs
    assert jobs.submit.tolist() == [2 * 3600 * 10**6] * 3 + [0]
    assert (jobs.runtime // 10**6).tolist() == [48 * 38, 48 * 38, 4 * 38, 50]
    assert set(jobs.priority.tolist()) == {-1}
    path.write_text("from_h,queries,tree_s\n2,0,38\n")
    with pytest.raises(InputError, match="queries: expected a whole number from 1"):
        TREES.parse(path)


@pytest.fixture
def fill_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[kant.Profile]:
    """The profile of the plug-in, with the plug-in on the path as an installer leaves it."""
    about = tmp_path / "kant_curriculum-1.dist-info"
    about.mkdir()
    project = tomllib.loads((PLUG_IN / "pyproject.toml").read_text())["project"]
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
    points = project["entry-points"]["kant.policies"]
    (about / "entry_points.txt").write_text(
        "[kant.policies]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(PLUG_IN)
    forget()
    yield kant.Profile.read(PLUG_IN / "fill.toml")
    monkeypatch.undo()
    forget()


@pytest.mark.long
@pytest.mark.parametrize(("queries", "row", "days"), [(17_000, "seren", 2), (150_000, "seren", 1)])
def test_trees_in_gaps_cost_others_nothing(fill_profile: kant.Profile, queries: int, row: str, days: int) -> None:
    """Also where late gangs preempt others and move them, and where fillers take every GPU that is left."""
    jobs = kant.Workload.generate(row, gpus=64, load=1.1, days=days, seed=1)
    found = TREES.fill(jobs, "8x8", fill_profile, days, queries)
    assert found.moved == 0 and found.delay_s == 0 and found.others > 50 and found.stops > 50
    if queries < 100_000:
        built = 355 * TREES.BATCH * TREES.TREE_S / (64 * days * 86400)
        assert found.used - found.used_alone == pytest.approx(built, rel=1e-6)
        assert found.trees == 355 * TREES.BATCH - found.stops
    else:
        assert found.used == pytest.approx(1.0)


def test_others_stop_and_move_each_other_as_without_fillers(fill_profile: kant.Profile) -> None:
    """A queue reclaims a node from a job that borrows, and that job goes on where it fits."""
    state = fill_profile.inner.new_state(read_cluster("2x8"))
    quotas = {"mine": 12_000, "lent": 0, "spare": 4000}
    queues = [Queue(name, parent="pool", quotas=(Quota(nominal=milli),)) for name, milli in quotas.items()]
    state.apply(QueuesChanged(0, QueueConfig((Queue("pool"), *queues))))
    for name, queue, gpus, priority in (
        ("l", "lent", 4, 0),
        ("k", "mine", 4, 0),
        ("m", "mine", 8, 0),
        ("f", "spare", 8, -1),
    ):
        state.apply(submitted(Job(name, 0, (PodGroup(1, Demand(gpus)),), queue=queue, priority=priority)))
    for node, name in enumerate("lk"):
        state.apply(JobStarted(0, name, np.array([[node, 1, 15, 1000, 0, 0, 0, 0, 0]])))
    plan = Scheduler(state, fill_profile.inner).cycle(10**9)
    assert [(type(each), each.job) for each in plan.decisions if isinstance(each, Preempt | Start)] == [
        (Preempt, "l"), (Start, "m"), (Start, "l"),
    ]  # fmt: skip
    assert isinstance(plan.decisions[0], Preempt) and plan.decisions[0].moved


def test_fillers_start_last(fill_profile: kant.Profile) -> None:
    """In one plan: a gang takes the place of the fillers there and nobody else's; the other filler stays."""
    state = fill_profile.inner.new_state(read_cluster("2x8"))
    scheduler = Scheduler(state, fill_profile.inner)

    def submit(name: str, gpus: int, priority: int) -> None:
        state.apply(submitted(Job(name, state.now, (PodGroup(1, Demand(gpus)),), priority=priority)))

    def cycle(now: int) -> Any:
        plan = scheduler.cycle(now)
        for decision in plan.decisions:
            if isinstance(decision, Start):
                state.apply(JobStarted(now, decision.job, decision.allocation))
            elif isinstance(decision, Preempt):
                state.apply(JobPreempted(now, decision.job, 0, decision.moved, decision.by))
        return plan

    for name in ("f0", "f1"):
        submit(name, 8, -1)
    assert [decision.job for decision in cycle(0).decisions] == ["f0", "f1"]
    submit("a", 4, 0)
    submit("f2", 4, -1)
    plan = cycle(0)
    stopped, kept = plan.decisions[0].job, {"f0": "f1", "f1": "f0"}[plan.decisions[0].job]
    assert [(type(each), each.job) for each in plan.decisions[:3]] == [
        (Preempt, stopped), (Start, "a"), (Start, "f2"),
    ]  # fmt: skip
    assert state.row_of(kept) in state.running and state.row_of(stopped) in state.pending
    submit("b", 9, 0)  # fits nowhere: nothing is stopped for it
    submit("c", 8, 0)
    assert {(type(each), each.job) for each in cycle(1).decisions} >= {(Preempt, kept), (Start, "c")}
    submit("d", 8, 0)
    assert not any(isinstance(each, Preempt | Start) for each in cycle(2).decisions)


def test_a_filler_reclaims_nothing(fill_profile: kant.Profile) -> None:
    """Not even where its queue has quota and the job that runs borrows."""
    state = fill_profile.inner.new_state(read_cluster("1x8"))
    queues = (
        Queue("pool"),
        Queue("fills", parent="pool", quotas=(Quota(nominal=8000),)),
        Queue("jobs", parent="pool", quotas=(Quota(),)),
    )
    state.apply(QueuesChanged(0, QueueConfig(queues)))
    scheduler = Scheduler(state, fill_profile.inner)
    state.apply(submitted(Job("a", 0, (PodGroup(1, Demand(8)),), queue="jobs")))
    (start,) = scheduler.cycle(0).decisions
    assert isinstance(start, Start)
    state.apply(JobStarted(0, "a", start.allocation))
    state.apply(submitted(Job("f", 0, (PodGroup(1, Demand(8)),), queue="fills", priority=-1)))
    assert not any(isinstance(each, Preempt | Start) for each in scheduler.cycle(10**9).decisions)
