"""Node replacement: a gang that has lost nodes gets other nodes for them, and keeps its remaining nodes.

Pods on healthy devices stay where they are. The pods of a lost node move together, into the narrowest domain of the
fabric around it that has room for them: its leaf, else its spine, and so on, up to the level that the gang requires. So
a level constraint stays satisfied, and a gang in one leaf leaves it only if the leaf is full.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.cluster.asks import Ask
from kant.cluster.columns import DEVICES, POOL, STATUS, Table, admits
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Trial
from kant.model.decision import NoFit
from kant.model.placement import CPU, GROUP, MASK, MEMORY, MILLI, NODE, PODS, TAG, Allocation
from kant.model.status import NodeStatus
from kant.placement.pieces import PieceBuffer
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.gang import GangPlacement
from kant.placement.topology.index import CLUSTER


@dataclass(frozen=True, slots=True)
class ReplacedGang:
    """A gang's new place; `kept` pods have not moved. Pods keep their order, and so their ranks."""

    allocation: Allocation
    kept: int


def replace_nodes(
    domains: DomainPolicy,
    shape: Shape,
    held: Allocation,
    bad: tuple[int, ...],
    job_row: int,
    trial: Trial,
    bound: bool = False,
) -> ReplacedGang | None:
    """Complete `held`, part of which is lost, and take it on the trial; None, with nothing taken, if that is
    impossible.

    It is impossible if nothing of `held` is left, or if the gang is elastic or requests more than a level (such as
    segments). With `bound` the pods are running, so they are kept even on nodes that accept no new pods, and in pools
    that the gang does not request. The new pods avoid the nodes `bad` if possible.
    """
    ask = shape.ask
    kept = Ask(
        ask.groups, ask.pools, ask.level, ask.required, preempts=ask.preempts, roles=ask.roles, node_sets=ask.node_sets,
        rules=ask.rules, preferences=ask.preferences, node_wait=ask.node_wait,
    )  # fmt: skip
    if shape.ceiling or shape.cuts or shape.wide or ask != kept:
        return None
    mark = trial.checkpoint()
    missing_pods = _keep(shape, held, trial, bound)
    if (
        missing_pods is not None
        and missing_pods.pods_kept
        and not (shape.required and missing_pods.spread_over(domains, shape.level))
    ):
        whole = trial.checkpoint()
        for avoided in dict.fromkeys((bad, ())):
            with trial.without(avoided):
                if missing_pods.close(domains, shape, job_row, trial):
                    return ReplacedGang(
                        np.array([piece for at in missing_pods.pieces for piece in at], dtype=np.int64),
                        missing_pods.pods_kept,
                    )
            trial.rollback(whole)
    trial.rollback(mark)
    return None


def _keep(shape: Shape, held: Allocation, trial: Trial, bound: bool) -> MissingPods | None:
    """Take the remaining part of `held` again on the trial."""
    missing_pods = MissingPods(len(held) + len(shape.groups))
    missing = [group.count for group in shape.groups]
    for at, piece in enumerate(held.tolist()):
        group = piece[GROUP]
        missing[group] -= piece[PODS]
        demand = shape.parts[group][1]
        left = piece if bound else _left_of(piece, trial.table, trial.state.shapes.demands, demand)
        if left is not None:
            own = np.array([left], dtype=np.int64)
            if trial.is_free(own):
                trial.restore(own)
                missing_pods.keeps(at, left)
            else:
                left = None
        lost = piece[PODS] - (left[PODS] if left is not None else 0)
        if lost:
            missing_pods.lacks(at, piece[NODE], group, lost)
    if min(missing) < 0:
        return None
    for group, pods in enumerate(missing):
        if pods:  # pods that were never bound are placed near the first piece
            missing_pods.lacks(len(held) + group, int(held[0, NODE]), group, pods)
    return missing_pods


class MissingPods:
    """The pods that a gang has kept, by the positions of their pieces, and the pods lost with each node."""

    def __init__(self, places: int) -> None:
        self.kept: list[list[list[int]]] = [[] for _ in range(places)]
        self.pieces = self.kept
        self.pods_kept = 0
        self.lost: dict[int, dict[int, int]] = {}  # node -> group -> pods
        self._first: dict[int, int] = {}  # the position of the first lost piece on a node

    def keeps(self, at: int, piece: list[int]) -> None:
        self.kept[at].append(piece)
        self.pods_kept += piece[PODS]

    def spread_over(self, domains: DomainPolicy, level: int) -> bool:
        """Return whether the kept pods span several domains of a level; true only if Kant did not place the gang."""
        nodes = [piece[NODE] for at in self.kept for piece in at]
        return len(set(domains.topology.domain_of[domains.topology.position[nodes], level].tolist())) > 1

    def lacks(self, at: int, node: int, group: int, pods: int) -> None:
        of_node = self.lost.setdefault(node, {})
        of_node[group] = of_node.get(group, 0) + pods
        self._first.setdefault(node, at)

    def close(self, domains: DomainPolicy, shape: Shape, job_row: int, trial: Trial) -> bool:
        """Place the pods of each lost node near it. The caller rolls back what was taken if this returns False."""
        self.pieces = [list(at) for at in self.kept]
        beside = [piece[NODE] for at in self.kept for piece in at]
        widest = shape.level if shape.required else CLUSTER
        for node in sorted(self.lost):
            part = domains.snapshot.state.shapes.part(shape, self.lost[node])
            found = _near(domains, part, node, widest, beside, job_row)
            if found is None:
                return False
            trial.placed(found)
            self.pieces[self._first[node]] += found.tolist()
            beside += found[:, NODE].tolist()
        return True


def _near(
    domains: DomainPolicy, shape: Shape, node: int, widest: int, beside: list[int], job_row: int
) -> Allocation | None:
    """Place and take the whole gang in the narrowest domain around `node` in which it fits; None if there is none.

    `widest` is the level of the last domain tried. Among the domains inside that domain, those with one of the nodes
    `beside` come first.
    """
    topology, pieces = domains.topology, PieceBuffer(domains.snapshot.state.gpus)
    pieces.reserve(shape)
    gang = GangPlacement(domains, shape, pieces)
    gang.begin(job_row)
    gang.mark_occupied(topology.domain_of[topology.position[beside]])
    for domain in topology.domain_of[topology.position[node], : widest + 1].tolist():
        result = gang.place_in(domain)
        if not isinstance(result, NoFit):
            return pieces.rows[:result].copy()
    return None


def _left_of(piece: list[int], table: Table, demands: Table, demand: int) -> list[int] | None:
    """Return the part of a piece whose devices still exist and are free; None if that is not even one pod."""
    row = table[piece[NODE]]
    if row[STATUS] != NodeStatus.IN_SERVICE or not admits(demands, demand, int(row[POOL]), piece[NODE]):
        return None
    mask, bits = piece[MASK], 0
    for device in range(mask.bit_length()):
        if (mask >> device) & 1 and row[DEVICES + device] >= piece[MILLI]:
            bits |= 1 << device
    if bits == mask:
        return piece
    pods = bits.bit_count() // piece[TAG] if piece[TAG] > 0 else 0
    if pods == 0:
        return None
    while bits.bit_count() > pods * piece[TAG]:
        bits &= ~(1 << (bits.bit_length() - 1))
    left = list(piece)
    left[PODS], left[MASK] = pods, bits
    left[CPU], left[MEMORY] = (piece[column] // piece[PODS] * pods for column in (CPU, MEMORY))
    return left
