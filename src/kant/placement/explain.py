"""Explains a placement: the domains and nodes among which a gang could choose, and how they rank. Places nothing.

An explanation uses the functions that place: the order of domains by `domain_capacity.best_domain`, the scores by the
policy, and the pods that fit by `fits.capacity`. So it always states the rules that decided.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot
from kant.cluster.state import ClusterState
from kant.model.job import LEVELS
from kant.model.placement import NODE, PODS, Allocation
from kant.model.status import NodeStatus
from kant.placement.capacity import tie_order
from kant.placement.fits import capacity, mixed
from kant.placement.pieces import PieceBuffer
from kant.placement.placer import ignores_topology
from kant.placement.policy import NodePolicy, Terms
from kant.placement.topology.domain_capacity import (
    FITTING_ON_BROKEN,
    FITTING_PODS,
    FREE_MILLI,
    GPU_NODES,
    TIGHTEST,
    WHOLE_NODES,
    DomainCapacity,
)
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.gang import GangPlacement
from kant.placement.topology.index import CLUSTER, HBD_LEVEL, LEAF_LEVEL, Topology

MOST = 5
"""Number of domains of a level, and of nodes, that are named: the best, and those that were chosen."""

LOOKED_AT = 100
"""Domains ranked to find the chosen one (a gang of several groups may have skipped some)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFilter:
    """Counts of a pool's nodes: all, cordoned, failed, too full for a pod, left. `admits`: the pool admits the job."""

    pool: str
    admits: bool
    nodes: int
    cordoned: int
    failed: int
    full: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedDomain:
    """A domain that holds the gang, `rank` from 1, with the criteria by which domains rank (docs/policies.md).

    For a node, `broken` says whether its leaf is broken. `free` and `fullest` are milli-GPUs; `fullest` is the free
    amount on the fullest node of a leaf on which a pod fits. `around` has the number of whole nodes left in its
    superspine and in its spine. `pods` of the gang are placed there.
    """

    name: str
    rank: int
    takes: int
    exact: bool
    breaks: bool
    broken: bool
    whole: int
    free: int
    fullest: int
    around: tuple[int, int]
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSearch:
    """One level of the fabric: `holding` of its `domains` domains have room for the gang of `pods` pods.

    In the roomiest domain `takes` pods fit. `ranked` has the best domains with room, and the chosen one.
    """

    level: str
    domains: int
    holding: int
    takes: int
    pods: int
    ranked: tuple[RankedDomain, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedNode:
    """A node on which a pod fits. `rank` is from 1, by `score` before the gang came; it has `pods` pods of the gang."""

    name: str
    leaf: str
    rank: int
    takes: int
    score: int
    terms: Terms
    pods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSearch:
    """The nodes among which the policy chose for the first pod of the first group: the best, and some of those taken.

    `among` counts all nodes that fit, in `leaf` or, if it is empty, in all pools. For a gang in several leaves, `leaf`
    is the only one that the gang does not fill. With `by_node`, a chosen node is filled before the next.
    """

    policy: str
    leaf: str
    among: int
    by_node: bool
    ranked: tuple[RankedNode, ...]
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementExplanation:
    """How a placement was found: pools, then levels of the fabric, then nodes."""

    pools: tuple[PoolFilter, ...]
    levels: tuple[LevelSearch, ...]
    nodes: NodeSearch | None


def explain_placement(
    state: ClusterState, table: Table, policy: NodePolicy, seed: int, shape: Shape, job_row: int, place: Allocation
) -> PlacementExplanation:
    """Explain how `place` was found on the nodes in `table`. For `job_row` see `Placer.place`."""
    pools = tuple(_pool_filters(state, table, shape))
    snapshot = Snapshot(state)
    snapshot.table = table.copy()
    levels: tuple[LevelSearch, ...] = ()
    order, leaf = tie_order(policy, len(table), seed), ""
    by_level = policy.preferred_level and not ignores_topology(policy, shape, table)
    if not shape.wide and (shape.level >= 0 or by_level):
        search = TriedDomains(snapshot, policy, seed, shape, place)
        levels = tuple(search.levels())
        order, leaf = search.nodes_scored()
    nodes = _nodes(snapshot, policy, seed, shape, job_row, place, order, leaf) if len(order) > 1 else None
    return PlacementExplanation(pools=pools, levels=levels, nodes=nodes)


def _pool_filters(state: ClusterState, table: Table, shape: Shape) -> list[PoolFilter]:
    found = []
    demands, parts = state.shapes.demands, shape.parts
    for pool in range(len(state.shapes.pool_keys)):
        there = table[:, c.STATUS] != NodeStatus.RETIRED
        rows = np.flatnonzero(there & (table[:, c.POOL] == pool)).tolist()
        status = table[rows, c.STATUS]
        cordoned, failed = (int((status == kind).sum()) for kind in (NodeStatus.CORDONED, NodeStatus.FAILED))
        left = sum(any(capacity(table, node, demands, d) > 0 for _, d in parts) for node in rows)
        admits = bool((shape.pool_bits >> pool) & 1)
        full = len(rows) - cordoned - failed - left if admits else 0
        found.append(
            PoolFilter(
                pool=state.shapes.pool_name(pool), admits=admits, nodes=len(rows), cordoned=cordoned, failed=failed,
                full=full, left=left,
            )
        )  # fmt: skip
    return found


class TriedDomains:
    """The levels tried for a gang, and the domain in which it was placed."""

    def __init__(self, snapshot: Snapshot, policy: NodePolicy, seed: int, shape: Shape, place: Allocation) -> None:
        self.state = snapshot.state
        self.shape = shape
        self.place = place
        topology = Topology(snapshot.table, tie_order(policy, len(snapshot.table), seed))
        domains = DomainPolicy(snapshot, policy, topology, DomainCapacity(topology), seed, snapshot.typical_pods)
        self.gang = GangPlacement(domains, shape, PieceBuffer(0))
        self.gang.begin(0)
        self.topology, self.rows = self.gang.topology, self.gang.capacity.rows
        self.homes = self.topology.domain_of[self.topology.position[place[:, NODE]]]
        self.first = self.gang.narrowest
        one = [level for level in range(self.first, CLUSTER) if len(np.unique(self.homes[:, level])) == 1]
        self.last = one[0] if one else CLUSTER

    def levels(self) -> list[LevelSearch]:
        """Return the levels from the narrowest to the one at which one domain holds the gang."""
        tried = range(self.first, min(self.last + 1, CLUSTER))
        return [self._level(level) for level in tried if not (level == HBD_LEVEL > self.first and self.topology.flat)]

    def nodes_scored(self) -> tuple[Table, str]:
        """Return the nodes among which the policy chose, in tie order, and their leaf.

        If there are HBDs, an HBD is returned instead of the leaf. For a gang in several domains, it is the domain with
        the most room left, since the gang fills the others.
        """
        if self.last == 0:
            return self.place[:1, NODE], ""
        level = LEAF_LEVEL if self.topology.flat and self.last > HBD_LEVEL else HBD_LEVEL
        leaves = np.unique(self.homes[:, level]).tolist()
        pods = {leaf: int(self.place[self.homes[:, level] == leaf, PODS].sum()) for leaf in leaves}
        room = self.rows[self.gang.slots].sum(axis=0)[:, FITTING_PODS]
        leaf = max(leaves, key=lambda leaf: (int(room[leaf]) - pods[leaf], -leaf))
        begin, end = self.topology.domain_range[leaf].tolist()
        return self.topology.node_order[begin:end], self._name(leaf, level)

    def _level(self, level: int) -> LevelSearch:
        first, last = self.topology.offsets[level : level + 2]
        counts, takes = self.gang.counts, self.rows[self.gang.slots, first:last, FITTING_PODS]
        enough = self.rows[self.gang.slots[0], first:last, FREE_MILLI] >= self.gang.milli
        holding = int(((takes >= counts[:, None]).all(axis=0) & enough).sum())
        most = int(np.minimum(takes, counts[:, None]).sum(axis=0).max(initial=0))
        ranked: list[RankedDomain] = []
        taken = int(self.homes[0, level]) if level == self.last else -1
        for rank, domain in enumerate(islice(self.gang.ranked(level), LOOKED_AT if taken >= 0 else 0), start=1):
            if rank <= MOST or domain == taken:
                ranked.append(self._domain(domain, level, rank))
            if rank >= MOST and any(each.pods for each in ranked):
                break
        return LevelSearch(
            level=LEVELS[level], domains=last - first, holding=holding, takes=most, pods=self.shape.pods,
            ranked=tuple(ranked), because=why_domain(ranked, LEVELS[level], self.shape.pods),
        )  # fmt: skip

    def _domain(self, domain: int, level: int, rank: int) -> RankedDomain:
        gang, lead = self.gang, self.gang.slots[0]
        room, rows = self.rows[lead, domain], self.rows
        around = rows[lead, self.topology.domain_of[domain, LEAF_LEVEL]] if level == 0 else room
        ancestors = self.topology.ancestors[domain]
        single = len(gang.slots) == 1 and gang.counts[0] == 1
        exact = room[FITTING_PODS] == gang.counts[0] if len(gang.slots) == 1 else room[FREE_MILLI] == gang.milli
        return RankedDomain(
            name=self._name(domain, level), rank=rank, takes=int(room[FITTING_PODS]),
            exact=bool(exact) and not (single and level <= LEAF_LEVEL),
            breaks=bool((rows[gang.slots, domain, FITTING_ON_BROKEN] < gang.counts).any()),
            broken=bool(around[WHOLE_NODES] < around[GPU_NODES]), whole=int(around[WHOLE_NODES]),
            free=int(room[FREE_MILLI]), fullest=int(room[TIGHTEST]) if 1 <= level <= LEAF_LEVEL else
            int(room[FREE_MILLI]), around=(int(rows[lead, ancestors[1], WHOLE_NODES]), int(rows[lead, ancestors[0],
            WHOLE_NODES])), pods=int(self.place[self.homes[:, level] == domain, PODS].sum()),
        )  # fmt: skip

    def _name(self, domain: int, level: int) -> str:
        node = self.state.nodes[self.topology.node_order[self.topology.domain_range[domain, 0]]]
        name = (node.name, node.hbd, node.leaf, node.spine, node.superspine)[level]
        return name or f"the {LEVELS[level]} of {node.name}"


def why_domain(ranked: list[RankedDomain], level: str, pods: int) -> str:
    """Return why the chosen domain ranks before the next one, by the order in docs/policies.md."""
    at = next((i for i, each in enumerate(ranked) if each.pods), -1)
    if at < 0:
        return ""
    own = ranked[at]
    if own.rank > 1:
        return f"{own.name} is the first with room for all groups of the gang together"
    if len(ranked) == 1:
        return f"no other {level} holds the gang"
    other = ranked[1]
    return f"{own.name} comes before {other.name}: {_first_difference(own, other, level, pods)}"


def _first_difference(own: RankedDomain, other: RankedDomain, level: str, pods: int) -> str:
    gang = "the pod" if pods == 1 else "the gang"
    if own.exact != other.exact:
        return f"{gang} fills it exactly"
    if own.breaks != other.breaks:
        return f"{gang} uses up no idle node there"
    if own.broken != other.broken:
        return "its leaf is partly used already" if level == "node" else "it is partly used already"
    single = level == "leaf" and pods == 1
    if single and own.fullest != other.fullest:
        return f"it has the fullest node that fits: {_gpus(own.fullest)} free against {_gpus(other.fullest)}"
    for wider, mine, theirs in zip(("superspine", "spine"), own.around, other.around, strict=True):
        if mine != theirs:
            return f"fewer whole nodes are left in its {wider}: {mine} against {theirs}"
    if level == "node" and own.free != other.free:
        return f"it is the fullest: {_gpus(own.free)} free against {_gpus(other.free)}"
    if level != "node" and not single and own.whole != other.whole:
        return f"fewer whole nodes are left in it: {own.whole} against {other.whole}"
    if level != "node" and not single and own.takes != other.takes:
        return f"it has less room: for {own.takes} pods against {other.takes}"
    return "both rank equally, and it is the first in order"


def _gpus(milli: int) -> str:
    return "1 GPU" if milli == 1000 else f"{milli / 1000:g} GPUs"


def _nodes(
    snapshot: Snapshot, policy: NodePolicy, seed: int, shape: Shape, job_row: int, place: Allocation, order: Table,
    leaf: str,
) -> NodeSearch:  # fmt: skip
    """Rank the nodes of `order` (in tie order) for the first pod of the first group."""
    state, table = snapshot.state, snapshot.table
    pods, d = shape.parts[0]
    chosen, by_node = policy.policy_for(0, len(shape.parts), pods)
    params, demands = chosen.numbers(state.typical_pods, state.empty), state.shapes.demands
    draw = mixed(mixed(seed, job_row), 0) if chosen.fresh else 0
    takes = np.array([capacity(table, node, demands, d) for node in order.tolist()], dtype=np.int64)
    fits = np.flatnonzero(takes > 0)
    nodes = order[fits].tolist()
    worth = [int(chosen.score(table, node, demands, d, state.typical_pods, params, draw)) for node in nodes]
    held = np.zeros(len(table), dtype=np.int64)
    np.add.at(held, place[:, NODE], place[:, PODS])
    ranking = np.argsort(-np.array(worth, dtype=np.int64), kind="stable").tolist()
    taken = [rank for rank, i in enumerate(ranking) if held[nodes[i]]][:MOST]
    ranked = []
    for rank in sorted({*range(min(MOST, len(ranking))), *taken}):
        i = ranking[rank]
        terms = chosen.terms(table, nodes[i], demands, d, state.typical_pods, params)
        node = state.nodes[nodes[i]]
        ranked.append(
            RankedNode(
                name=node.name, leaf=node.leaf, rank=rank + 1, takes=min(int(takes[fits[i]]), pods), score=worth[i],
                terms={name: float(value) for name, value in terms.items()}, pods=int(held[nodes[i]]),
            )
        )  # fmt: skip
    tag = str(type(chosen).__struct_config__.tag)
    return NodeSearch(
        policy=tag,
        leaf=leaf,
        among=len(nodes),
        by_node=by_node,
        ranked=tuple(ranked),
        because=why_node(ranked, pods, by_node),
    )


def why_node(ranked: list[RankedNode], pods: int, by_node: bool) -> str:
    """Return why the best chosen node ranks before the next one that was not chosen."""
    own = next((node for node in ranked if node.pods), None)
    if own is None:
        return ""
    if own.rank > 1:
        if by_node:
            return f"{own.name} is the tightest node on which the rest of the gang fits"
        return f"{own.name} was the best after the other groups of the gang were placed"
    other = next((node for node in ranked if not node.pods), None)
    if other is None:
        return "no other node fits" if len(ranked) < MOST else ""
    if own.score == other.score:
        return f"{own.name} and {other.name} have the same score, and {own.name} is the first in order"
    apart = [
        f"{name} {own.terms[name]:.4g} against {other.terms[name]:.4g}"
        for name in own.terms
        if own.terms[name] != other.terms.get(name)
    ]
    return f"{own.name} scores higher than {other.name}: {', '.join(apart) or f'{own.score:,} against {other.score:,}'}"
