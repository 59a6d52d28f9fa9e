"""A ledger of waits without accounts: at every instant the cause of each waiting job is found from scratch.

It shares with Kant's ledger what a cause is (`WaitClassifier`, made anew each time), and nothing of what that ledger
keeps, skips or adds up for several jobs together.
"""

from __future__ import annotations

from collections import Counter

from kant.cluster import columns as c
from kant.metrics.wait_causes import Cause, WaitClassifier
from kant.testing import Harness


class NaiveLedger:
    """Call `observe` at the end of every instant. `spent` has microseconds by cause for each job that ever waited."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.spent: dict[int, Counter[Cause]] = {}
        self._last = 0
        self._why: dict[int, tuple[Cause, int]] = {}  # of each waiting job: its cause, once its back-off has ended

    def observe(self, now: int) -> None:
        """Count the time since the last instant for the causes found then, and find those from now on."""
        for row, (cause, until) in self._why.items():
            gated = max(min(until, now) - self._last, 0)
            self.spent[row][Cause.GATED] += gated
            self.spent[row][cause] += now - self._last - gated
        self._last, self._why = now, {row: self._find(row, now) for row in self.harness.state.pending}
        for row in self._why:
            self.spent.setdefault(row, Counter())

    def _find(self, row: int, now: int) -> tuple[Cause, int]:
        scheduler, state, until = self.harness.scheduler, self.harness.state, now
        profile, jobs = scheduler.profile, state.jobs
        if profile.discipline.quotas:
            if jobs[row, c.J_BASE] >= 0 and int(jobs[row, c.J_BASE]) not in state.running:
                return Cause.GATED, now
            back_off = profile.requeue.back_off(state, row) if jobs[row, c.J_RETURNS] else None
            until = back_off.until if back_off is not None else now
        judge, bucket = WaitClassifier(scheduler), None
        if judge.strict:
            scheduler.begin(now)
            pending = scheduler.pending
            judge.heads = {pending.keys[at]: head for head, _, at, _ in pending.heads()}
            if row not in judge.heads.values() or until > now:
                bucket = profile.discipline.bucket(int(jobs[row, c.J_QUEUE]), int(jobs[row, c.J_SHAPE]))
        judge.follow(None)
        return judge.cause(judge.waiter(row, bucket)), until
