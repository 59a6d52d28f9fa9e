"""Which jobs belong to one service, and what their pods hold: running, and placed by the current plan.

A burst replica belongs to the service of its base job. Otherwise jobs of one queue, user and name are one service; a
job without a name is its own service, with as many replicas as it has pods.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from kant.cluster.columns import J_BASE, J_QUEUE, J_USER
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial
from kant.model.placement import Allocation


class Services:
    """The running jobs of each service, if `counts` is true of their shape. Follows the state's job changes."""

    def __init__(self, snapshot: Snapshot, trial: Trial, counts: Callable[[Shape], bool]) -> None:
        self.state = snapshot.state
        self.trial = trial
        self.counts = counts
        self._running: dict[Hashable, dict[int, None]] = {}
        self._service: dict[int, Hashable] = {}  # the service of each row in `_running`
        self._planned: dict[Hashable, list[tuple[int, Allocation]]] = {}  # placed on the trial in this cycle
        self._cycle = -1  # the trial cycle of `_planned`
        self._seen = -1

    def of(self, row: int) -> Hashable:
        """Return the service of a job."""
        state = self.state
        if not 0 <= row < len(state.ids):
            return row
        base = int(state.jobs[row, J_BASE])
        while base >= 0:
            row, base = base, int(state.jobs[base, J_BASE])
        job = state.live.get(row)
        if job is None or not job.name:
            return row
        return (*state.jobs[row, [J_QUEUE, J_USER]].tolist(), job.name)

    def held(self, row: int) -> Iterator[Allocation]:
        """Yield what the other jobs of this job's service hold under the current plan."""
        self._follow()
        service = self.of(row)
        running, planned = self._running.get(service, {}), self._planned.get(service, ())
        if not running and not planned:
            return
        net: dict[int, int] = {}  # by allocation that the trial has moved: given back (-1), or taken (1)
        for taking, allocation in self.trial.moves():
            net[id(allocation)] = net.get(id(allocation), 0) + (1 if taking else -1)
        for other in running:
            allocation = self.state.running[other]
            if other != row and net.get(id(allocation), 0) >= 0:
                yield allocation
        for other, allocation in planned:
            if other != row and net.get(id(allocation), 0) > 0:
                yield allocation

    def placed(self, row: int, allocation: Allocation) -> None:
        """Record a placement on the trial. It counts for as long as the trial holds it."""
        self._follow()
        self._planned.setdefault(self.of(row), []).append((row, allocation))

    def _follow(self) -> None:
        state = self.state
        if self._cycle != self.trial.cycles:
            self._cycle = self.trial.cycles
            self._planned.clear()
        if self._seen == state.job_changes.end:
            return
        moved = state.job_changes.since(self._seen) if self._seen >= 0 else None
        self._seen = state.job_changes.end
        if moved is None:
            self._running.clear()
            self._service.clear()
            moved = list(state.running)
        for row in moved:
            service = self._service.pop(row, None)
            if service is not None:
                rows = self._running[service]
                del rows[row]
                if not rows:
                    del self._running[service]
            if row in state.running and self.counts(state.shape_of(row)):
                service = self._service[row] = self.of(row)
                self._running.setdefault(service, {})[row] = None
