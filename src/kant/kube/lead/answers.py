"""Applies the results of bindings and evictions to the workloads whose pods were bound or evicted."""

from __future__ import annotations

from dataclasses import dataclass

from kant.kube.act.binder import BindResult, Outcome
from kant.kube.act.effects import ELSEWHERE
from kant.kube.act.evictor import Eviction
from kant.kube.act.plan_executor import KubeExecutor
from kant.kube.act.steps import Steps
from kant.kube.notify.notifier import Notifier
from kant.kube.reconcile.workload import Phase
from kant.kube.reconcile.workloads import Workloads
from kant.kube.serve.metrics import KubeTelemetry


class LeadershipLostError(Exception):
    """Another replica is the leader now."""


@dataclass(slots=True)
class Counts:
    """Numbers of cycles, states built, pods bound, bindings refused, pods evicted, and partly bound gangs given up."""

    cycles: int = 0
    builds: int = 0
    bound: int = 0
    refused: int = 0
    evicted: int = 0
    released: int = 0


@dataclass(eq=False)
class Answers:
    """Processes the results of the binder and the evictor, for the workloads of one state."""

    workloads: Workloads
    executor: KubeExecutor
    steps: Steps
    notifier: Notifier
    telemetry: KubeTelemetry
    counts: Counts

    def take(self) -> None:
        """Process all results that have arrived. Raises LeadershipLostError if another replica leads now."""
        keys = self._take_bindings()
        while self.steps.evictor.refused:
            keys |= self._take_refusal(self.steps.evictor.refused.popleft())
        while self.steps.evictor.done:
            self._take_eviction(self.steps.evictor.done.popleft())
        if self.workloads.affected.unanswered:  # the watch reported a change before all responses arrived
            keys |= self.workloads.affected.answered()
        if keys:
            self.workloads.settle_all(keys)

    def _take_bindings(self) -> dict[str, None]:
        """Process the results of bindings. Returns the keys of workloads to settle."""
        results, keys = list(self.steps.binder.results), dict[str, None]()
        self.steps.binder.results.clear()
        if any(result.outcome is Outcome.NOT_LEADING for result in results):
            raise LeadershipLostError
        for result in sorted(results, key=lambda one: one.outcome is not Outcome.BOUND):
            self._take_binding(result)  # bound pods first: a refusal must not free what a bound pod uses
        for result in results:
            workload = result.workload
            answered = not self.workloads.transitions.is_in_flight(workload)
            if answered and workload.refused and all(slot.bound or slot.done for slot in workload.slots):
                workload.refused = ""  # a binding was carried out although a refusal was reported
            if answered and (workload.refused or not workload.is_bound):
                if workload.refused:  # the refusal was delayed until the last response
                    self.workloads.lost_places.refused(workload, workload.refused, workload.blameless)
                keys[workload.key] = None
            elif result.outcome is not Outcome.BOUND:
                keys[workload.key] = None
        return keys

    def _take_binding(self, result: BindResult) -> None:
        workload, slot, uid, outcome = result.workload, result.slot, result.uid, result.outcome
        pod = self.workloads.mirror.pods.get(uid)
        if outcome is Outcome.BOUND:
            self.counts.bound += 1
            self.telemetry.bound(result.seconds)
        elif outcome is not Outcome.WITHDRAWN:
            self.telemetry.bind_failed(result.code or "lost")
        if outcome is Outcome.BOUND and pod is not None:
            if not pod.spec.node_name:
                self.workloads.mirror.bound_here[uid] = slot.node
                if result.notes:
                    self.workloads.mirror.notes_here[uid] = result.notes
            self.notifier.bound(pod, slot.node)
        if self.workloads.members.by_key.get(workload.key) is not workload:
            return
        has_place = slot in workload.slots
        if outcome is Outcome.BOUND and has_place and slot.pod == uid:
            slot.bound = True
            self.workloads.transitions.time_partial(workload)
            return
        if outcome is Outcome.BOUND and pod is not None and not pod.spec.node_name:
            self.workloads.mirror.apply_bindings([uid])  # since then the core was told that the pod has no node
        elif outcome is Outcome.ASTRAY and result.pod is not None:
            self.workloads.mirror.pod("modified", result.pod)
        elif outcome is Outcome.REFUSED and has_place:
            self.counts.refused += 1
            self.workloads.messages.say(workload, f"one of its pods could not be bound: {result.why}")
            self.workloads.lost_places.refused(workload, result.why)
            if result.code == ELSEWHERE:
                self.workloads.affected.renew([uid])
        elif outcome is Outcome.WITHDRAWN and has_place:
            self.workloads.lost_places.refused(workload, result.why, blameless=True)
        self.workloads.transitions.to_bind.append(workload)  # it may have another allocation by now

    def _take_eviction(self, eviction: Eviction) -> None:
        """Report an eviction that has been requested for all of its pods."""
        evicted = sum(len(pods) for _, pods in eviction.victims)
        self.counts.evicted += evicted
        self.telemetry.evicted(eviction.right, evicted)
        self.notifier.evicted(eviction)

    def _take_refusal(self, eviction: Eviction) -> dict[str, None]:
        """Handle a refused eviction: the preemptor waits again, and the victims stay."""
        keys = dict[str, None]()
        self.notifier.eviction_refused(eviction)
        if eviction.by:
            self.executor.unplace(eviction.by, f"it may not evict the pods that it would replace: {eviction.refused}")
        for workload, pods in eviction.victims:
            for pod in pods:
                self.steps.binder.left(pod.metadata.uid)
            shrunk = workload.phase is Phase.PLACED and bool(workload.job)
            if shrunk or workload.phase is Phase.LEAVING:
                named = {pod.metadata.uid for pod in pods}
                self.workloads.lost_places.stays(workload, not eviction.protected or eviction.protected in named)
                keys[workload.key] = None
        return keys
