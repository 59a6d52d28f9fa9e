"""Carrying out a plan: each decision as events for the state at once, and as work for the binder and the evictor."""

from __future__ import annotations

from collections import deque

from kant.kube.evictor import Eviction
from kant.kube.mirror import Mirror
from kant.kube.objects import Pod
from kant.kube.workload import Phase, Workload
from kant.kube.workloads import Workloads
from kant.live.core import Core
from kant.live.sentences import said
from kant.model.decision import (
    Demote,
    Expire,
    Hold,
    Plan,
    Preempt,
    Reject,
    Release,
    Reorder,
    Reserve,
    Start,
)
from kant.model.event import (
    JobCancelled,
    JobDemoted,
    JobFailed,
    JobPreempted,
    JobRefused,
    JobRejected,
    JobReleased,
    JobReserved,
    JobStarted,
    QueueOrdered,
)


class Carrier:
    """Takes plans apart. `evictions` are those that are to be asked for now."""

    def __init__(self, core: Core, mirror: Mirror, workloads: Workloads, leaving: dict[str, dict[str, None]]) -> None:
        self.core = core
        self.mirror = mirror
        self.workloads = workloads
        self.leaving = leaving
        self.evictions: list[Eviction] = []
        self.held: deque[tuple[Workload, Hold | Reject]] = deque()

    def carry(self, plan: Plan) -> None:
        """Say what the plan decides as events, in its order."""
        core, known = self.core, self.workloads.by_job
        by: dict[str, Eviction] = {}
        for decision in plan.decisions:
            if isinstance(decision, Reorder):
                core.happen(QueueOrdered(core.now, tuple(job for job in decision.jobs if job in known)))
                continue
            workload = known.get(decision.job)
            if workload is None:  # it has moved: in Kubernetes its pods come anew
                continue
            match decision:
                case Start(allocation=allocation):
                    self.workloads.placed(workload, allocation)
                case Preempt(by=winner, why=why):
                    eviction = by.setdefault(winner, Eviction(_why(winner, why), winner, right=why))
                    eviction.victims.append((workload, self._stop(workload, winner)))
                case Expire():
                    eviction = by.setdefault(
                        f"\0{decision.job}", Eviction("it has reached its time limit", right="limit")
                    )
                    eviction.victims.append((workload, self._stop(workload, "", expired=True)))
                case Reserve(start=start, end=end, allocation=allocation):
                    core.happen(JobReserved(core.now, decision.job, start, end, allocation))
                case Release():
                    core.happen(JobReleased(core.now, decision.job))
                case Reject(reason=reason):
                    core.happen(JobRejected(core.now, decision.job, said(reason)))
                    workload.phase = Phase.REJECTED
                    self.held.append((workload, decision))
                case Hold():
                    self.held.append((workload, decision))
                case Demote(level=level):
                    core.happen(JobDemoted(core.now, decision.job, level))
        self.evictions += by.values()

    def only_note(self, plan: Plan) -> None:
        """Carry nothing out: in the shadow of another scheduler each start is refused at once, and tried again."""
        core, known = self.core, self.workloads.by_job
        moved = False
        for decision in plan.decisions:
            moved = moved or isinstance(decision, Preempt | Expire)
            workload = None if isinstance(decision, Reorder) else known.get(decision.job)
            if isinstance(decision, Start) and workload is not None and not moved:
                core.happen(JobStarted(core.now, decision.job, decision.allocation))
                core.happen(JobRefused(core.now, decision.job, "shadow"))
            elif isinstance(decision, Reject) and workload is not None:
                core.happen(JobRejected(core.now, decision.job, said(decision.reason)))
                workload.phase = Phase.REJECTED

    def _stop(self, workload: Workload, by: str, expired: bool = False) -> list[Pod]:
        """A job makes way: on paper at once; its nodes stay closed for bindings until its pods are gone."""
        core = self.core
        if expired:
            core.happen(JobFailed(core.now, workload.job, "limit"))
        else:
            core.happen(JobPreempted(core.now, workload.job, by=by))
        core.happen(JobCancelled(core.now, workload.job))  # what comes back are other pods, and so another job
        return self.leave(workload)

    def leave(self, workload: Workload) -> list[Pod]:
        """Its pods are to go, those too that are about to be bound."""
        pods = [self.mirror.pods[slot.pod] for slot in workload.slots if slot.pod in self.mirror.pods]
        for slot, pod in ((s, self.mirror.pods.get(s.pod)) for s in workload.slots):
            if pod is not None:
                self.leaving.setdefault(slot.node, {})[slot.pod] = None
        if workload.job:
            self.workloads.by_job.pop(workload.job, None)
        workload.phase, workload.job, workload.slots = Phase.LEAVING, "", []
        return pods

    def going(self, workload: Workload) -> list[Pod]:
        """Its pods are to go, and are counted until they are gone."""
        return [self.mirror.pods[slot.pod] for slot in workload.slots if slot.pod in self.mirror.pods]

    def unplace(self, job: str, why: str) -> None:
        """A job that was started, and of which nothing is bound yet, cannot have its place: it waits again."""
        workload = self.workloads.by_job.get(job)
        if workload is None or workload.phase is not Phase.PLACED or any(slot.bound for slot in workload.slots):
            return
        self.workloads.refused(workload, why)
        self.workloads.say(workload, why)


def _why(by: str, why: str) -> str:
    """Why a pod is evicted, for its event."""
    if by:
        return {"reclaim": f"its queue gives back to {by} what it had borrowed"}.get(
            why, f"{by} takes its place ({why})"
        )
    return {
        "queue": "its queue is stopped",
        "drain": "its node is drained",
        "core": "what it depends on has stopped",
    }.get(why, "the scheduler has stopped it")
