"""When each waiting job is expected to start: the whole queue laid out in time beside what runs and what is promised.

The plan is made twice, with the run times that jobs keep to with a probability of 50 % and of 90 %. Each plan takes
every job at its word, so its times are when a job starts if all keep to theirs; they are no quantiles of a start.

To plan a long queue takes long, so it can be done in steps, a job each (`steps.py`): a plan is of the moment at which
it was begun, and leaves out who has gone since.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from kant.cluster.columns import J_CORE, J_QUEUE, J_USER
from kant.cluster.holdings import Amounts, Held
from kant.cluster.quota_tree import QuotaTree
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.placement.timeline import Timeline
from kant.queueing.estimates import Estimates
from kant.scheduler.cycle import Scheduler, never_starts
from kant.scheduler.inquiry import Inquiry
from kant.scheduler.steps import Outdated, Steps, at_once

Charged = tuple[int, int, Held, Amounts]
"""Queue, user, and what a running job is charged with."""

Expected = tuple[int | None, int | None]
"""Start by the run times of 50 % and of 90 %; None where no end is in sight."""

MOST_CHARGES = 200_000
"""How many charges of a quota one plan looks at before it gives the rest of the quota-bound jobs no time."""


class StartPlan:
    """One plan: the waiting jobs in the order of the profile, each at its earliest start beside those before it.

    In a discipline that lets nobody pass, a job starts no sooner than the one before it in its lane. With `promises`
    those that hold one start as promised; without, as soon as they can.
    """

    def __init__(self, inquiry: Inquiry, estimates: Estimates, promises: bool = True, bare: bool = False) -> None:
        """`bare`: who runs is still to be taken in (`beginning`)."""
        self.inquiry = inquiry
        self.state = inquiry.state
        self.now = inquiry.now
        self.estimates = estimates
        self.starts: dict[int, int | None] = {}
        self.timeline = Timeline(self.state.empty, self.state.table, self.state.shapes)
        self.timeline.lack(self.state.health.lost, self.now)
        self.charges = Charges(inquiry)
        discipline = inquiry.profile.discipline
        self.strict = discipline.lanes and discipline.lane(0, 1) == discipline.lane(0, 2)
        self._before: dict[tuple[int, ...], int] = {}  # by lane: when the last of it starts
        charged = self.charges.holdings.charged
        self._runs = [(row, held, charged.get(row)) for row, held in self.state.running.items()]
        self._promised = list(self.state.reserved.items()) if promises else []
        if not bare:
            at_once(self._take_in())

    @classmethod
    def beginning(cls, inquiry: Inquiry, estimates: Estimates, promises: bool = True) -> Steps[StartPlan]:
        """A plan in which nobody who waits has a place yet, a job that runs a step."""
        plan = cls(inquiry, estimates, promises, bare=True)
        yield from plan._take_in()
        return plan

    def _take_in(self) -> Steps[None]:
        for row, allocation, charge in self._runs:
            end = self.estimates.end(self.state, row, self.now)
            self.timeline.add(row, allocation, self.now, end)
            self.charges.runs(charge, end)
            if (yield):
                self.renew()
        for row, promise in self._promised:
            start = max(promise.start, self.now)
            end = max(promise.end, start + 1)
            self.timeline.add(row, promise.allocation, start, end)
            self.charges.add(row, start, end, promise.allocation)
            self.starts[row] = start

    def lay_out(self, rows: Iterable[int], last: int = -1) -> dict[int, int | None]:
        """The starts of `rows`, which come in order, up to row `last`; bursts wait for their cores."""
        return at_once(self.laying_out(rows, last))

    def laying_out(self, rows: Iterable[int], last: int = -1) -> Steps[dict[int, int | None]]:
        """The same, a job a step."""
        cores = self.state.jobs[:, J_CORE]
        later = [row for row in rows if cores[row] in self.state.pending]
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
        """Something may have happened: what is asked about the jobs still to come is asked of the state as it is now.

        Raises Outdated where the queues are others: what is charged to them would be read wrongly.
        """
        if self.state.holdings.tenancy is not self.charges.tenancy:
            raise Outdated
        self.inquiry = renewed(self.inquiry)

    def _start_of(self, row: int) -> int | None:
        state, inquiry = self.state, self.inquiry
        not_before = self.now
        core = int(state.jobs[row, J_CORE])
        if inquiry.heeds_quotas:
            gate = inquiry.profile.requeue.back_off(state, row)
            not_before = max(not_before, gate.until if gate is not None else self.now)
            if core >= 0 and core not in state.running:
                after = self.starts.get(core)
                if after is None:
                    return None
                not_before = max(not_before, after)
            elif inquiry.admission.closed(row) is not None:
                return None
        if never_starts(inquiry.turn, row) is not None:
            return None
        shape = state.shape_of(row)
        lane = inquiry.profile.discipline.lane(int(state.jobs[row, J_QUEUE]), shape.index) if self.strict else ()
        if self.strict:
            not_before = max(not_before, self._before.get(lane, self.now))
            if not_before >= FOREVER:
                return None
        start = self._seat(row, not_before)
        if self.strict:
            self._before[lane] = FOREVER if start is None else start
        return start

    def _seat(self, row: int, not_before: int) -> int | None:
        """Commit the job to its earliest place on any GPU model that its quota lets it have."""
        state = self.state
        duration = self.estimates.duration(state, row)
        options = [state.shape_of(row)]
        if self.inquiry.heeds_quotas:
            options = self.inquiry.admission.options(row, options[0])
        best: tuple[int, np.ndarray] | None = None
        for option in options:
            found: tuple[int, np.ndarray] | None = None
            allowed = self.charges.allowed(row, option.index, not_before)
            while allowed is not None and (found is None or found[0] < allowed):
                found = self.timeline.earliest(option, duration, allowed)
                allowed = None if found is None else self.charges.allowed(row, option.index, found[0])
            if allowed is None:
                continue
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None or best[0] >= FOREVER:
            return None
        end = min(best[0] + duration, FOREVER)
        self.timeline.add(row, best[1], best[0], end)
        self.charges.add(row, best[0], end, best[1])
        return best[0]


class Charges:
    """What is charged to the quotas over time: by running jobs up to their expected ends, and by planned ones."""

    def __init__(self, inquiry: Inquiry) -> None:
        self.state = inquiry.state
        self.holdings = inquiry.state.holdings
        self.tenancy = self.holdings.tenancy
        self.on = inquiry.heeds_quotas and self.holdings.tree is not None
        self._spans: list[tuple[int, int, int, int, tuple[int, ...]]] = []  # start, end, node, user, amounts
        self._looked = 0

    def runs(self, charge: Charged | None, end: int) -> None:
        if self.on and charge is not None:
            queue, user, _, amounts = charge
            if self.holdings.node_of[queue] >= 0:
                self._spans.append((-1, end, self.holdings.node_of[queue], user, amounts))

    def add(self, row: int, start: int, end: int, allocation: Allocation) -> None:
        node, user = self._who(row)
        if node >= 0:
            self._spans.append((start, end, node, user, self.holdings.amounts(self.state.shape_of(row), allocation)))

    def _who(self, row: int) -> tuple[int, int]:
        if not self.on:
            return -1, 0
        queue, user = self.state.jobs[row, [J_QUEUE, J_USER]].tolist()
        return self.holdings.node_of[queue], user

    def allowed(self, row: int, shape: int, not_before: int) -> int | None:
        """The first moment from `not_before` on at which the quotas let the job start; None where none is known."""
        node, user = self._who(row)
        if node < 0:
            return not_before
        amounts = self.holdings.amounts(self.state.shapes.shapes[shape])
        tree = QuotaTree(self.holdings.tenancy)
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


def expected_starts(scheduler: Scheduler, now: int | None = None, only: str = "") -> dict[str, Expected]:
    """Of every waiting job (or of those up to job `only`): when it is expected to start.

    None where it is not known: its queue is closed, its quota or the place that it needs has no end in sight, or it
    can never start. A job that holds a promise starts when it was promised, or before.
    """
    return at_once(expecting_starts(scheduler, now, only))


def expecting_starts(scheduler: Scheduler, now: int | None = None, only: str = "") -> Steps[dict[str, Expected]]:
    """The same, in steps."""
    inquiry = Inquiry(scheduler, now)
    state = inquiry.state
    ranked, last = _in_order(inquiry, only)
    plan = yield from StartPlan.beginning(inquiry, kept_with(scheduler.profile.estimates, 90))
    likely = early = yield from plan.laying_out(ranked, last)
    if scheduler.profile.estimates.learns:
        median = yield from _median_plan(renewed(plan.inquiry))
        early = yield from median.laying_out(ranked, last)
    return {state.ids[row]: _ordered(early[row], likely[row]) for row in ranked if row in likely and row in early}


def median_starts(scheduler: Scheduler, now: int | None = None, only: str = "") -> dict[str, int | None]:
    """The starts of the one plan that is made with the run times of 50 %, where they are learned."""
    return at_once(median_steps(scheduler, now, only))


def median_steps(scheduler: Scheduler, now: int | None = None, only: str = "") -> Steps[dict[str, int | None]]:
    """The same, in steps."""
    inquiry = Inquiry(scheduler, now)
    ranked, last = _in_order(inquiry, only)
    plan = yield from _median_plan(inquiry)
    starts = yield from plan.laying_out(ranked, last)
    return {inquiry.state.ids[row]: starts[row] for row in ranked if row in starts}


def renewed(inquiry: Inquiry) -> Inquiry:
    """The same questions about the state as it is now."""
    return Inquiry(inquiry.scheduler, inquiry.now)


def _median_plan(inquiry: Inquiry) -> Steps[StartPlan]:
    estimates = inquiry.profile.estimates
    return StartPlan.beginning(inquiry, kept_with(estimates, 50), promises=not estimates.learns)


def _in_order(inquiry: Inquiry, only: str) -> tuple[list[int], int]:
    """The rows of the waiting jobs in the order of the profile, and the last that is asked about (-1: all are)."""
    if not inquiry.state.pending:
        return [], -1
    rows = inquiry.turn.pending()
    return rows[inquiry.turn.ranking(rows)].tolist(), inquiry.state.rows[only] if only else -1


def kept_with(estimates: Estimates, probability: Literal[50, 90]) -> Estimates:
    """Estimates that jobs keep to with another probability, where they are learned."""
    return msgspec.structs.replace(estimates, probability=probability)


def _ordered(early: int | None, late: int | None) -> Expected:
    """Shorter run times may leave a job worse off, when others then come before it: that is no earlier start."""
    if early is None or late is None:
        return (early, late) if late is None else (late, late)
    return min(early, late), late
