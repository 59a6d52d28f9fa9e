"""Lost devices on nodes whose GPUs stand in blocks, or are cut into MIG instances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.event import DevicesChanged
from kant.model.job import Demand, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK
from kant.placement.fits import capacity
from kant.placement.placer import Placer
from kant.testing import make_job, make_named_policy

DEMANDS = (
    Demand(1), Demand(2), Demand(4), Demand(2, island=True), Demand(4, island=True), Demand(1, 400), Demand(2, 300),
    Demand(2, 300, island=True),
)  # fmt: skip


def placed(state: ClusterState, demand: Demand) -> tuple[int, list[int]]:
    """How many pods a node says that it takes, and the devices of those that it took one by one."""
    shape = state.shapes.of(make_job("j", groups=(PodGroup(1, demand),)))
    placer = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0)
    says = capacity(state.table, 0, state.shapes.demands, shape.parts[0][1])
    masks: list[int] = []
    while not isinstance(found := placer.place(shape), NoFit):
        masks.append(int(found[0, MASK]))
    return int(says), masks


@given(st.integers(0, 255), st.sampled_from(DEMANDS), st.sampled_from(((0, 0), (4, 2), (2, 1), (4, 4))))
def test_what_is_left_of_a_node_is_used_and_nothing_of_what_is_lost(
    lost: int, demand: Demand, blocks: tuple[int, int]
) -> None:
    spec = ClusterSpec("one", (Node("n", 8, nvlink=blocks[0], nic=blocks[1]),))
    state = ClusterState(spec)
    state.apply(DevicesChanged(1, "n", lost))
    says, masks = placed(state, demand)
    assert len(masks) == says and not any(mask & lost for mask in masks)
    if demand.milli == 1000:
        size = spec.nodes[0].island if demand.island else 8
        parts = [sum(not lost >> i & 1 for i in range(first, first + size)) for first in range(0, 8, size)]
        assert says == sum(part // demand.gpus for part in parts)


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_no_instance_is_cut_from_a_gpu_that_is_lost(lost: int) -> None:
    state = ClusterState(ClusterSpec("one", (Node("n", 2, mig="a30-24gb"),)))
    state.apply(DevicesChanged(1, "n", lost))
    says, masks = placed(state, Demand(1, 250, mig="1g.6gb"))
    assert says == len(masks) == 4 * (2 - lost.bit_count()) and not any(mask & lost for mask in masks)
    placer = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0)
    placer.calendar.lack(state.health.lost, 1)
    shape = state.shapes.of(make_job("j", groups=(PodGroup(1, Demand(1, 1000, mig="4g.24gb")),)))
    found = placer.calendar.earliest(shape, 100, 1)
    assert (found is None) == (lost == 3)
    assert found is None or not np.any(found[1][:, MASK] & lost)
    assert state.table[0, c.GPUS] == 2 - lost.bit_count()


def test_a_node_without_gpus_has_no_room_for_pods_that_want_an_island() -> None:
    """Its row has a place for each device of the largest node."""
    state = ClusterState(ClusterSpec("two", (Node("none", 0, cpu=1000), Node("n", 2))))
    draft = Placer(Snapshot(state), make_named_policy("placement", "best-fit"), 0).draft()
    for demand, pods in ((Demand(1, island=True), 0), (Demand(0, cpu=500), 2)):
        shape = state.shapes.of(make_job("j", groups=(PodGroup(1, demand),)))
        assert capacity(draft.table, 0, state.shapes.demands, shape.parts[0][1]) == pods
