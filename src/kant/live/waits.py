"""Attributes the waits of a live run to causes, at a bounded cost, and keeps the waits from before the run.

A live Kant rebuilds its state when it starts, and when its nodes or its profile change. Each state gets its own ledger
of waits. A job's wait before that is split as far as the previous ledger knew the causes; the rest is UNKNOWN.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kant.cluster.columns import J_STATUS, Table
from kant.live.sentences import public_id
from kant.metrics.wait_ledger import CAUSES, WaitLedger, waits_at
from kant.model.event import Event, JobSubmitted
from kant.model.status import JobStatus
from kant.model.units import SECOND
from kant.scheduler.cycle import Scheduler

UNKNOWN = "unknown"
"""The cause of waits that no ledger covered, such as those before this process took over or while Kant did not run."""

NAMES = (*(cause.value for cause in CAUSES), UNKNOWN)
SHARE = 20
"""The ledger uses at most 1/SHARE of the event loop's time: if an update is slow, causes are updated less often."""

Split = Mapping[str, int]
"""Microseconds by cause. There may be causes beyond NAMES, if another version of Kant has written the split."""


class Waits:
    """Splits the waits of jobs of one state. `earlier` has the known waits of jobs that existed before, by public id.

    Pass every event to `happened`; call `observe` at the end of each turn of the event loop. `ticks` is a clock (s).
    """

    def __init__(
        self, scheduler: Scheduler, earlier: Mapping[str, Split], ticks: Callable[[], float] = time.perf_counter
    ) -> None:
        self.state = scheduler.state
        self.ledger = WaitLedger(scheduler)
        self.ticks = ticks
        self._earlier = earlier
        self._known: dict[int, list[int]] = {}  # by row: the split of its wait before the ledger began
        self._latest: dict[str, int] = {}  # by public id: its row
        self._prior: dict[int, int] = {}  # old row of a job, by its row after it was submitted again
        self._last = -1  # the time of the last `observe`; -1: none yet
        self._rests = 0.0

    def happened(self, event: Event) -> None:
        """Record an event that the state has applied."""
        if not isinstance(event, JobSubmitted):
            return
        row, name = self.state.rows[event.job.id], public_id(event.job.id)
        before = self._latest.get(name)
        if before is not None and self.state.jobs[before, J_STATUS] == JobStatus.CANCELLED:
            self._prior[row] = before
        self._latest[name] = row

    def decided(self, plan: object) -> None:
        """Ignore plans: their effects arrive as events."""

    def observe(self, now: int) -> None:
        """Update the ledger by what has happened; does nothing for a while after a slow call."""
        began = self.ticks()
        if self._last < 0:
            self._begin(now)
        elif began < self._rests:
            return
        self._last = max(now, self._last)
        self.ledger.observe(self._last)
        took = self.ticks() - began
        self._rests = began + SHARE * took

    def _begin(self, now: int) -> None:
        self.ledger.begin(now)
        for row, waited in enumerate(self.ledger.before.tolist()):
            self._known[row] = self._before(row, waited)
        self._earlier = {}

    # --- queries --------------------------------------------------------------------------------------------------

    def of(self, row: int, now: int) -> dict[str, int]:
        """Return a job's wait until `now` in microseconds by cause, over all its submissions."""
        rows = [row]
        while rows[-1] in self._prior:
            rows.append(self._prior[rows[-1]])
        return _named(self.table(now, rows).sum(axis=0).tolist())

    def table(self, now: int, rows: Sequence[int]) -> Table:
        """Return the waits until `now` (µs), jobs x NAMES, without the waits before a job was withdrawn."""
        found: Table = np.zeros((len(rows), len(NAMES)), dtype=np.int64)
        waits = waits_at(self.state, now, np.array(rows, dtype=np.int64))
        if self._last >= 0:
            found[:, :-1] = self.ledger.splits(now, rows)
            for i, row in enumerate(rows):
                if row in self._known:
                    found[i] += self._known[row]
        elif self._earlier:
            for i, row in enumerate(rows):
                found[i] = self._before(row, int(waits[i]))
        for i in np.flatnonzero(found.sum(axis=1) != waits).tolist():  # no cause is known, or a clock went back
            found[i] = fitted(_named(found[i].tolist()), int(waits[i]))
        return found

    def kept(self, now: int) -> dict[str, dict[str, int]]:
        """Return the known waits of the waiting and running jobs by public id, for the ledger of the next state."""
        rows = list(self.state.live)
        table = self.table(now, rows)
        found = {
            public_id(self.state.ids[row]): self.of(row, now) if row in self._prior else _named(split)
            for row, split in zip(rows, table.tolist(), strict=True)
        }
        return {job: split for job, split in found.items() if split}

    def total(self, now: int) -> dict[str, float]:
        """Return seconds of waiting by cause, over all jobs of this state that were not rejected or withdrawn."""
        status = self.state.jobs[: len(self.state.ids), J_STATUS]
        admitted = np.flatnonzero((status != JobStatus.REJECTED) & (status != JobStatus.CANCELLED))
        table = self.table(now, admitted.tolist())
        # sum whole seconds and remainders separately: half a million waits of a year exceed 2^63 microseconds
        whole, rest = (table // SECOND).sum(axis=0).tolist(), (table % SECOND).sum(axis=0).tolist()
        return {name: a + b / SECOND for name, a, b in zip(NAMES, whole, rest, strict=True)}

    def _before(self, row: int, waited: int) -> list[int]:
        return fitted(self._earlier.get(public_id(self.state.ids[row]), {}), waited)


def _named(split: Sequence[int]) -> dict[str, int]:
    return {name: span for name, span in zip(NAMES, split, strict=True) if span}


def fitted(split: Split, waited: int) -> list[int]:
    """Return the split as a list by NAMES whose sum is `waited` (µs): a missing part is UNKNOWN, an excess is cut."""
    found = [0] * len(NAMES)
    left = waited
    for i, name in enumerate(NAMES):
        found[i] = max(min(split.get(name, 0), left), 0)
        left -= found[i]
    found[-1] += left
    return found
