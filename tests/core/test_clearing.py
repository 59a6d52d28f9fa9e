"""Clearing a node for more pods: the least that has to leave, against all sets, on small nodes."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.columns import NO_DEMANDS, Table
from kant.cluster.holders import LIMB, Holders, Weights, group_by_node
from kant.cluster.snapshot import move
from kant.model.placement import Allocation
from kant.placement.clearing import clear
from kant.placement.fits import capacity
from kant.testing import Harness, make_cluster, make_job, make_profile

GPUS = 4


def filled(sizes: list[int]) -> tuple[Harness, list[Allocation]]:
    """Nodes of four GPUs with running jobs of these sizes, and what these hold."""
    harness = Harness(make_cluster(GPUS, GPUS), make_profile(discipline="best-effort"))
    harness.submit(*(make_job(f"r{i}", size) for i, size in enumerate(sizes)))
    harness.cycle()
    return harness, list(harness.state.running.values())


def holders_of(held: list[Allocation], nodes: Table) -> Holders:
    """Those who hold something, in the order in which they leave a node."""
    begin = np.array([0, *map(len, held)], dtype=np.int64).cumsum()
    return Holders(nodes, *group_by_node(np.concatenate(held), begin, np.arange(len(held)), nodes))


def weights_of(weights: list[int], milli: int, *, may_leave: bool) -> Weights:
    upper, lower = [[part >> LIMB for part in weights], [part & ((1 << LIMB) - 1) for part in weights]]
    own, may = np.full(len(weights), milli), np.full(len(weights), may_leave)
    return Weights(np.array(upper, dtype=np.int64), np.array(lower, dtype=np.int64), own, may)


def cheapest(
    table: Table, demands: Table, demand: int, want: int, held: list[Allocation], weights: list[int], node: int
) -> int | None:
    """The least weight of jobs on the node whose leaving makes room for so many pods, by trying every set."""
    before = table
    there = [i for i, pieces in enumerate(held) if (pieces[:, 0] == node).any()]
    best: int | None = None
    for leaves in chain.from_iterable(combinations(there, count) for count in range(len(there) + 1)):
        table = before.copy()
        for i in leaves:
            move(table, np.zeros(64, dtype=np.int64), held[i], NO_DEMANDS, False)
        weight = sum(weights[i] for i in leaves)
        if capacity(table, node, demands, demand) >= want and (best is None or weight < best):
            best = weight
    return best


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    want=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=examples(120), deadline=None)
def test_the_cheapest_jobs_leave(sizes: list[int], want: int, data: st.DataObject) -> None:
    harness, held = filled(sizes)
    weights = data.draw(st.lists(st.integers(1, 1 << 100), min_size=len(held), max_size=len(held)))
    shape = harness.state.shapes.of(make_job("new", 1))
    demand = shape.parts[0][1]
    nodes = np.arange(len(harness.state.table))
    table, before, demands = harness.state.table.copy(), harness.state.table.copy(), harness.state.shapes.demands
    holders = holders_of(held, nodes)
    costs = weights_of(weights, 0, may_leave=True)
    for node in nodes.tolist():
        pods, leaving = cleared(table, demands, demand, want, np.array([node]), holders, costs, 1 << 40)
        for level, count in enumerate(pods[0].tolist()):
            if count:
                entries = holders.first[node] + np.flatnonzero(leaving[0, level])
                weight = sum(weights[i] for i in holders.who[entries].tolist())
                least = cheapest(before, demands, demand, count, held, weights, node)
                assert weight == (0 if capacity(before, node, demands, demand) else least)
    assert (table == before).all(), "the table is left as it was"


def cleared(
    table: Table, demands: Table, demand: int, want: int, places: Table, holders: Holders, costs: Weights, cap: int
) -> tuple[Table, Table]:
    """Pods and who leaves, for each of the places; the holder of the most weight first."""
    places_of = np.repeat(np.arange(len(holders.nodes)), np.diff(holders.first))
    heavy = np.lexsort((-costs.lower[holders.who], -costs.upper[holders.who], places_of))
    pods = np.zeros((len(places), want.bit_length() + 1), dtype=np.int64)
    leaving = np.zeros((*pods.shape, holders.widest), dtype=np.bool_)
    clear(table, demands, demand, want, places, holders, heavy, costs, cap, pods, leaving)
    return pods, leaving


def test_who_may_not_leave_stays() -> None:
    harness, held = filled([4, 4])
    shape = harness.state.shapes.of(make_job("new", 1))
    holders = holders_of(held, np.arange(2))
    costs = weights_of([1, 1], 4000, may_leave=False)
    asked = harness.state.table.copy(), harness.state.shapes.demands, shape.parts[0][1], 1, np.arange(2), holders, costs
    assert not cleared(*asked, 1 << 40)[0].any()
    costs.may_leave[:] = True
    assert cleared(*asked, 4000)[0].any()
    assert not cleared(*asked, 3999)[0].any(), "the cap forbids it"
