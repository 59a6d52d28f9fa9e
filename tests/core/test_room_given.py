"""`room_given`: what jobs that stop make room for is never more than the bound from their columns says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_apart import start

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.job import Demand, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.placement.placer import Placer
from kant.queueing.room_given import UNBOUNDED, room_given
from kant.testing import make_group, make_job, make_named_policy
from kant.testing.strategies import clusters, demands, groups

holding = st.lists(groups(2) | demands(shares_of_several=True).map(lambda one: (PodGroup(1, one),)), max_size=10)


@given(clusters(), holding, demands(), st.integers(1, 40), st.data())
def test_no_more_pods_fit_than_the_bound_says(
    spec: ClusterSpec, running: list[tuple[PodGroup, ...]], demand: Demand, pods: int, data: st.DataObject
) -> None:
    state = ClusterState(spec)
    for number, own in enumerate(running):
        job = make_job(f"r{number}", groups=own)
        if Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0).missing(state.shapes.of(job)) == 0:
            start(state, job)
    shape = state.shapes.of(make_job("j", groups=(PodGroup(pods, demand),)))
    placer = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    missing, rows = placer.missing(shape), sorted(state.running)
    gone = [row for row in rows if data.draw(st.booleans())]
    for row in gone:
        placer.trial.evict(state.running[row])
    assert missing - placer.missing(shape) <= room_given(state, shape, gone)


@pytest.mark.parametrize(
    ("asked", "bound"),
    [
        (make_group(1, 99), 8),  # as many as the GPUs of both
        (make_group(3, 99), 4),  # ceil(6 / 3) of one node and two of the pods of one GPU
        (make_group(8, 99), 3),  # each pod may have kept one node from being whole
        (make_group(1, 99, cpu=1), 24),  # each pod may have held the CPU of a node
        (make_group(1, 99, milli=500), UNBOUNDED),
        (make_group(0, 99), UNBOUNDED),
    ],
)
def test_the_bound_of_two_jobs(asked: PodGroup, bound: int) -> None:
    state = ClusterState(ClusterSpec("two", tuple(Node(f"n{i}", 8) for i in range(4))))
    start(state, make_job("a", groups=(make_group(6),)))
    start(state, make_job("b", groups=(make_group(1, 2),)))
    assert room_given(state, state.shapes.of(make_job("j", groups=(asked,))), [0, 1]) == bound


def test_a_share_of_several_gpus_makes_room_on_each_of_them() -> None:
    state = ClusterState(ClusterSpec("one", (Node("n", 3),)))
    start(state, make_job("wide", groups=(make_group(3, milli=500),)))
    shape = state.shapes.of(make_job("j", groups=(make_group(1, 3),)))
    placer = Placer(Snapshot(state), make_named_policy("placement", "kant"), 0)
    assert placer.missing(shape) == 3
    placer.trial.evict(state.running[0])
    assert placer.missing(shape) == 0 and room_given(state, shape, [0]) >= 3
