"""When each waiting job is expected to start: the whole queue laid out in time beside running jobs and reservations.

Two plans are made: one with the median of each job's run time, one with its 90th percentile. A plan takes each run time
as exact, so its times are starts under that assumption; they are no quantiles of the start.

To plan a long queue takes long, so it can be done as a cooperative task, one job a step (`cooperative.py`). A plan is
about the moment at which it was begun and leaves out jobs that have left since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from kant.cluster.columns import J_BASE, J_QUEUE, J_USER
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.quota_usage import Amounts, Held
from kant.insight.cooperative import OutdatedError, Task, cooperative, run_to_end
from kant.insight.diagnosis import Diagnosis
from kant.insight.protected_victims import MinRunWaits
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.placement.calendar.calendar import Calendar
from kant.queueing.estimates import Estimates
from kant.queueing.rejection import never_starts
from kant.scheduler.cycle import Scheduler

Charged = tuple[int, int, Held, Amounts]
"""Queue, user, and what a running job is charged with."""

StartTimes = tuple[int | None, int | None]
"""Start by median run times and by their 90th percentile; None where it is not known."""

MOST_CHARGES = 200_000
"""Quota charges that one plan looks at. Jobs that need more get no expected start."""


class StartPlan:
    """One plan: the waiting jobs in the profile's order, each at its earliest start beside those before it.

    Under a strict discipline a job starts no sooner than the one before it in its bucket. With `reservations`, jobs
    that hold one start when it says; without, as soon as they fit. A job for which others may be stopped once they have
    run for their `min_run` starts then, if that is sooner.
    """

    def __init__(
        self, diagnosis: Diagnosis, estimates: Estimates, reservations: bool = True, bare: bool = False
    ) -> None:
        """With `bare` the running jobs are not yet in the plan: `begin_task` adds them."""
        self.diagnosis = diagnosis
        self.state = diagnosis.state
        self.now = diagnosis.now
        self.estimates = estimates
        self.starts: dict[int, int | None] = {}
        self.calendar = Calendar(self.state.empty, self.state.table, self.state.shapes)
        self.calendar.lack(self.state.health.lost, self.now)
        self.charges = Charges(diagnosis)
        self.min_run_waits = MinRunWaits(diagnosis)
        discipline = diagnosis.profile.discipline
        self.strict = discipline.buckets and discipline.bucket(0, 1) == discipline.bucket(0, 2)
        self._before: dict[tuple[int, ...], int] = {}  # by bucket: the start of its last job
        charged = self.charges.quota_usage.charged
        self._runs = [(row, held, charged.get(row)) for row, held in self.state.running.items()]
        self._reserved = list(self.state.reserved.items()) if reservations else []
        if not bare:
            run_to_end(self._add_running())

    @classmethod
    def begin_task(cls, diagnosis: Diagnosis, estimates: Estimates, reservations: bool = True) -> Task[StartPlan]:
        """A plan of the running jobs and the reservations alone, made as a cooperative task, one running job a step."""
        plan = cls(diagnosis, estimates, reservations, bare=True)
        yield from plan._add_running()
        return plan

    def _add_running(self) -> Task[None]:
        for row, allocation, charge in self._runs:
            end = self.estimates.end(self.state, row, self.now)
            self.calendar.add(row, allocation, self.now, end)
            self.charges.add_running(charge, end)
            if (yield):
                self.renew()
        for row, reservation in self._reserved:
            start = max(reservation.start, self.now)
            end = max(reservation.end, start + 1)
            self.calendar.add(row, reservation.allocation, start, end)
            self.charges.add(row, start, end, reservation.allocation)
            self.starts[row] = start

    def lay_out(self, rows: Iterable[int], last: int = -1) -> dict[int, int | None]:
        """The starts of `rows`, given in order, up to row `last`. Burst replicas come after their base jobs."""
        return run_to_end(self.lay_out_task(rows, last))

    def lay_out_task(self, rows: Iterable[int], last: int = -1) -> Task[dict[int, int | None]]:
        """The starts of `rows` (see `lay_out`), found as a cooperative task, one job a step."""
        bases = self.state.jobs[:, J_BASE]
        later = [row for row in rows if bases[row] in self.state.pending]
        waits = set(later)
        for row in [*(row for row in rows if row not in waits), *later]:
            if row not in self.starts and row in self.state.pending:
                self.starts[row] = self._start_of(row)
            if row == last:
                break
            if (yield):
                self.renew()
        return self.starts

    def renew(self) -> None:
        """Read the state as it is now for the jobs still to come.

        Raises OutdatedError where the queues have changed: the charges of the plan belong to the old ones.
        """
        if self.state.quota_usage.queue_config is not self.charges.queue_config:
            raise OutdatedError
        self.diagnosis = renewed(self.diagnosis)
        self.min_run_waits = self.min_run_waits.renewed(self.diagnosis)

    def _start_of(self, row: int) -> int | None:
        state, diagnosis = self.state, self.diagnosis
        not_before = self.now
        base = int(state.jobs[row, J_BASE])
        if diagnosis.uses_quotas:
            gate = diagnosis.profile.requeue.back_off(state, row)
            not_before = max(not_before, gate.until if gate is not None else self.now)
            if base >= 0 and base not in state.running:
                after = self.starts.get(base)
                if after is None:
                    return None
                not_before = max(not_before, after)
            elif diagnosis.admission.closed(row) is not None:
                return None
        if never_starts(diagnosis.cycle, row) is not None:
            return None
        shape = state.shape_of(row)
        bucket = diagnosis.profile.discipline.bucket(int(state.jobs[row, J_QUEUE]), shape.index) if self.strict else ()
        if self.strict:
            not_before = max(not_before, self._before.get(bucket, self.now))
            if not_before >= FOREVER:
                return None
        start = self._place(row, not_before)
        protected = self.min_run_waits.of(row, FOREVER if start is None else start)
        if protected is not None:
            start = max(protected.at, not_before)
        if self.strict:
            self._before[bucket] = FOREVER if start is None else start
        return start

    def _place(self, row: int, not_before: int) -> int | None:
        """Commit the job to its earliest place on any GPU model that its quota allows."""
        state = self.state
        duration = self.estimates.duration(state, row)
        options = [state.shape_of(row)]
        if self.diagnosis.uses_quotas:
            options = self.diagnosis.admission.options(row, options[0])
        best: tuple[int, np.ndarray] | None = None
        for option in options:
            found: tuple[int, np.ndarray] | None = None
            allowed = self.charges.allowed(row, option.index, not_before)
            while allowed is not None and (found is None or found[0] < allowed):
                found = self.calendar.earliest(option, duration, allowed)
                allowed = None if found is None else self.charges.allowed(row, option.index, found[0])
            if allowed is None:
                continue
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None or best[0] >= FOREVER:
            return None
        end = min(best[0] + duration, FOREVER)
        self.calendar.add(row, best[1], best[0], end)
        self.charges.add(row, best[0], end, best[1])
        return best[0]


class Charges:
    """Quota usage over time: running jobs up to their expected ends, and planned jobs."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.state = diagnosis.state
        self.quota_usage = diagnosis.state.quota_usage
        self.queue_config = self.quota_usage.queue_config
        self.on = diagnosis.uses_quotas and self.quota_usage.tree is not None
        self._spans: list[tuple[int, int, int, int, tuple[int, ...]]] = []  # start, end, node, user, amounts
        self._looked = 0

    def add_running(self, charge: Charged | None, end: int) -> None:
        if self.on and charge is not None:
            queue, user, _, amounts = charge
            if self.quota_usage.node_of[queue] >= 0:
                self._spans.append((-1, end, self.quota_usage.node_of[queue], user, amounts))

    def add(self, row: int, start: int, end: int, allocation: Allocation) -> None:
        node, user = self._who(row)
        if node >= 0:
            self._spans.append((start, end, node, user, self.quota_usage.amounts(self.state.shape_of(row), allocation)))

    def _who(self, row: int) -> tuple[int, int]:
        if not self.on:
            return -1, 0
        queue, user = self.state.jobs[row, [J_QUEUE, J_USER]].tolist()
        return self.quota_usage.node_of[queue], user

    def allowed(self, row: int, shape: int, not_before: int) -> int | None:
        """The first moment from `not_before` on at which the quotas admit the job; None where none is known."""
        node, user = self._who(row)
        if node < 0:
            return not_before
        amounts = self.quota_usage.amounts(self.state.shapes.shapes[shape])
        tree = QuotaTree(self.quota_usage.queue_config)
        coming = []
        for span in self._spans:
            if span[0] <= not_before < span[1]:
                tree.charge(*span[2:])
            if span[1] > not_before:
                coming += [(span[1], 0, span)] if span[1] < FOREVER else []
                coming += [(span[0], 1, span)] if span[0] > not_before else []
        self._looked += len(self._spans)
        coming.sort(key=lambda change: change[:2])
        at = not_before
        while (short := tree.shortage(node, user, amounts)) is not None:
            while coming and coming[0][0] == at:
                self._change(tree, coming.pop(0))
            if not coming or self._looked > MOST_CHARGES:
                return None
            at = coming[0][0]
            while coming and coming[0][0] == at:
                self._change(tree, coming.pop(0))
        assert short is None
        return at

    def _change(self, tree: QuotaTree, change: tuple[int, int, tuple[int, int, int, int, tuple[int, ...]]]) -> None:
        self._looked += 1
        if change[1]:
            tree.charge(*change[2][2:])
        else:
            tree.refund(*change[2][2:])


@cooperative
def expected_starts(scheduler: Scheduler, now: int | None = None, only: str = "") -> Task[dict[str, StartTimes]]:
    """The expected start of every waiting job (or of those up to job `only`), by job.

    None where it is not known: its queue is closed, its quota or place has no end in sight, or it can never start. A
    job that holds a reservation starts at its time or before.
    """
    diagnosis = Diagnosis(scheduler, now)
    state = diagnosis.state
    ranked, last = _in_order(diagnosis, only)
    plan = yield from StartPlan.begin_task(diagnosis, kept_with(scheduler.profile.estimates, 90))
    likely = early = yield from plan.lay_out_task(ranked, last)
    if scheduler.profile.estimates.learns:
        median = yield from _median_plan(renewed(plan.diagnosis))
        early = yield from median.lay_out_task(ranked, last)
    return {state.ids[row]: _ordered(early[row], likely[row]) for row in ranked if row in likely and row in early}


@cooperative
def median_starts(scheduler: Scheduler, now: int | None = None, only: str = "") -> Task[dict[str, int | None]]:
    """The expected starts by a plan with median run times, by job. Learned run times are used where there are any."""
    diagnosis = Diagnosis(scheduler, now)
    ranked, last = _in_order(diagnosis, only)
    plan = yield from _median_plan(diagnosis)
    starts = yield from plan.lay_out_task(ranked, last)
    return {diagnosis.state.ids[row]: starts[row] for row in ranked if row in starts}


def renewed(diagnosis: Diagnosis) -> Diagnosis:
    """A diagnosis of the state as it is now, for the same time."""
    return Diagnosis(diagnosis.scheduler, diagnosis.now)


def _median_plan(diagnosis: Diagnosis) -> Task[StartPlan]:
    estimates = diagnosis.profile.estimates
    return StartPlan.begin_task(diagnosis, kept_with(estimates, 50), reservations=not estimates.learns)


def _in_order(diagnosis: Diagnosis, only: str) -> tuple[list[int], int]:
    """The rows of the waiting jobs in the profile's order, and the row of job `only` (-1: all are asked about)."""
    if not diagnosis.state.pending:
        return [], -1
    rows = diagnosis.cycle.waiting_rows()
    return rows[diagnosis.cycle.ranking(rows)].tolist(), diagnosis.state.rows[only] if only else -1


def kept_with(estimates: Estimates, probability: Literal[50, 90]) -> Estimates:
    """Estimates at another percentile, where they are learned."""
    return msgspec.structs.replace(estimates, probability=probability)


def _ordered(early: int | None, late: int | None) -> StartTimes:
    """The two starts in order. With shorter run times a job may start later, when others then come before it."""
    if early is None or late is None:
        return (early, late) if late is None else (late, late)
    return min(early, late), late
