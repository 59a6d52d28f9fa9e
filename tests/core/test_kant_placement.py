"""Kant's placement: gaps are priced by what fits into them, holes are filled exactly, leaves are kept whole, and rare
models are left to the pods that are bound to them.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.columns import CPU, DEVICES, GPUS, POOL
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.event import JobStarted, TypicalPodsGiven
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.placement.cost.claims import node_claims
from kant.placement.cost.gap_prices import gap_prices
from kant.placement.placer import Placer
from kant.placement.policies.kant import Kant
from kant.testing.builders import submitted

Shares = list[tuple[int, int, int]]


def mix_of(shares: Shares) -> np.ndarray:
    """Typical pods of (thousandths, GPUs, weight)."""
    return np.array([(0, gpus, milli, 1, weight) for milli, gpus, weight in shares], dtype=np.int64).reshape(-1, 5)


MIXES = st.lists(st.tuples(st.integers(1, 999), st.integers(1, 4), st.integers(1, 10**6)), max_size=20).map(mix_of)


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


class Cluster:
    """Nodes by name of their leaf, and a placer whose placements stay."""

    def __init__(
        self, *leaves: str, gpus: int = 8, mix: list[tuple[int, int, int]], cpus: tuple[int, ...] = ()
    ) -> None:
        cores = cpus or (1000,) * len(leaves)
        nodes = [Node(f"n{i}", gpus, leaf=leaf, cpu=1000 * cores[i]) for i, leaf in enumerate(leaves)]
        self.state = ClusterState(ClusterSpec("drawn", tuple(nodes)))
        self.state.apply(TypicalPodsGiven(0, mix_of(mix)))
        self.placer = Placer(Snapshot(self.state), Kant(), 0)

    def place(self, gpus: int, milli: int = 1000, cpu: int = 0) -> tuple[int, int]:
        """The node and the devices (as bits) of a pod."""
        state = self.state
        number = len(state.ids)
        state.apply(submitted(Job(f"j{number}", 0, (PodGroup(1, Demand(gpus, milli, cpu)),))))
        self.placer.trial.begin()
        placed = self.placer.place(state.shape_of(number))
        assert isinstance(placed, np.ndarray)
        return int(placed[0, 0]), int(placed[0, 2])


def test_shares_are_put_together_that_fill_a_gpu() -> None:
    """A share of 300 leaves the tight gap to another 500, and begins a GPU that 700 fills."""
    cluster = Cluster("a", mix=[(700, 1, 10), (300, 1, 10), (500, 1, 20)])
    assert [cluster.place(1, milli)[1] for milli in (500, 300, 700, 500)] == [1, 2, 2, 1]


def test_a_small_pod_fills_a_hole_exactly_in_whatever_leaf() -> None:
    cluster = Cluster("a", "a", "b", "b", mix=[(1000, 1, 5), (1000, 8, 5)])
    assert [cluster.place(gpus)[0] for gpus in (6, 8, 8, 7)] == [0, 1, 2, 3]
    assert [cluster.place(gpus)[0] for gpus in (1, 2)] == [3, 0]


def test_a_pod_that_takes_a_node_leaves_a_whole_leaf_alone() -> None:
    cluster = Cluster("a", "a", "b", "b", mix=[(1000, 8, 5)])
    state = cluster.state
    state.apply(submitted(Job("x", 0, (PodGroup(1, Demand(7)),))))
    state.apply(JobStarted(0, "x", np.array([[2, 1, 0b1111111, 1000, 0, 0, 7]], dtype=np.int64)))
    cluster.placer.snapshot.refresh(0)
    assert [cluster.place(8)[0] for _ in range(3)] == [3, 0, 1]


def test_a_pod_that_wants_much_cpu_goes_where_there_is_more_than_the_gpus_need() -> None:
    cluster = Cluster("a", "a", mix=[], gpus=2, cpus=(16, 64))
    cluster.state.apply(TypicalPodsGiven(0, np.array([(8000, 1, 1000, 1, 10)], dtype=np.int64)))
    asked = ((0, 12_000), (1, 12_000), (1, 8_000), (1, 8_000))
    assert [cluster.place(gpus, 1000, cpu)[0] for gpus, cpu in asked] == [1, 1, 1, 0]


NODES = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 4, 8]), st.integers(0, 9)), max_size=6)
KINDS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from([250, 1000]), st.integers(0, 7), st.integers(1, 9)),
    max_size=6,
)


@given(NODES, KINDS)
def test_what_is_claimed_of_a_node_is_demand_by_supply_where_others_could_go_elsewhere(
    nodes: list[tuple[int, int, int]], kinds: list[tuple[int, int, int, int, int]]
) -> None:
    """Against the sentence, in fractions, kind by kind and node by node."""
    found = node_claims(np.array(kinds, dtype=np.int64).reshape(-1, 5), _empty(nodes))
    total = sum(gpus * milli * weight for _, gpus, milli, _, weight in kinds)
    cluster = sum(gpus for _, gpus, _ in nodes)
    claims = [Fraction(0)] * len(nodes)
    for cpu, gpus, milli, mask, weight in kinds:
        usable = [i for i, (pool, has, cores) in enumerate(nodes) if mask >> pool & 1 and has >= gpus and cores >= cpu]
        supply = sum(nodes[i][1] for i in usable)
        for i in usable if supply and gpus else []:
            load = Fraction(gpus * milli * weight, total) * cluster / supply
            claims[i] += load * Fraction(cluster - supply, cluster)
    for claim, thousandths in zip(claims, found.tolist(), strict=True):
        assert 0 <= min(claim * 1000, 1000) - thousandths < len(kinds) + 1, "each is rounded down"


def _empty(nodes: list[tuple[int, int, int]]) -> np.ndarray:
    table = np.zeros((len(nodes), DEVICES), dtype=np.int64)
    for row, (pool, gpus, cpu) in zip(table, nodes, strict=True):
        row[[POOL, GPUS, CPU]] = pool, gpus, cpu
    return table


@given(st.sampled_from([1, 5]), st.integers(20, 40), st.sampled_from(["small", "large"]))
def test_pods_that_may_go_anywhere_leave_a_rare_model_to_those_bound_to_it(rare: int, bound: int, first: str) -> None:
    """Few pods ask for the rare model, but fewer of it are there: nothing goes there while there is another place."""
    models = ["small"] * rare + ["large"] * 12
    if first == "large":
        models.reverse()
    spec = ClusterSpec("two", tuple(Node(f"n{i}", 4, model=model) for i, model in enumerate(models)))
    state = ClusterState(spec)
    small = state.shapes.pools_admitting(("small",))
    state.apply(TypicalPodsGiven(0, np.array([(0, 1, 1000, 3, 100), (0, 1, 1000, small, bound)], dtype=np.int64)))
    placer = Placer(Snapshot(state), Kant(), 0)
    placer.trial.begin()
    state.apply(submitted(Job("any", 0, (PodGroup(1, Demand(1)),))))
    state.apply(submitted(Job("bound", 0, (PodGroup(1, Demand(1)),), models=("small",))))
    places = [placer.place(state.shape_of(0)) for _ in range(48)]
    assert {models[int(place[0, 0])] for place in places if isinstance(place, np.ndarray)} == {"large"}
    left = [placer.place(state.shape_of(1)) for _ in range(4 * rare)]
    assert all(isinstance(place, np.ndarray) for place in left)


def test_pods_that_fit_anywhere_leave_a_rare_node_to_those_that_need_its_cpu() -> None:
    """Of both kinds there is work for half a node; only one node has the CPU for the large ones."""
    typical = [(120_000, 8, 1000, 1, 1), (0, 1, 1000, 1, 8)]
    state = ClusterState(
        ClusterSpec("rare", tuple(Node(f"n{i}", 8, cpu=cpu) for i, cpu in enumerate([128_000, 96_000])))
    )
    state.apply(TypicalPodsGiven(0, np.array(typical, dtype=np.int64)))
    placer = Placer(Snapshot(state), Kant(), 0)
    placer.trial.begin()
    state.apply(submitted(Job("any", 0, (PodGroup(1, Demand(1)),))))
    places = [placer.place(state.shape_of(0)) for _ in range(8)]
    assert [int(place[0, 0]) for place in places if isinstance(place, np.ndarray)] == [1] * 8


def test_a_share_that_takes_the_last_cores_of_a_poor_node_costs_the_gpu_although_few_could_use_it() -> None:
    """Most typical pods never fit on the poor node, whose GPU is for those that do: the share goes elsewhere."""
    cluster = Cluster("a", "a", gpus=1, cpus=(4, 32), mix=[])
    kinds = [(3000, 1, 1000, 1, 20), (24_000, 1, 1000, 1, 40), (12_000, 1, 470, 1, 40)]
    cluster.state.apply(TypicalPodsGiven(0, np.array(kinds, dtype=np.int64)))
    assert cluster.place(1, 300, cpu=4000)[0] == 1
