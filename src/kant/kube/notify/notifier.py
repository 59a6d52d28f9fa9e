"""Messages to users: why pods wait, that they are bound, why they are evicted; and the condition that autoscalers read.

A pod that waits for capacity is marked unschedulable, and loses Kant's gate, so that an autoscaler may add nodes. A pod
that waits for quota or for its queue keeps the gate, and is not marked: more nodes would not help.

The last message for each waiting pod is kept. It is compared with the pod's condition when the pod changes, when the
API server rejects it, and some time after sending: responses get lost, watches lag, and other programs write to pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from kant.kube.act.effects import Effects, Step
from kant.kube.act.evictor import Eviction
from kant.kube.act.gates import open_gate, our_gate
from kant.kube.connect.client import ApiError
from kant.kube.follow.mirror import Mirror
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.views import Pod
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.annotations import names_reservation
from kant.live.sentences import public_sentence
from kant.model.decision import BackOff, BaseJobWaits, Behind, Closed, OutOfBudget, OverQuota, Reason

SETTLED = 5.0  # seconds after which a pod's condition should show the sent message
GATES = 8  # concurrent removals of gates
REFUSED = 60.0  # seconds until a rejected message is sent again
FOR_QUOTA = OverQuota | Closed | OutOfBudget | BackOff | BaseJobWaits | Behind


class Notifier:
    """Sends messages through a recorder, in the background."""

    def __init__(self, effects: Effects, recorder: EventRecorder, mirror: Mirror) -> None:
        self.effects = effects
        self.recorder = recorder
        self.mirror = mirror
        self._gates: Step[str] = effects.step(GATES)  # by the uid of a pod
        self._messages: dict[
            str, tuple[str, str, str]
        ] = {}  # by uid of a waiting pod: text, reason, resourceVersion when sent
        self._looks: set[str] = set()  # uids of pods with a timer to check them again
        recorder.on_refused = self.refused

    def waits(self, workload: Workload, pods: Iterable[str], reason: Reason, remarks: str = "") -> None:
        """Report why a workload waits: `reason`, followed by `remarks`. Nothing is sent if the text is as before."""
        text = public_sentence(reason) + (f"; {remarks}" if remarks else "")
        if text == workload.reason:
            return
        workload.reason, workload.queued = text, isinstance(reason, FOR_QUOTA) or self._is_booked(pods)
        self.says(pods, text, "Queued" if workload.queued else "Unschedulable")

    def _is_booked(self, pods: Iterable[str]) -> bool:
        """Whether any of these pods names a reservation, and so may run only on the reservation's nodes."""
        return any(names_reservation(pod) for uid in pods if (pod := self.mirror.pods.get(uid)) is not None)

    def answers(self, uid: str, text: str, reason: str) -> None:
        """Write this text to the condition PodScheduled of a pod, without an Event."""
        self._messages[uid] = text, reason, ""
        self.again(uid)

    def says(self, pods: Iterable[str], text: str, reason: str) -> None:
        """Report why pods wait, by Events and conditions; `reason` is the reason of the condition PodScheduled."""
        for uid in pods:
            pod = self.mirror.pods.get(uid)
            if pod is None or pod.spec.node_name:
                continue
            if self._messages.get(uid, ())[:2] != (text, reason):
                self._messages[uid] = text, reason, ""
            self.again(uid)
            if reason == "Queued" and _is_gated(pod):
                continue
            self.recorder.event(pod.metadata, "Warning", "FailedScheduling", text, "Scheduling")

    def again(self, uid: str) -> None:
        """Send the kept message of a changed pod again, unless the pod shows it or the watch may still bring it."""
        message, pod = self._messages.get(uid), self.mirror.pods.get(uid)
        if message is None:
            return
        if pod is None or pod.spec.node_name:
            del self._messages[uid]  # the pod no longer waits
            return
        text, reason, version = message
        if reason == "Unschedulable" and our_gate(pod) >= 0:
            self._gates.begin(uid, partial(self._open_gate, pod))
        if pod.metadata.resource_version == version or (reason == "Queued" and _is_gated(pod)):
            return
        current = pod.scheduled
        if self.recorder.condition(pod.metadata, text, reason, current):
            self._messages[uid] = text, reason, pod.metadata.resource_version
        elif current is None or (current.reason, current.message) != (reason, text):
            self._look_later(uid, SETTLED)  # the message has been sent, or is being sent

    def refused(self, uid: str, code: int) -> None:
        """Handle a rejected condition; `code` is the HTTP status: 409 means that the pod has changed."""
        if code == 409:
            self.again(uid)
        if uid in self._messages:
            self._look_later(uid, REFUSED)

    def _look_later(self, uid: str, seconds: float) -> None:
        if uid not in self._looks:
            self._looks.add(uid)
            asyncio.get_running_loop().call_later(seconds, self._look, uid)

    def _look(self, uid: str) -> None:
        """Send a pod's message again if the pod's condition does not show it."""
        self._looks.discard(uid)
        if uid in self._messages and self.recorder.is_pending(uid):
            self._look_later(uid, SETTLED)
        elif uid in self._messages:
            self.recorder.forget(uid)
            self._messages[uid] = *self._messages[uid][:2], ""
            self.again(uid)

    def bound(self, pod: Pod, node: str) -> None:
        self.recorder.scheduled(pod.metadata, node)

    def evicted(self, eviction: Eviction) -> None:
        for _, pods in eviction.victims:
            for pod in pods:
                self.recorder.event(pod.metadata, "Warning", "Preempted", eviction.why, "Preempting")

    def eviction_refused(self, eviction: Eviction) -> None:
        """Tell the pods of a refused eviction why they were to be evicted, and why they stay."""
        text = f"{eviction.why}, but it was not evicted: {eviction.refused}"
        for _, pods in eviction.victims:
            for pod in pods:
                self.recorder.event(pod.metadata, "Normal", "EvictionRefused", text, "Preempting")

    async def _open_gate(self, pod: Pod) -> None:
        """Remove Kant's gate from a pod that waits for capacity. If that fails, check the pod again later."""
        try:
            await open_gate(self.effects, pod)
        except ApiError as error:
            soon = error.heals or error.code in (409, 422)  # 422: the pod's gates have changed
            self._look_later(pod.metadata.uid, SETTLED if soon else REFUSED)


def _is_gated(pod: Pod) -> bool:
    """Whether the API server already reports that a pod is gated, by other gates than Kant's."""
    current = pod.scheduled
    gated = current is not None and current.reason == "SchedulingGated"
    return gated and len(pod.spec.scheduling_gates) > (our_gate(pod) >= 0)
