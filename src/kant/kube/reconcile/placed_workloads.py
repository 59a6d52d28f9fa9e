"""Placed workloads: what happens when their pods end, are deleted or replaced, and when gangs gain or lose pods."""

from __future__ import annotations

from collections.abc import Callable

from kant.kube.follow.mirror import is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.affected import Affected
from kant.kube.reconcile.elastic_gangs import AnewError, ElasticGangs
from kant.kube.reconcile.elastic_jobs import identity, may_be_elastic
from kant.kube.reconcile.group_reading import GroupReading
from kant.kube.reconcile.partially_bound import PartiallyBound
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload, waits
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.pods import ranked
from kant.model.errors import InputError
from kant.model.event import JobCancelled, JobFinished


class PlacedWorkloads:
    """`begin` submits a workload that has no job, given its pods; `split_off` makes a pod a workload of its own.

    `unsized` has the keys of gangs to settle again once the state has been built.
    """

    def __init__(
        self, reading: GroupReading, elastic: ElasticGangs, partially_bound: PartiallyBound,
        affected: Affected, begin: Callable[[Workload, list[Pod]], None], split_off: Callable[[Pod], None],
    ) -> None:  # fmt: skip
        self.reading = reading
        self.transitions = reading.transitions
        self.translation = reading.transitions.translation
        self.elastic = elastic
        self.partially_bound = partially_bound
        self.affected = affected
        self.begin = begin
        self.split_off = split_off
        self.unsized: dict[str, None] = {}

    def follow(self, workload: Workload, live: list[Pod]) -> None:
        """Process changes to the pods of a placed workload, and give the slots of deleted pods to new ones."""
        if workload.phase is not Phase.PLACED:
            return
        misplaced = bool([slot for slot in workload.slots if self._note_pod(slot)])
        if not all(slot.bound for slot in workload.slots):
            self.transitions.vacated[workload] = None
        if all(not slot.pod for slot in workload.slots):
            finished = any(slot.done for slot in workload.slots)
            self.transitions.end(workload, JobFinished if finished else JobCancelled)
            return
        self.transitions.time_partial(workload)  # the watch may show a binding before its response arrives
        filled = {slot.pod for slot in workload.slots}
        coming = [p for p in live if waits(p) and p.metadata.uid not in filled]
        anew = self._is_unexpected(workload, coming) and not self.transitions.is_in_flight(workload)
        if not anew and self._resize(workload, live):
            return
        newcomers = ranked([p for p in coming if self.translation.devices.are_made(p)])
        if anew or self._is_to_be_planned(workload, newcomers):
            self.transitions.end(workload)
            self.begin(workload, live)
            return
        misplaced = self._fill(workload, newcomers) or misplaced
        self.transitions.time_partial(workload)
        if misplaced and not self.transitions.is_in_flight(workload):  # otherwise after the last response
            self.partially_bound.complete(workload)

    def _is_unexpected(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Whether a new pod's requests match none of the stand-ins (made from a template) that hold vacant slots."""
        expecting = [slot for slot in workload.slots if slot.expects is not None and slot.vacant]
        try:
            return bool(expecting) and any(
                all(slot.demand != self.translation.demand(pod) for slot in expecting) for pod in newcomers
            )
        except InputError:
            return False

    def _resize(self, workload: Workload, live: list[Pod]) -> bool:
        """Process created and deleted pods of a gang whose size may change. Returns False if its size is fixed."""
        if workload.group is None or workload.foreign or workload.lacking or not workload.whole:
            return False
        try:
            spec = self.reading.spec(workload)
            if spec is None or not (spec.least > 1 or grows_from_one(workload, spec)):
                return False
            if not self.transitions.core.is_settled:
                self.unsized[workload.key] = None
                return True
            if not may_be_elastic(self.elastic.job(workload)):
                return False
            if not self.transitions.is_in_flight(workload):
                self._look_up_again(workload, live)
                for pod in self.elastic.follow(workload, live, spec.least, spec.tasks, spec.together):
                    self.split_off(pod)
                self.transitions.time_partial(workload)
            else:
                self.affected.unanswered[workload.key] = None
        except InputError:
            return False
        except AnewError:
            self.transitions.end(workload)
            self.begin(workload, live)
        return True

    def _look_up_again(self, workload: Workload, live: list[Pod]) -> None:
        """Have the group object of a workload read again if its pods have changed: the object may have changed, too."""
        pods = frozenset(pod.metadata.uid for pod in live)
        if workload.group is not None and workload.group.paths and workload.asked not in (pods, frozenset()):
            self.reading.awaited[workload.group] = None
        workload.asked = pods

    def _note_pod(self, slot: Slot) -> bool:
        """Update a slot from its pod. Returns True if the pod is bound elsewhere, or the slot's node is closed."""
        pod = self.transitions.mirror.pods.get(slot.pod) if slot.pod else None
        if pod is None or (not pod.spec.node_name and pod.metadata.deletion_timestamp is not None):
            slot.pod, slot.bound = "", False
        elif is_over(pod):
            slot.done = slot.done or pod.status.phase == "Succeeded"
            slot.pod, slot.bound = "", False
        elif pod.spec.node_name:
            slot.bound, slot.was, slot.since, slot.expects = True, identity(pod), -1.0, None
            return pod.spec.node_name != slot.node
        elif not slot.bound:
            return slot.node in self.transitions.closed
        return False

    def _is_to_be_planned(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Whether all vacant slots of an adopted gang have new pods. Its job lacks its pods' constraints on nodes.

        Such a gang is submitted again, so that its new pods obey all constraints of a first placement.
        """
        vacant = sum(slot.vacant for slot in workload.slots)
        able = sum(self.translation.is_free(pod) for pod in newcomers)
        return workload.adopted and not workload.lacking and 0 < vacant <= able

    def _fill(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Give vacant slots to new pods, or split these off. Returns whether a pod may not run on its slot's node."""
        lost = False
        if workload.lacking or (workload.adopted and any(slot.vacant for slot in workload.slots)):
            return False  # the new pods may be the missing ones
        for pod in newcomers:
            vacant = self._alike(workload, pod)
            slot = next((s for s in vacant if s.was == identity(pod)), vacant[0] if vacant else None)
            if slot is not None:
                slot.pod, slot.was = pod.metadata.uid, identity(pod)
                lost = lost or not self.transitions.may_run_on(slot.node, pod)
                self.transitions.unbound[workload] = None
                self.transitions.count_again((slot,))
                if workload not in self.transitions.to_bind:
                    self.transitions.to_bind.append(workload)
            elif workload.whole and self.reading.is_read(workload):
                self.split_off(pod)
            elif workload.whole or workload.lacking:
                workload.whole, workload.lacking = False, workload.lacking + 1
        return lost

    def _alike(self, workload: Workload, pod: Pod) -> list[Slot]:
        """Return the vacant slots whose last pods had the same requests and rules as this pod."""
        try:
            kind = self.translation.demand(pod), self.translation.rules_there(pod, workload.foreign)
        except InputError:
            return []
        kinds = workload.kinds
        vacant = [slot for slot in workload.slots if slot.vacant and slot.demand == kind[0]]
        return [slot for slot in vacant if kinds[slot.group].rules == kind[1]]


def grows_from_one(workload: Workload, spec: GroupSpec) -> bool:
    """Whether the gang needs only one pod, and its group's object says that more pods may join."""
    return spec.least == 1 and bool(spec.tasks) and not (workload.group is not None and workload.group.least)
