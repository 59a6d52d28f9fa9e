"""Explains a placement by a pod's preferences: the nodes ranked by all five scores, and what decided."""

from __future__ import annotations

import dataclasses

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.placement import NODE, Allocation
from kant.model.placement import PODS as HELD
from kant.placement.capacity import NodeScores, tie_order
from kant.placement.explain import MOST, NodeSearch, PlacementExplanation, RankedNode, explain_placement, why_node
from kant.placement.fits import mixed
from kant.placement.policy import NodePolicy
from kant.placement.preference_scores import AVOIDED, NODES, PODS, POLICY, SPREAD, TOTAL
from kant.placement.preference_weights import PreferenceWeights
from kant.placement.preferred import Preferring

TERMS = {
    POLICY: "policy", NODES: "preferred nodes", AVOIDED: "avoided taints", PODS: "pods beside", SPREAD: "spread",
}  # fmt: skip
"""Names of the parts of a score for people, each from 0 to 100."""


def explain_beside_preferences(
    state: ClusterState,
    table: Table,
    policy: NodePolicy,
    seed: int,
    shape: Shape,
    job_row: int,
    place: Allocation,
    weights: PreferenceWeights,
) -> PlacementExplanation:
    """Do what `explain_placement` does, but rank nodes by preferences if these have chosen the first pod's node."""
    found = explain_placement(state, table, policy, seed, shape, job_row, place)
    snapshot = Snapshot(state)
    snapshot.table = table.copy()
    order = tie_order(policy, len(table), seed)

    def scores(own: NodePolicy) -> NodeScores:
        return NodeScores(own, order, state.typical_pods, state.empty)

    groups = Preferring(snapshot, weights, seed, scores).groups(shape, policy) if shape.level < 0 else None
    if groups is None:
        return found
    chosen = groups[0].nodes.policy
    groups[0].best(order, -1, mixed(mixed(seed, job_row), 0) if chosen.fresh else 0)
    marks, held = groups[0].scores, np.zeros(len(table), dtype=np.int64)
    np.add.at(held, place[:, NODE], place[:, HELD])
    fits = np.flatnonzero(marks[TOTAL] >= 0).tolist()
    ranking = sorted(fits, key=lambda i: (-marks[TOTAL, i], -groups[0].worth(int(order[i])), i))
    taken = [rank for rank, i in enumerate(ranking) if held[order[i]]][:MOST]
    ranked = tuple(
        _ranked(state, int(order[i]), rank, marks[:, i], groups[0].weights, int(held[order[i]]))
        for rank, i in enumerate(ranking)
        if rank < MOST or rank in taken
    )
    nodes = NodeSearch(
        policy=str(type(chosen).__struct_config__.tag), leaf="", among=len(fits), by_node=False, ranked=ranked,
        because=why_node(list(ranked), shape.parts[0][0], by_node=False),
    )  # fmt: skip
    return dataclasses.replace(found, levels=(), nodes=nodes)


def _ranked(state: ClusterState, node: int, rank: int, marks: Table, weights: Table, pods: int) -> RankedNode:
    terms = {name: float(marks[kind]) for kind, name in TERMS.items() if weights[kind]}
    own = state.nodes[node]
    return RankedNode(
        name=own.name, leaf=own.leaf, rank=rank + 1, takes=1, score=int(marks[TOTAL]), terms=terms, pods=pods
    )
