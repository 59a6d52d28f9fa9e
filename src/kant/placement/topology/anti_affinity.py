"""Anti-affinity: the pods of a gang go to different domains, away from the pods of their affinity group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from kant.cluster.asks import MAX_PODS
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import NODE, PODS, Allocation
from kant.placement.group_order import PLACED
from kant.placement.pieces import PieceBuffer
from kant.placement.topology.domain_capacity import FITTING_PODS
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.gang import GangPlacement
from kant.placement.topology.index import CLUSTER
from kant.placement.topology.segments import starts_of


class AntiAffinityPlacement(GangPlacement):
    """Places gangs whose pods avoid each other and their affinity group, pod by pod.

    With `strict`, no domain of the level holds two of these pods. Otherwise each pod uses the domain with the fewest of
    them. Placing pod by pod is exact for one group: each pod occupies one domain, whichever it is.
    """

    def __init__(self, policy: DomainPolicy, shape: Shape, pieces: PieceBuffer, strict: bool) -> None:
        assert shape.affinity is not None
        self.strict = strict
        self.level = shape.affinity.apart
        super().__init__(policy, shape, pieces)
        self._plain = False
        self._before: Table = self.topology.no_domain
        self._group_pods: Table = self.topology.no_domain
        """Pods of the affinity group in each domain of the level."""

    def _narrowest(self, policy: DomainPolicy) -> int:
        if self.shape.level >= 0 or (self.shape.pods == 1 and self.strict):
            return super()._narrowest(policy)
        return CLUSTER

    def place(self, job_row: int, members: Sequence[Allocation]) -> int | NoFit:
        self._before = self.topology.no_domain.copy()
        for allocation in members:
            places = self.topology.position[allocation[:, NODE]]
            np.add.at(self._before, self.topology.domain_of[places, self.level], allocation[:, PODS])
        self._group_pods = self._before.copy()
        return super().place(job_row, members)

    def _attempt(self, order: list[int]) -> int:
        self._group_pods = self._before.copy()
        failed = super()._attempt(order)
        if failed != PLACED:
            self._group_pods = self._before.copy()
        return failed

    def _fitting(self, group: int, level: int, pods: int) -> Table:
        if not self.strict:
            return super()._fitting(group, level, pods)
        topology = self.topology
        fitting = self.capacity.rows[self.slots[group], : len(topology.node_order), FITTING_PODS]
        able = (fitting > 0) & (self._group_pods[topology.domain_of[:, self.level]] == 0)
        narrow = min(level, self.level)
        first, last = topology.offsets[narrow : narrow + 2]
        found: Table = np.logical_or.reduceat(able, topology.domain_range[first:last, 0]).astype(np.int64)
        return found if level <= self.level else np.add.reduceat(found, starts_of(topology, level, self.level))

    def _closed(self, level: int, groups: range | tuple[int, ...], pods: list[int]) -> Table:
        closed = super()._closed(level, groups, pods)
        first, last = self.topology.offsets[level : level + 2]
        for group, count in zip(groups, pods, strict=True):
            closed = closed.copy()
            closed[first:last] |= self._fitting(group, level, count) < count
        return closed

    def _no_fit(self, group: int, fits: int, level: int = CLUSTER) -> NoFit:
        verdict = super()._no_fit(group, fits, level)
        return replace(verdict, apart=LEVELS[self.level]) if self.strict else verdict

    def _fill(self, group: int, domain: int, rest: int, used: int) -> int:
        topology, slot = self.topology, int(self.slots[group])
        begin, end = topology.domain_range[domain].tolist()
        homes = topology.domain_of[begin:end, self.level]
        for _ in range(rest):
            group_pods = np.where(
                self.capacity.rows[slot, begin:end, FITTING_PODS] > 0, self._group_pods[homes], MAX_PODS + 1
            )
            nodes = topology.node_order[begin:end][group_pods == group_pods.min()]
            used = self._put(group, nodes, 1, used)
            self._group_pods[topology.domain_of[topology.position[self.pieces.rows[used - 1, NODE]], self.level]] += 1
            self._follow(group)
        return used
