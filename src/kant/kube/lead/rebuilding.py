"""When the state is rebuilt (once it is stale and the nodes are stable), and when node filters are evaluated again."""

from __future__ import annotations

import math
import time

from kant.kube.reconcile.fleet import Fleet
from kant.kube.reconcile.translation import Translation
from kant.live.core import Core

QUIET = 0.5  # seconds without a change of the nodes after which the state is rebuilt
LONGEST_UNREST = 5.0
FAILING = 2.0  # minimum seconds between two evaluations of node filters
STALE = 10.0  # seconds between two rebuilds on standby
LEAST_WORK = 20.0  # minimum interval, as a multiple of the duration of the last build or evaluation


class Rebuilding:
    """`built_at`: when the last state was built (monotonic seconds). `change_at`: when the next rebuild is due (µs
    since the run began).

    `touched`: nodes that may fail fewer filters than before.
    """

    def __init__(self, translation: Translation) -> None:
        self.translation = translation
        self.built_at = 0.0
        self.change_at = 0
        self.rest = STALE  # seconds until the next build on standby
        self._took = self._look_at = self._looked = 0.0
        self._improved_at = math.inf
        self._unrest = self.stable_since = -1.0  # since when the state is stale; the last change
        self.touched: dict[str, None] = {}
        self._volume_version = 0

    def built(self, read: int, began: float) -> None:
        """Record that a state was built between `began` and now, from data of the time `read` (µs of the run)."""
        self._unrest = -1.0
        self.built_at = time.monotonic()
        self._took = self.built_at - began
        self._looked, self._improved_at = self.built_at, math.inf
        self.rest = max(STALE, LEAST_WORK * self._took)
        self.change_at = self.translation.next_change(read)

    def is_due(self, core: Core, fleet: Fleet) -> bool:
        """Whether the state must be rebuilt, because it no longer describes the cluster."""
        return fleet.stale or self.translation.stale or self.change_at <= core.now

    def is_look_due(self) -> bool:
        """Whether to evaluate the node filters again: they are outdated, or nodes or devices may admit more pods."""
        filters, now = self.translation.filters, time.monotonic()
        if now < self._look_at:
            return False
        return filters.outdated or self._improved_at <= now or filters.devices.may_have_more

    def look_soon(self) -> None:
        """Schedule another evaluation of the node filters, at least FAILING seconds after the last one."""
        self._improved_at = min(self._improved_at, self._looked + FAILING)

    def looked(self, began: float) -> None:
        """Record that the filters were evaluated between `began` and now."""
        self._looked = time.monotonic()
        self._look_at, self._improved_at = self._looked + LEAST_WORK * (self._looked - began), math.inf

    def is_stable(self, fleet: Fleet) -> bool:
        """Whether to rebuild now: nodes have been unchanged for QUIET seconds, or changing for LONGEST_UNREST."""
        now = time.monotonic()
        if self._unrest < 0:
            self._unrest = self.stable_since = now
        return not fleet.stale or now - self.stable_since >= QUIET or now - self._unrest >= LONGEST_UNREST

    def soon(self, core: Core) -> None:
        """Schedule a rebuild in FAILING seconds, or later if the last build was slow."""
        self.change_at = min(self.change_at, core.now + int(max(FAILING, LEAST_WORK * self._took) * 1e6))

    def look(self, core: Core, nodes: dict[str, None]) -> None:
        """Schedule an evaluation if a changed node passes a filter again; until then no pod may use the node."""
        filters, mirror = self.translation.filters, self.translation.mirror
        if filters.failing:
            self.touched.update(nodes)
        version = mirror.volume_version + mirror.csi.version
        if version != self._volume_version and filters.chooses_volumes:
            self.touched.update(dict.fromkeys(filters.failing))
        self._volume_version = version
        began = time.monotonic()
        if not self.touched or began < self._look_at or self.change_at - core.now <= FAILING * 1e6:
            return
        touched, self.touched = self.touched, {}
        improved = filters.improved(touched)
        self._look_at = began + LEAST_WORK * (time.monotonic() - began)
        if improved:
            self._improved_at = max(self._looked + FAILING, began)
