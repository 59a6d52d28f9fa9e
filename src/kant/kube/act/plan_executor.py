"""Plans on Kubernetes: each decision changes the state at once, and becomes work for the binder and the evictor."""

from __future__ import annotations

from collections import deque

from kant.kube.act.evictor import Eviction
from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.messages import UNSCHEDULABLE
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.reconcile.workloads import Workloads
from kant.live.core import Core
from kant.live.executor import PlanExecutor
from kant.live.sentences import public_sentence
from kant.model.decision import (
    Decision,
    Expire,
    Grow,
    Hold,
    Plan,
    Preempt,
    Reason,
    Reject,
    Reorder,
    Route,
    Shrink,
    Start,
)
from kant.model.event import Event, JobCancelled, JobFailed, JobPreempted, JobRefused, JobStarted, QueueOrdered
from kant.model.placement import NODE, Allocation
from kant.model.rules import HOST


class KubeExecutor(PlanExecutor):
    """Executes plans with the binder and the evictor. `evictions` has the evictions to be requested next."""

    def __init__(self, core: Core, mirror: Mirror, workloads: Workloads, leaving: dict[str, dict[str, None]]) -> None:
        self.core = core
        self.mirror = mirror
        self.workloads = workloads
        self.leaving = leaving
        self.evictions: list[Eviction] = []
        self.held: deque[tuple[Workload, Hold | Reject]] = deque()
        self._by: dict[str, Eviction] = {}  # of the current plan, by the job that gets the victims' resources

    @property
    def now(self) -> int:  # type: ignore[override]
        return self.core.now

    def happen(self, event: Event) -> None:
        self.core.happen(event)

    def sentence(self, reason: Reason) -> str:
        return public_sentence(reason)

    def execute(self, plan: Plan) -> None:
        self._by = {}
        for decision in self._feasible(plan.decisions):
            self.apply(decision)
        self.evictions += self._by.values()

    def _feasible(self, decisions: list[Decision]) -> list[Decision]:
        """Return the decisions, except starts that would fail even after their preemptions, and these preemptions.

        A job that the plan starts on the nodes of victims that now stay is submitted again.
        """
        victims: dict[str, list[Slot]] = {}
        freed: dict[str, list[Allocation]] = {}
        staying: dict[str, set[str]] = {}
        running, rows = self.core.state.running, self.core.state.rows
        known, elastic = self.workloads.by_job, self.workloads.elastic
        for decision in decisions:
            if isinstance(decision, Preempt | Shrink) and decision.by:
                own, found = known.get(decision.job), victims.setdefault(decision.by, [])
                staying.setdefault(decision.by, set()).add(decision.job)
                if own is not None:
                    pieces = decision.allocation if isinstance(decision, Shrink) else running[rows[decision.job]]
                    freed.setdefault(decision.by, []).append(pieces)
                    found += elastic.going(own, decision.allocation) if isinstance(decision, Shrink) else own.slots
        vain = set[str]()
        for start in decisions if victims else ():
            if isinstance(start, Start) and start.job in victims and start.job in self.workloads.by_job:
                why = self.workloads.transitions.why_not(start.job, start.allocation, victims[start.job])
                if why:
                    self.workloads.messages.say(known[start.job], why, UNSCHEDULABLE)
                    vain.add(start.job)
        return self._without(decisions, vain, staying, freed) if vain else decisions

    def _without(
        self,
        decisions: list[Decision],
        vain: set[str],
        staying: dict[str, set[str]],
        freed: dict[str, list[Allocation]],
    ) -> list[Decision]:
        """Return the decisions without the jobs in `vain`, their victims (`staying`), and other jobs on the victims'
        nodes. The core counts the jobs left out as started, so they are submitted again.
        """
        left, known = set(vain), self.workloads.by_job
        while True:
            gone = left.union(*(staying.get(job, ()) for job in left))
            nodes = {node for job in left for pieces in freed.get(job, ()) for node in pieces[:, NODE].tolist()}
            beside = {
                one.job
                for one in decisions
                if isinstance(one, Start | Grow) and nodes.intersection(one.allocation[:, NODE].tolist())
            }
            if beside <= gone:
                break
            left |= beside - gone
        again = [known[one.job] for one in decisions if isinstance(one, Start) and one.job in left and one.job in known]
        for workload in again:
            if workload.job not in vain:
                self.workloads.transitions.end(workload)
        self.workloads.settle_all({workload.key: None for workload in again})
        return [one for one in decisions if isinstance(one, Reorder | Route) or one.job not in gone]

    def apply(self, decision: Decision) -> None:
        """Apply one decision, unless its job no longer exists: the pods of a moved job come back as another job."""
        if isinstance(decision, Reorder | Route) or decision.job in self.workloads.by_job:
            super().apply(decision)

    def on_start(self, start: Start) -> None:
        workload = self.workloads.by_job[start.job]
        self.workloads.transitions.start(workload, start.allocation)
        if self.leaving:
            workload.after = self._kept_from(start.job)

    def _kept_from(self, job: str) -> frozenset[str]:
        """Return the uids of leaving pods whose zones, or other domains, the job's pod anti-affinity excludes."""
        state, translation = self.core.state, self.workloads.translation
        rules = state.live[state.rows[job]].rules
        kept = {one.pod_class for own in rules for one in own.anti_affinity if one.topology != HOST}
        pods = (self.mirror.pods.get(uid) for own in self.leaving.values() for uid in own) if kept else ()
        return frozenset(
            pod.metadata.uid
            for pod in pods
            if pod is not None and not kept.isdisjoint(translation.rules_there(pod, foreign=False).classes)
        )

    def on_hold(self, hold: Hold) -> None:
        workload = self.workloads.by_job[hold.job]
        self.workloads.transitions.fits_nowhere(workload)
        self.held.append((workload, hold))

    def on_preempt(self, preempt: Preempt) -> None:
        workload, winner, why = self.workloads.by_job[preempt.job], preempt.by, preempt.why
        eviction = self._by.setdefault(winner, Eviction(_why(winner, why), winner, right=why))
        eviction.victims.append((workload, self._stop(workload, JobPreempted(self.now, preempt.job, by=winner))))

    def on_grow(self, grow: Grow) -> None:
        self.workloads.elastic.grow(self.workloads.by_job[grow.job], grow.allocation)

    def on_shrink(self, shrink: Shrink) -> None:
        workload, winner, why = self.workloads.by_job[shrink.job], shrink.by, shrink.why
        pods = self.workloads.elastic.shrink(workload, shrink.allocation, winner)
        if pods:
            eviction = self._by.setdefault(winner, Eviction(_why(winner, why), winner, right=why))
            eviction.victims.append((workload, pods))

    def on_expire(self, expire: Expire) -> None:
        workload = self.workloads.by_job[expire.job]
        eviction = self._by.setdefault(f"\0{expire.job}", Eviction("it has reached its time limit", right="limit"))
        eviction.victims.append((workload, self._stop(workload, JobFailed(self.now, expire.job, "limit"))))

    def on_reject(self, reject: Reject) -> None:
        workload = self.workloads.by_job[reject.job]
        super().on_reject(reject)
        workload.phase = Phase.REJECTED
        self.workloads.transitions.fits_nowhere(workload)
        kept = self.workloads.transitions.kept_by_filters(workload)
        if kept:  # without the node filters the job might fit
            self.workloads.messages.say(workload, kept, UNSCHEDULABLE)
        else:
            self.held.append((workload, reject))

    def on_reorder(self, reorder: Reorder) -> None:
        known = self.workloads.by_job
        self.happen(QueueOrdered(self.now, tuple(job for job in reorder.jobs if job in known)))

    def _stop(self, workload: Workload, event: JobPreempted | JobFailed) -> list[Pod]:
        """End a job in the core's state at once. No other pod is bound to its nodes until its pods are gone."""
        self.happen(event)
        self.happen(JobCancelled(self.now, workload.job))  # pods that replace these become another job
        return self.leave(workload)

    def leave(self, workload: Workload) -> list[Pod]:
        """Mark a workload's pods as leaving, including those that are about to be bound. Returns them."""
        pods = [self.mirror.pods[slot.pod] for slot in workload.slots if slot.pod in self.mirror.pods]
        for slot, pod in ((s, self.mirror.pods.get(s.pod)) for s in workload.slots):
            if pod is not None:
                self.leaving.setdefault(slot.node, {})[slot.pod] = None
        self.workloads.transitions.forget(workload)
        workload.phase = Phase.LEAVING
        return pods

    def going(self, workload: Workload) -> list[Pod]:
        """Return a workload's existing pods: they are to be evicted, and hold their resources until they are gone."""
        return [self.mirror.pods[slot.pod] for slot in workload.slots if slot.pod in self.mirror.pods]

    def unplace(self, job: str, why: str) -> None:
        """Make a started job wait again, because `why` prevents its placement. Nothing is done if one pod is bound."""
        workload = self.workloads.by_job.get(job)
        if workload is None or workload.phase is not Phase.PLACED or any(slot.bound for slot in workload.slots):
            return
        self.workloads.lost_places.refused(workload, why)
        self.workloads.messages.say(workload, why, UNSCHEDULABLE)


class ShadowExecutor(KubeExecutor):
    """Binds and evicts nothing: in shadow mode each start is refused at once, and tried again.

    The starts after a plan's first preemption are skipped, since the victims keep their capacity.
    """

    def execute(self, plan: Plan) -> None:
        preempts = False
        for decision in plan.decisions:
            preempts = preempts or isinstance(decision, Preempt | Expire)
            if isinstance(decision, Reject) or (isinstance(decision, Start) and not preempts):
                self.apply(decision)
        self.held.clear()

    def on_start(self, start: Start) -> None:
        self.happen(JobStarted(self.now, start.job, start.allocation))
        self.happen(JobRefused(self.now, start.job, "shadow"))


def _why(by: str, why: str) -> str:
    """Return why a pod is evicted, as text for the pod's Kubernetes event."""
    if by:
        return f"its queue returns borrowed quota, for {by}" if why == "reclaim" else f"preempted by {by} ({why})"
    return {
        "queue": "its queue is stopped",
        "drain": "its node is drained",
        "reservation": "some of its GPUs are reserved from now on",
        "core": "its base job has stopped",
        "fallback": "it is moved so that others can start",
        "defragment": "it is moved so that whole nodes become free",
    }.get(why, "the scheduler has stopped it")
