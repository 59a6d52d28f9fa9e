"""Executes plans on this machine: each decision becomes an event for the state at once, and work for the launcher."""

from __future__ import annotations

from collections.abc import Callable

from kant.live.executor import PlanExecutor
from kant.live.sentences import public_sentence
from kant.local.completion import over_limit
from kant.local.jobs import LocalJobs
from kant.local.record import JobPhase, JobRecord
from kant.model.decision import Expire, Grow, Hold, Preempt, Reason, Reject, Shrink, Start
from kant.model.event import Event, JobPreempted, JobRejected


class LocalExecutor(PlanExecutor):
    """Executes plans for the jobs of one driver. `evicted` gets the rule by which each job is preempted."""

    def __init__(self, jobs: LocalJobs, evicted: Callable[[str], None] = lambda why: None) -> None:
        self.jobs = jobs
        self.evicted = evicted

    @property
    def now(self) -> int:  # type: ignore[override]
        return self.jobs.core.now

    def happen(self, event: Event) -> None:
        self.jobs.core.happen(event)

    def sentence(self, reason: Reason) -> str:
        return public_sentence(reason)

    def on_start(self, start: Start) -> None:
        super().on_start(start)
        record = self.jobs.by_core[start.job]
        self.jobs.notes.pop(record.id, None)
        self.jobs.launcher.plan(record, start.allocation.tolist())

    def on_hold(self, hold: Hold) -> None:
        self.jobs.notes[self.jobs.by_core[hold.job].id] = public_sentence(hold.reason)

    def on_preempt(self, preempt: Preempt) -> None:
        self.happen(JobPreempted(self.now, preempt.job, by=preempt.by))
        self.evicted(preempt.why)
        winner = self.jobs.by_core.get(preempt.by)
        why = f"{preempt.why}, for job {winner.id}" if winner is not None else preempt.why
        self.stop(self.jobs.by_core[preempt.job], why)

    def on_shrink(self, shrink: Shrink) -> None:
        super().on_shrink(shrink)
        self._resized(shrink.job)

    def on_grow(self, grow: Grow) -> None:
        super().on_grow(grow)
        self._resized(grow.job)

    def _resized(self, job: str) -> None:
        record, state = self.jobs.by_core[job], self.jobs.core.state
        self.jobs.launcher.resize(record, state.running[state.rows[job]].tolist())
        self.jobs.touch(record)

    def on_reject(self, reject: Reject) -> None:
        record = self.jobs.by_core[reject.job]
        super().on_reject(reject)
        self.jobs.leave(record)
        self.jobs.finish(record, JobPhase.REJECTED, public_sentence(reject.reason))

    def on_expire(self, expire: Expire) -> None:
        """Stop a job that has reached its time limit: it fails, or waits again if it has retries left."""
        jobs, record = self.jobs, self.jobs.by_core[expire.job]
        record.failures += 1
        super().on_expire(expire)
        if record.failures > record.submission.retries:
            self.happen(JobRejected(self.now, expire.job, over_limit(record, jobs.clock.micros())))
            jobs.leave(record)
        self.stop(record, "limit")
        if record.phase is JobPhase.WAITING and record.id not in jobs.core_id:
            jobs.finish(record, JobPhase.FAILED, over_limit(record, jobs.clock.micros()))

    def stop(self, record: JobRecord, why: str) -> None:
        """Stop the run of a job for the reason `why`. If the run has not begun, the job waits again without a place."""
        launcher = self.jobs.launcher
        if launcher.cancel_start(record):
            record.phase, record.started, record.place = JobPhase.WAITING, -1, []
            self.jobs.touch(record)
            return
        if launcher.cancel_plan(record):
            return
        record.phase, record.stopping = JobPhase.STOPPING, why
        launcher.to_stop.append(record)
        self.jobs.touch(record)
