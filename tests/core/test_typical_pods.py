"""The typical pods are learned from the stream of submissions, which fades."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from kant.cluster.state import ClusterState
from kant.cluster.typical import FIRST, MOST, PERIOD
from kant.model.event import JobCancelled, TypicalPodsGiven
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.testing.builders import submitted

CLUSTER = ClusterSpec("four", tuple(Node(f"n{i}", 8, cpu=96_000) for i in range(4)))
DEMANDS = st.sampled_from([Demand(1), Demand(8, 1000, 4000), Demand(1, 300), Demand(0, 1000, 500)])


def job(number: int, demand: Demand, pods: int = 1) -> Job:
    return Job(f"j{number}", number, (PodGroup(pods, demand),))


def after(jobs: list[Job]) -> ClusterState:
    """A state to which these jobs were submitted, and none of them is left."""
    state = ClusterState(CLUSTER)
    for each in jobs:
        state.apply(submitted(each))
        state.apply(JobCancelled(each.submit, each.id))
    return state


@given(st.lists(DEMANDS, max_size=200))
def test_the_typical_pods_are_those_that_were_submitted(demands: list[Demand]) -> None:
    state = after([job(i, demand) for i, demand in enumerate(demands)])
    if len(demands) < FIRST:
        assert len(state.typical_pods) == 0
        return
    known = 1 << (len(demands).bit_length() - 1)  # it is looked at anew each time that their number has doubled
    asked = [(d.cpu, d.gpus, d.milli if d.gpus else 0) for d in demands[:known]]
    counts = {kind: asked.count(kind) for kind in set(asked)}
    found = {tuple(row[:3]): row[4] for row in state.typical_pods.tolist()}
    assert found.items() <= counts.items()
    assert sum(found.values()) >= 0.95 * known
    assert min(found.values()) >= max((count for kind, count in counts.items() if kind not in found), default=0)


@given(st.lists(st.tuples(DEMANDS, st.sampled_from([-1, 0])), min_size=40, max_size=200))
def test_jobs_of_negative_priority_are_not_typical(drawn: list[tuple[Demand, int]]) -> None:
    jobs = [structs.replace(job(i, demand), priority=priority) for i, (demand, priority) in enumerate(drawn)]
    others = after([each for each in jobs if each.priority >= 0])
    assert np.array_equal(after(jobs).typical_pods, others.typical_pods)


@given(st.integers(0, 90), st.integers(0, 60))
def test_it_says_how_many_more_jobs_change_nothing(seen: int, unseen: int) -> None:
    jobs = [job(i, Demand(1, 1000, i)) for i in range(200)]
    state = after(jobs[:seen])
    known = state.typical_pods
    for each in jobs[seen : seen + unseen]:
        state.apply(submitted(each))
    more = state.typical.steady_for(seen + unseen)
    if more < 0:  # they are others already
        assert state.typical_pods is not known
        return
    for at, each in enumerate(jobs[seen + unseen : seen + unseen + more + 1], 1):
        state.apply(submitted(each))
        assert (state.typical_pods is known) == (at <= more)


def test_the_past_fades_and_what_is_kept_is_bounded() -> None:
    old = [job(i, Demand(1, 100, i)) for i in range(PERIOD)]  # as many kinds as jobs
    new = [job(PERIOD + i, Demand(2), 3) for i in range(2 * PERIOD)]
    state = after(old)
    assert len(state.typical_pods) == MOST
    assert len(state.typical._pods) == 0  # each counted once, and half of one is none
    for each in new:
        state.apply(submitted(each))
        state.apply(JobCancelled(each.submit, each.id))
    assert state.typical_pods[:, 1].tolist() == [2]


def test_what_is_told_stands_over_what_is_learned() -> None:
    state = after([job(i, Demand(1)) for i in range(FIRST)])
    rows = np.array([(0, 8, 1000, 1, 1)], dtype=np.int64)
    state.apply(TypicalPodsGiven(state.now, rows))
    assert np.array_equal(state.typical_pods, rows)
