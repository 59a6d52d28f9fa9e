"""Reasons for everybody who waits: also for those whom no cycle has tried, because one like them was tried before.

A cycle says why a job waits when it is first held back. Jobs that ask for the same in the same queue wait for the same
reason, so one question answers for all of them. Answers grow old; they are asked for again, a few at a time. Who waits
for a quota is asked about again when some of one came back: it may lack nothing but capacity now.
"""

from __future__ import annotations

from kant.cluster.columns import J_QUEUE, J_SHAPE, J_USER
from kant.kube.telling import Telling
from kant.kube.workload import Phase, Workload
from kant.kube.workloads import Workloads
from kant.live.core import Core
from kant.model.decision import Behind
from kant.scheduler.inquiry import Inquiry

SOON = 0.5  # seconds between two rounds of questions
AFRESH = 30.0  # seconds after which a kind of job is asked about again
AT_ONCE = 16  # questions in one round

Kind = tuple[int, int, int]
"""Shape, queue and user of a job."""


class Reasons:
    """Asks the core, and tells."""

    def __init__(self, core: Core, workloads: Workloads, telling: Telling) -> None:
        self.core = core
        self.workloads = workloads
        self.telling = telling
        self._asked: dict[Kind, float] = {}
        self._refunds = 0
        self._next = 0.0

    def ask(self) -> None:
        """Ask about the kinds of jobs that nobody has said anything about for long, some of them now."""
        now = self.core.clock()
        if now < self._next or not self.core.state.pending:
            return
        self._next = now + SOON
        kinds: dict[Kind, list[Workload]] = {}
        silent: dict[Kind, None] = {}
        state = self.core.state
        came_back = self._refunds != state.holdings.refunds
        self._refunds = state.holdings.refunds
        rows = list(state.pending)
        for row, (shape, queue, user) in zip(
            rows, state.jobs[rows][:, [J_SHAPE, J_QUEUE, J_USER]].tolist(), strict=True
        ):
            known = self.workloads.by_job.get(state.ids[row])
            if known is None or known.phase is not Phase.WAITING:
                continue
            kinds.setdefault((shape, queue, user), []).append(known)
            if not known.reason or (known.queued and came_back):
                silent[shape, queue, user] = None
        for kind in [kind for kind in self._asked if kind not in kinds]:
            del self._asked[kind]
        old = [kind for kind in kinds if kind not in silent and now - self._asked.get(kind, now) > AFRESH]
        due = [*silent, *sorted(old, key=lambda kind: self._asked[kind])][:AT_ONCE]
        for kind in kinds:
            self._asked.setdefault(kind, now)
        if due:
            inquiry = Inquiry(self.core.scheduler, self.core.now)
            for kind in due:
                self._asked[kind] = now
                self._answer(inquiry, kinds[kind])

    def _answer(self, inquiry: Inquiry, alike: list[Workload]) -> None:
        row = inquiry.row(alike[0].job)
        reason = inquiry.why(row)
        if isinstance(reason, Behind):  # of those who ask for the same the first says what all of them lack
            jobs, head = inquiry.state.jobs, inquiry.row(reason.job)
            if jobs[head, J_SHAPE] == jobs[row, J_SHAPE]:
                reason = inquiry.why(head)
        for known in alike:
            pods = self.workloads.pods_of.get(known.key, ())
            if reason is not None:
                self.telling.waits(known, pods, reason)
            elif not known.reason:
                known.reason = "it is next in turn"
