"""Kant's placement: the typical pods are learned from the stream, and gaps are priced by what fits into them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.cluster.typical import FIRST, MOST, PERIOD
from kant.model.event import JobCancelled, MixObserved
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.placement.gap_prices import gap_prices
from kant.placement.placer import Placer
from kant.placement.policies.kant import Kant
from kant.testing.builders import submitted

CLUSTER = ClusterSpec("four", tuple(Node(f"n{i}", 8, cpu=96_000) for i in range(4)))
DEMANDS = st.sampled_from([Demand(1), Demand(8, 1000, 4000), Demand(1, 300), Demand(0, 1000, 500)])


def mix_of(shares: list[tuple[int, int, int]]) -> np.ndarray:
    """Typical pods of (thousandths, GPUs, weight)."""
    return np.array([(0, gpus, milli, 1, weight) for milli, gpus, weight in shares], dtype=np.int64).reshape(-1, 5)


MIXES = st.lists(st.tuples(st.integers(1, 999), st.integers(1, 4), st.integers(1, 10**6)), max_size=20).map(mix_of)


def job(number: int, demand: Demand, pods: int = 1) -> Job:
    return Job(f"j{number}", number, (PodGroup(pods, demand),))


def after(jobs: list[Job]) -> ClusterState:
    """A state to which these jobs were submitted, and none of them is left."""
    state = ClusterState(CLUSTER)
    for each in jobs:
        state.apply(submitted(each))
        state.apply(JobCancelled(each.submit, each.id))
    return state


@given(MIXES)
def test_gaps_are_worth_more_the_larger_they_are_and_no_packing_costs_more_than_a_gpu(mix: np.ndarray) -> None:
    worth = gap_prices(mix)
    assert worth[0] == 0 and worth[1000] == 1000
    assert (np.diff(worth) >= 0).all()
    for size in set(mix[:, 2].tolist()):
        for gap in range(size, 1001):
            # Filling a gap with one share and the rest of it as well as can be is one way to fill it.
            assert worth[gap] + 2 >= worth[gap - size] + worth[size]  # each is rounded down


def test_a_share_that_leaves_a_gap_for_nobody_costs_a_gpu_and_a_share_for_such_gaps_nothing() -> None:
    worth = gap_prices(mix_of([(810, 1, 100), (160, 1, 5), (500, 1, 40)]))
    assert worth[810] > 950 and worth[160] < 50 and 450 < worth[500] < 550


@given(st.lists(DEMANDS, max_size=200))
def test_the_typical_pods_are_those_that_were_submitted(demands: list[Demand]) -> None:
    state = after([job(i, demand) for i, demand in enumerate(demands)])
    if len(demands) < FIRST:
        assert len(state.mix) == 0
        return
    known = 1 << (len(demands).bit_length() - 1)  # it is looked at anew each time that their number has doubled
    asked = [(d.cpu, d.gpus, d.milli if d.gpus else 0) for d in demands[:known]]
    counts = {kind: asked.count(kind) for kind in set(asked)}
    found = {tuple(row[:3]): row[4] for row in state.mix.tolist()}
    assert found.items() <= counts.items()
    assert sum(found.values()) >= 0.95 * known
    assert min(found.values()) >= max((count for kind, count in counts.items() if kind not in found), default=0)


def test_the_past_fades_and_what_is_kept_is_bounded() -> None:
    old = [job(i, Demand(1, 100, i)) for i in range(PERIOD)]  # as many kinds as jobs
    new = [job(PERIOD + i, Demand(2), 3) for i in range(2 * PERIOD)]
    state = after(old)
    assert len(state.mix) == MOST
    assert len(state.typical._pods) == 0  # each counted once, and half of one is none
    for each in new:
        state.apply(submitted(each))
        state.apply(JobCancelled(each.submit, each.id))
    assert state.mix[:, 1].tolist() == [2]


def test_what_is_told_stands_over_what_is_learned() -> None:
    state = after([job(i, Demand(1)) for i in range(FIRST)])
    rows = np.array([(0, 8, 1000, 1, 1)], dtype=np.int64)
    state.apply(MixObserved(state.now, rows))
    assert np.array_equal(state.mix, rows)


def test_shares_are_put_together_that_fill_a_gpu() -> None:
    """A share of 300 leaves the tight gap to another 500, and begins a GPU that 700 fills."""
    state = ClusterState(ClusterSpec("one", (Node("n0", 4),)))
    state.apply(MixObserved(0, mix_of([(700, 1, 10), (300, 1, 10), (500, 1, 20)])))
    placer = Placer(Snapshot(state), Kant(), 0)

    def devices(milli: int) -> int:
        state.apply(submitted(job(len(state.ids), Demand(1, milli))))
        placed = placer.place(state.shape_of(len(state.ids) - 1))
        assert isinstance(placed, np.ndarray)
        return int(placed[0, 2])

    assert [devices(milli) for milli in (500, 300, 700, 500)] == [1, 2, 2, 1]
