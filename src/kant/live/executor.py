"""Turns a plan into events: the common meaning of each decision, which each driver extends with its own actions."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kant.model.decision import (
    Decision,
    Demote,
    Expire,
    Grow,
    Hold,
    Plan,
    Preempt,
    Reason,
    Reject,
    Release,
    Reorder,
    Reserve,
    Route,
    Shrink,
    Start,
    sentence,
)
from kant.model.event import (
    Event,
    JobDemoted,
    JobFailed,
    JobGrown,
    JobPreempted,
    JobRejected,
    JobReleased,
    JobReserved,
    JobShrunk,
    JobStarted,
    PolicyRouted,
    QueueOrdered,
)


class PlanExecutor(ABC):
    """Reports each decision of a plan as an event, in the order of the plan.

    A driver provides the time (`now`) and applies events (`happen`). It overrides the `on_` method of a decision that
    affects its processes, pods or metrics. Without an override a decision succeeds at once.
    """

    now: int

    @abstractmethod
    def happen(self, event: Event) -> None:
        """Apply one event."""

    def execute(self, plan: Plan) -> None:
        """Apply all decisions of the plan."""
        for decision in plan.decisions:
            self.apply(decision)

    def apply(self, decision: Decision) -> None:
        """Apply one decision."""
        match decision:
            case Start():
                self.on_start(decision)
            case Hold():
                self.on_hold(decision)
            case Preempt():
                self.on_preempt(decision)
            case Shrink():
                self.on_shrink(decision)
            case Grow():
                self.on_grow(decision)
            case Expire():
                self.on_expire(decision)
            case Reject():
                self.on_reject(decision)
            case Reserve(job=job, start=start, end=end, allocation=allocation):
                self.happen(JobReserved(self.now, job, start, end, allocation))
            case Release(job=job):
                self.happen(JobReleased(self.now, job))
            case Demote(job=job, level=level):
                self.happen(JobDemoted(self.now, job, level))
            case Reorder():
                self.on_reorder(decision)
            case Route(policy=policy, why=why):
                self.happen(PolicyRouted(self.now, policy, why))

    def sentence(self, reason: Reason) -> str:
        """Return the text of a reason in a rejection event."""
        return sentence(reason)

    def on_start(self, start: Start) -> None:
        """Start a waiting job with its allocation."""
        self.happen(JobStarted(self.now, start.job, start.allocation))

    def on_hold(self, hold: Hold) -> None:
        """Handle a job that keeps waiting: by default nothing happens."""
        return

    def on_preempt(self, preempt: Preempt) -> None:
        """Preempt a running job, which waits again."""
        self.happen(JobPreempted(self.now, preempt.job, 0, preempt.moved, preempt.by))

    def on_shrink(self, shrink: Shrink) -> None:
        """Remove some pods of an elastic gang."""
        self.happen(JobShrunk(self.now, shrink.job, shrink.allocation, 0, shrink.by))

    def on_grow(self, grow: Grow) -> None:
        """Add pods to an elastic gang."""
        self.happen(JobGrown(self.now, grow.job, grow.allocation))

    def on_expire(self, expire: Expire) -> None:
        """Fail a running job that has reached its time limit."""
        self.happen(JobFailed(self.now, expire.job, "limit"))

    def on_reject(self, reject: Reject) -> None:
        """Reject a job that can never start."""
        self.happen(JobRejected(self.now, reject.job, self.sentence(reject.reason)))

    def on_reorder(self, reorder: Reorder) -> None:
        """Apply a new order of a queue's jobs."""
        self.happen(QueueOrdered(self.now, reorder.jobs))
