"""Anti-affinity: the pods of a gang in different domains, and none beside those of its affinity group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from kant.cluster.columns import Table
from kant.cluster.shapes import MAX_PODS, Shape
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import NODE, PODS, Allocation
from kant.placement.fabric_line import CLUSTER
from kant.placement.gang import Gang, Ground
from kant.placement.rooms import R_TAKES
from kant.placement.segments import starts_of


class Apart(Gang):
    """A gang whose pods keep apart, from each other and from their companions, pod by pod.

    `strict`: no two in one domain of the level. Else each goes where fewest are. Greedy is exact for one group: a pod
    takes one domain, whichever it is.
    """

    def __init__(
        self, domains: Ground, shape: Shape, salt: int, pieces: Table, companions: Sequence[Allocation], strict: bool
    ) -> None:
        super().__init__(domains, shape, salt, pieces)
        assert shape.company is not None
        self.strict = strict
        self.level = shape.company.apart
        self._before: Table = np.zeros(self.rooms.domains, dtype=np.int64)
        for allocation in companions:
            places = self.fabric.place_of[allocation[:, NODE]]
            np.add.at(self._before, self.fabric.home[places, self.level], allocation[:, PODS])
        self._crowd = self._before.copy()  # pods of the group in each domain of the level

    @property
    def narrowest(self) -> int:
        if self.shape.level >= 0 or (self.shape.pods == 1 and self.strict):
            return super().narrowest
        return CLUSTER

    def _in_order(self, order: list[int], domain: int) -> int | NoFit:
        self._crowd = self._before.copy()
        result = super()._in_order(order, domain)
        if isinstance(result, NoFit):
            self._crowd = self._before.copy()
        return result

    def _takes(self, group: int, level: int, pods: int) -> Table:
        if not self.strict:
            return super()._takes(group, level, pods)
        fabric = self.fabric
        takes = self.rooms.rooms[self.slots[group], : len(fabric.walk), R_TAKES]
        able = (takes > 0) & (self._crowd[fabric.home[:, self.level]] == 0)
        narrow = min(level, self.level)
        first, last = fabric.offsets[narrow : narrow + 2]
        found: Table = np.logical_or.reduceat(able, fabric.spans[first:last, 0]).astype(np.int64)
        return found if level <= self.level else np.add.reduceat(found, starts_of(fabric, level, self.level))

    def _takes_in(self, group: int, domain: int, pods: int) -> int:
        level = self.fabric.level_of(domain)
        return int(self._takes(group, level, pods)[domain - self.fabric.offsets[level]])

    def _closed(self, level: int, groups: range | tuple[int, ...], pods: list[int]) -> Table:
        closed = super()._closed(level, groups, pods)
        first, last = self.fabric.offsets[level : level + 2]
        for group, count in zip(groups, pods, strict=True):
            closed = closed.copy()
            closed[first:last] |= self._takes(group, level, count) < count
        return closed

    def _no_fit(self, group: int, fits: int, level: int = CLUSTER) -> NoFit:
        verdict = super()._no_fit(group, fits, level)
        return replace(verdict, apart=LEVELS[self.level]) if self.strict else verdict

    def _fill(self, group: int, domain: int, rest: int, used: int) -> int:
        fabric, slot = self.fabric, int(self.slots[group])
        begin, end = fabric.spans[domain].tolist()
        homes = fabric.home[begin:end, self.level]
        for _ in range(rest):
            crowd = np.where(self.rooms.rooms[slot, begin:end, R_TAKES] > 0, self._crowd[homes], MAX_PODS + 1)
            nodes = fabric.walk[begin:end][crowd == crowd.min()]
            used = self._put(group, nodes, 0, len(nodes), 1, used)
            self._crowd[fabric.home[fabric.place_of[self.pieces[used - 1, NODE]], self.level]] += 1
            self._follow(group)
        return used
