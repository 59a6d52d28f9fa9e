"""Device locks: on a node with HAMi one pod at a time is bound, and holds the node's lock until it has its devices.

The kubelet does not tell a device plugin for which pod it requests devices. HAMi's plugin serves the pod named in the
node's lock, an annotation of the node, and releases the lock when the pod has its devices. So a scheduler takes the
lock before it binds a pod.

Source: HAMi, pkg/util/nodelock/nodelock.go (LockNode, ReleaseNodeLock, NodeLockTimeout) and pkg/util/util.go
(GetPendingPod, GetAllocatePodByNode).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

from kant.kube.act.effects import PAUSE, Effects, RefusedError, Step
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Node, Pod
from kant.kube.reconcile.slots import Slot
from kant.kube.translate.hami import ALLOCATING, PHASE, notes_of
from kant.kube.translate.hami_devices import registered
from kant.model.errors import InputError

LOCK = "hami.io/mutex.lock"
EXPIRES = 300.0  # seconds after which an unreleased lock expires, as in HAMi


class DeviceLocks:
    """Takes the locks of nodes, with at most one request per node at a time."""

    def __init__(self, effects: Effects, mirror: Mirror, scheduler: str = "kant") -> None:
        self.effects = effects
        self.step: Step[str] = effects.step()
        self.mirror = mirror
        self.scheduler = scheduler
        self._held: dict[str, tuple[str, float]] = {}  # by node: the uid of the pod that has the lock, and since when

    def notes(self, slot: Slot) -> dict[str, str]:
        """Return the annotations to bind a slot's pod with; none if the node has registered no devices with HAMi."""
        pod, view = self.mirror.pods.get(slot.pod), self.mirror.nodes.get(slot.node)
        if pod is None or view is None or not slot.devices:
            return {}
        with suppress(InputError):
            devices = registered(view).devices
            if devices:
                return notes_of(pod.spec, slot.node, devices, slot.devices, int(time.time()))
        return {}

    def is_held_for(self, slot: Slot, in_flight: Collection[str]) -> bool:
        """Whether the pod of a slot may be bound to its node now. If not, request the lock unless another pod uses it.

        Raises RefusedError.
        """
        if not slot.devices or not self.notes(slot):
            return True
        node = slot.node
        if why := self.step.refusals.pop(node, ""):
            raise RefusedError(slot, f"node {node} cannot be locked for HAMi: {why}", "lock")
        uid, since = self._held.get(node, ("", 0.0))
        if uid == slot.pod:
            return True
        if uid and uid in in_flight:
            return False
        if uid and self._is_allocating(uid, node) and self.effects.clock() - since < EXPIRES:
            return False
        self.step.begin(node, partial(self._take, node, self.mirror.pods[slot.pod]))
        return False

    async def _take(self, node: str, pod: Pod) -> None:
        """Take the lock of a node for a pod, or pause while another pod has it."""
        path, meta = f"/api/v1/nodes/{node}", pod.metadata
        view = await self.effects.client.get(path, Node)
        if not self._is_free((view.metadata.annotations or {}).get(LOCK, ""), node, meta.uid):
            await asyncio.sleep(PAUSE)
            return
        text = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{meta.namespace},{meta.name}"
        change = {"resourceVersion": view.metadata.resource_version, "annotations": {LOCK: text}}
        await self.effects.patch(path, {"metadata": change})
        self._held[node] = meta.uid, self.effects.clock()

    def _is_free(self, lock: str, node: str, uid: str) -> bool:
        """Whether the pod `uid` may take a `lock` (an annotation's text): no other pod waits for devices with it."""
        stamp, _, name = lock.partition(",")
        try:
            since = microseconds(stamp, LOCK)
        except InputError:
            return True
        if time.time() - since / 1e6 >= EXPIRES:
            return True
        if not name:  # a lock of an older release of HAMi names no pod
            return False
        pods = self.mirror.pods.values()
        owner = next((pod for pod in pods if f"{pod.metadata.namespace},{pod.metadata.name}" == name), None)
        if owner is None or owner.metadata.uid == uid:
            return True
        if not owner.spec.node_name and owner.spec.scheduler_name != self.scheduler:
            return False  # a foreign pod, about to be bound
        if owner.spec.node_name == node and not is_over(owner):
            return False  # even if it has its devices: the plugin reports them before it releases the lock
        return not self._is_allocating(owner.metadata.uid, node)

    def _is_allocating(self, uid: str, node: str) -> bool:
        """Whether a pod is known to be bound to the node and still to wait for devices."""
        pod = self.mirror.pods.get(uid)
        if pod is None or is_over(pod):
            return False
        if not pod.spec.node_name:
            return self.mirror.bound_here.get(uid) == node
        if pod.spec.node_name != node:
            return False
        return (pod.metadata.annotations or {}).get(PHASE, "") == ALLOCATING
