"""Plans the starts of all waiting jobs around running jobs and reservations, each job as early as possible.

A plan treats run times as exact, and ignores the profile's other features, such as preemption. It is the baseline for a
gang that may wait for one domain (`domain_choice.py`). `sim/forecast_starts.py` forecasts start times.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from kant.cluster.columns import J_BASE, J_QUEUE, J_USER
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.quota_usage import Amounts, Held
from kant.insight.diagnosis import Diagnosis
from kant.model.placement import Allocation
from kant.model.units import FOREVER
from kant.placement.calendar.calendar import Calendar
from kant.queueing.estimates import Estimates
from kant.queueing.rejection import never_starts

Charged = tuple[int, int, Held, Amounts]
"""Queue and user of a running job, and the amounts charged to them."""

MOST_CHARGES = 200_000
"""Maximum number of quota charges that one plan examines. A job that needs more gets no expected start."""


class StartPlan:
    """One plan: the waiting jobs in the profile's order, each at its earliest start given the jobs before it.

    Under a strict discipline a job does not start before the previous job of its bucket. Jobs with a reservation start
    when their reservation begins.
    """

    def __init__(self, diagnosis: Diagnosis, estimates: Estimates) -> None:
        self.diagnosis = diagnosis
        self.state = diagnosis.state
        self.now = diagnosis.now
        self.estimates = estimates
        self.starts: dict[int, int | None] = {}
        self.calendar = Calendar(self.state.empty, self.state.table, self.state.shapes)
        self.calendar.lack(self.state.health.lost, self.now)
        self.charges = Charges(diagnosis)
        discipline = diagnosis.profile.discipline
        self.strict = discipline.buckets and discipline.bucket(0, 1) == discipline.bucket(0, 2)
        self._before: dict[tuple[int, ...], int] = {}  # by bucket: the start of its last job
        charged = self.charges.quota_usage.charged
        for row, allocation in self.state.running.items():
            end = self.estimates.end(self.state, row, self.now)
            self.calendar.add(row, allocation, self.now, end)
            self.charges.add_running(charged.get(row), end)
        for row, reservation in self.state.reserved.items():
            start = max(reservation.start, self.now)
            end = max(reservation.end, start + 1)
            self.calendar.add(row, reservation.allocation, start, end)
            self.charges.add(row, start, end, reservation.allocation)
            self.starts[row] = start

    def lay_out(self, rows: Iterable[int]) -> dict[int, int | None]:
        """Return the start of each job of `rows`, planned in order (None: unknown). Burst replicas follow base jobs."""
        bases = self.state.jobs[:, J_BASE]
        later = [row for row in rows if bases[row] in self.state.pending]
        waits = set(later)
        for row in [*(row for row in rows if row not in waits), *later]:
            if row not in self.starts and row in self.state.pending:
                self.starts[row] = self._start_of(row)
        return self.starts

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
        if self.strict:
            self._before[bucket] = FOREVER if start is None else start
        return start

    def _place(self, row: int, not_before: int) -> int | None:
        """Plan the job at its earliest place on any GPU model that its quota allows. Return its start, or None."""
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
        """Return the first time from `not_before` on at which the quotas admit the job; None if none is known."""
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


def kept_with(estimates: Estimates, probability: Literal[50, 90]) -> Estimates:
    """Return the estimates at another percentile. Only estimates that are learned depend on the percentile."""
    return msgspec.structs.replace(estimates, probability=probability)
