"""Which GPUs of a node: pods lie close together, whole blocks stay whole, and a required island is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.cluster import columns as c
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.errors import StateError
from kant.model.event import JobFinished, JobStarted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.model.placement import MASK, Allocation
from kant.placement.devices import closest, idle_devices, left_around, lowest
from kant.placement.fits import capacity, tightest
from kant.placement.placer import Placer
from kant.testing import make_job, make_named_policy, submitted
from kant.testing.drawn import MODELS, Mould, draw_blocks, draw_demand, generator
from kant.testing.naive import pods_that_fit, wrong_with

SEEDS = st.integers(0, 10**6)
BLOCKS = [(1, 2, 4, 8), (2, 2, 4, 8), (4, 8, 8, 8), (1, 1, 8, 8), (3, 6, 6, 12), (2, 4, 4, 4), (1, 1, 1, 2)]
"""Sizes of the blocks of some nodes, and last their GPUs."""


def one_node(gpus: int = 8, nvlink: int = 0, numa: int = 0, nic: int = 0) -> ClusterState:
    return ClusterState(ClusterSpec("one", (Node("n0", gpus, nvlink=nvlink, numa=numa, nic=nic),)))


def hold(state: ClusterState, name: str, mask: int, milli: int = 1000) -> None:
    """A job of one pod that holds these devices of the only node."""
    count = mask.bit_count()
    state.apply(submitted(make_job(name, count, milli=milli), at=0))
    piece = [0, 1, mask, milli, 0, 0, count if milli == 1000 else 0, 0]
    state.apply(JobStarted(0, name, np.array([piece], dtype=np.int64)))


def place(state: ClusterState, job: Job, policy: str = "best-fit") -> Allocation | NoFit:
    placer = Placer(Snapshot(state), make_named_policy("placement", policy), 0)
    result = placer.place(state.shapes.of(job))
    placer.trial.rollback(0)
    assert placer.snapshot.table.tolist() == state.table.tolist()
    return result


def devices_for(state: ClusterState, gpus: int, **fields: int) -> list[int]:
    """The devices that a job of one pod gets."""
    result = place(state, make_job("j", gpus, **fields))  # type: ignore[arg-type]
    assert not isinstance(result, NoFit)
    return [device for device in range(62) if int(result[0, MASK]) >> device & 1]


# --- properties ---------------------------------------------------------------------------------------------------


def drawn_state(seed: int) -> tuple[ClusterState, Demand]:
    """A node with blocks, of which some is taken, and a demand."""
    draw = generator(seed)
    node = replace(draw_blocks(draw, Node("n0", int(draw.choice([1, 2, 4, 8, 8, 8])), MODELS[0])), mig="")
    state = ClusterState(ClusterSpec("one", (node,)))
    for device in range(node.gpus):
        if draw.integers(2):
            hold(state, f"on{device}", 1 << device, int(draw.choice([1000, 1000, 500, 300])))
    return state, draw_demand(draw, Mould(shares_of_several=True, islands=True))


@given(SEEDS)
def test_a_node_takes_as_many_pods_as_it_says_one_after_the_other_and_no_device_twice(seed: int) -> None:
    state, demand = drawn_state(seed)
    job = Job("j", 0, (PodGroup(1, demand),))
    row = state.shapes.of(job).parts[0][1]
    table, demands = state.table.copy(), state.shapes.demands
    takes = capacity(table, 0, demands, row)
    assert takes == pods_that_fit(state.spec.nodes[0], state.table[0], demand)
    if takes:
        compiled = place(state, job)
        assert not isinstance(compiled, NoFit)
        assert compiled[0, MASK] == tightest(state.table, 0, demands, row)
    for left in range(min(takes, 50), 0, -1):
        assert capacity(table, 0, demands, row) >= left
        tag = 0 if demand.milli < 1000 else demand.gpus or -1
        pieces = np.array([[0, 1, tightest(table, 0, demands, row), demand.milli if demand.gpus else 0,
                            demand.cpu, demand.memory, tag, 0, 0]])  # fmt: skip
        assert not wrong_with(state.spec, table, job, pieces)
        c.take_piece(table, pieces[0], c.NO_DEMANDS)
    assert takes > 50 or capacity(table, 0, demands, row) == 0


def idle_in_blocks(idle: int, size: int, gpus: int) -> list[int]:
    return [(idle >> first & (1 << size) - 1).bit_count() for first in range(0, gpus, size)]


@given(st.sampled_from(BLOCKS), st.integers(0, 2**12 - 1), st.integers(1, 12))
def test_whole_gpus_lie_in_the_narrowest_block_that_holds_them_the_fullest_of_these(
    sizes: tuple[int, ...], taken: int, wanted: int
) -> None:
    *blocks, gpus = sizes
    idle = ~taken & (1 << gpus) - 1
    wanted = min(wanted, idle.bit_count())
    if not wanted:
        return
    table = np.zeros((1, c.DEVICES + 3 * gpus + 1), dtype=np.int64)
    table[0, c.GPUS] = gpus
    table[0, c.BLOCKS : c.BLOCKS + 3] = blocks
    mask = int(closest(table, 0, idle, wanted))
    assert mask & ~idle == 0
    assert mask.bit_count() == wanted
    narrowest = min(size for size in sizes if max(idle_in_blocks(idle, size, gpus)) >= wanted)
    (own,) = (i for i, devices in enumerate(idle_in_blocks(mask, narrowest, gpus)) if devices)
    left = idle_in_blocks(idle, narrowest, gpus)
    assert left[own] == min(devices for devices in left if devices >= wanted)
    inside = idle & ((1 << narrowest) - 1) << own * narrowest
    below = max((size for size in sizes if size < narrowest), default=0)
    if below:  # no block of it holds them all: the fewest do together
        most_first = sorted(idle_in_blocks(inside, below, gpus), reverse=True)
        fewest = next(n for n in range(1, gpus + 1) if sum(most_first[:n]) >= wanted)
        assert sum(1 for devices in idle_in_blocks(mask, below, gpus) if devices) == fewest


@given(st.integers(0, 255), st.integers(1, 8), st.sampled_from((1000, 500, 300)))
def test_without_blocks_the_fullest_devices_come_first_and_then_the_lowest(taken: int, gpus: int, milli: int) -> None:
    state = one_node()
    hold(state, "there", taken, 500) if taken else None
    demand = Demand(1 if milli < 1000 else gpus, milli)
    row = state.shapes.of(Job("j", 0, (PodGroup(1, demand),))).parts[0][1]
    free = state.table[0, c.DEVICES : c.DEVICES + 8].tolist()
    fitting = sorted((free[device], device) for device in range(8) if free[device] >= milli)[: demand.gpus]
    if len(fitting) == demand.gpus:
        mask = tightest(state.table, 0, state.shapes.demands, row)
        assert mask == sum(1 << device for _, device in fitting)


@pytest.mark.parametrize("policy", ["best-fit", "e-binpack", "fgd", "random", "consolidated"])
@given(seed=SEEDS)
@settings(max_examples=examples(15))
def test_a_required_island_is_kept_under_every_placement(policy: str, seed: int) -> None:
    draw = generator(seed)
    nodes = tuple(replace(draw_blocks(draw, Node(f"n{i}", 8, leaf=f"leaf{i // 2}")), mig="") for i in range(3))
    state = ClusterState(ClusterSpec("drawn", nodes))
    for number in range(12):
        groups = tuple(
            PodGroup(int(draw.integers(1, 4)), draw_demand(draw, Mould(islands=True)))
            for _ in range(int(draw.integers(1, 3)))
        )
        job = Job(f"j{number}", 0, groups)
        state.apply(submitted(job))
        result = place(state, job, policy)
        if isinstance(result, NoFit):
            continue
        assert not wrong_with(state.spec, state.table, job, result)
        state.apply(JobStarted(0, job.id, result))
        state.check()
        if draw.integers(3) == 0:
            state.apply(JobFinished(0, job.id))


# --- examples -----------------------------------------------------------------------------------------------------


def test_four_gpus_take_a_whole_island_and_leave_the_other_whole() -> None:
    state = one_node(nvlink=4)
    hold(state, "there", 0b0000_0100)
    assert devices_for(state, 4) == [4, 5, 6, 7]
    assert devices_for(state, 2) == [0, 1]
    assert devices_for(state, 1) == [0]
    assert devices_for(one_node(nvlink=4), 4) == [0, 1, 2, 3]


def test_a_pod_too_large_for_a_block_takes_the_fewest() -> None:
    state = one_node(numa=4, nic=2)
    hold(state, "there", 0b0001_0001)
    assert devices_for(state, 2) == [2, 3]  # a pair that is whole, in the first NUMA node on ties
    assert devices_for(state, 4) == [1, 2, 3, 5]  # all that one NUMA node has, and of the other the broken pair
    assert devices_for(state, 3) == [1, 2, 3]


def test_shares_break_no_further_block() -> None:
    state = one_node(nvlink=4)
    hold(state, "there", 0b0010_0000)
    assert devices_for(state, 1, milli=500) == [4]
    hold(state, "half", 0b0000_0001, 500)
    hold(state, "other", 0b0001_0000, 500)
    assert devices_for(state, 1, milli=500) == [4]  # as full as device 0, in the island that has less left


def test_a_job_that_must_have_one_island_waits_for_one() -> None:
    state = one_node(nvlink=4)
    hold(state, "there", 0b0001_0001)
    assert devices_for(state, 4) == [1, 2, 3, 5]
    assert place(state, make_job("j", 4, island=True)) == NoFit(0, 1, 0)
    assert place(state, make_job("k", 3, 3, island=True)) == NoFit(0, 3, 2)


def test_shares_of_several_gpus_of_one_island() -> None:
    state = one_node(nvlink=2, gpus=4)
    hold(state, "there", 0b0101, 700)
    assert place(state, make_job("j", 2, 5, milli=300, island=True)) == NoFit(0, 5, 2)


def test_an_allocation_that_breaks_an_island_does_not_pass_the_check() -> None:
    state = one_node(nvlink=4)
    state.apply(submitted(make_job("j", 2, island=True), at=0))
    state.apply(JobStarted(0, "j", np.array([[0, 1, 0b11000, 1000, 0, 0, 2, 0, 0]], dtype=np.int64)))
    with pytest.raises(StateError, match="one NVLink island"):
        state.check()


@pytest.mark.parametrize("blocks", [{"nvlink": 3}, {"nvlink": 16}, {"numa": 4, "nic": 8, "nvlink": 5}, {"nic": -1}])
def test_blocks_divide_each_other_and_the_node(blocks: dict[str, int]) -> None:
    with pytest.raises(StateError, match="blocks of GPUs"):
        ClusterState(ClusterSpec("one", (Node("n0", 8, **blocks),)))


def test_around_a_device_the_narrowest_block_counts_most() -> None:
    state = one_node(numa=4, nic=2)
    assert left_around(state.table, 0, 0b1111_0110, 0, 0) == (1 * 64 + 2) * 64 + 6
    assert left_around(state.table, 0, 0b1111_0110, 4, 1) == 4 * 64 + 6


def splits(close: bool, seed: int) -> int:
    """How many of a thousand pods of 1, 2 and 4 GPUs, which come and go on one node, lie in two islands.

    The node has two islands of 4 GPUs. Without `close` a pod gets the lowest idle devices.
    """
    state, draw, split = one_node(nvlink=4), generator(seed), 0
    table, held = state.table, []
    for _ in range(1000):
        gpus = int(draw.choice([1, 1, 2, 2, 4]))
        while table[0, c.IDLE] < gpus or (held and draw.integers(3) == 0):
            c.give_piece(table, held.pop(int(draw.integers(len(held)))), c.NO_DEMANDS)
        idle = idle_devices(table, 0)
        mask = int(closest(table, 0, idle, gpus) if close else lowest(idle, gpus))
        held.append(np.array([0, 1, mask, 1000, 0, 0, gpus, 0, 0], dtype=np.int64))
        c.take_piece(table, held[-1], c.NO_DEMANDS)
        split += bool(mask & 0x0F and mask & 0xF0)
    return split


def test_a_mix_of_small_pods_is_split_over_islands_far_less_often() -> None:
    for seed in range(3):
        assert splits(close=True, seed=seed) * 3 < splits(close=False, seed=seed), seed
