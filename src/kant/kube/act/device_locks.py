"""Device locks: on a node of HAMi's one pod at a time is bound, and waits there until it has its devices.

The kubelet does not tell a device plugin for which pod it asks. HAMi's plugin takes the pod that the node's lock names,
an annotation of the node, and lets go of the lock when the pod has its devices. So whoever binds takes the lock first.

Source: HAMi, pkg/util/nodelock/nodelock.go (LockNode, ReleaseNodeLock, NodeLockTimeout) and pkg/util/util.go
(GetPendingPod, GetAllocatePodByNode).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime

from kant.kube.connect.client import ApiClient, ApiError, FencedError
from kant.kube.connect.errors import advice
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Node, Pod
from kant.kube.reconcile.slots import Slot
from kant.kube.translate.hami import ALLOCATING, PHASE, notes_of, registered
from kant.model.errors import InputError

LOCK = "hami.io/mutex.lock"
EXPIRES = 300.0  # seconds after which a lock that nobody has let go of is no lock, as for HAMi
PAUSE = 0.2  # seconds before a lock is asked for again


class LockRefusedError(Exception):
    """The lock of a node may not be taken, in one sentence."""


class DeviceLocks:
    """`wake` is called when a lock has been taken; `holds` guards every request."""

    def __init__(
        self,
        client: ApiClient,
        mirror: Mirror,
        wake: Callable[[], None],
        holds: Callable[[], bool],
        scheduler: str = "kant",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.mirror = mirror
        self.wake = wake
        self.holds = holds
        self.scheduler = scheduler
        self.clock = clock
        self._held: dict[str, tuple[str, float]] = {}  # by node: for which pod, and since when
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._wrong: dict[str, str] = {}

    async def close(self) -> None:
        """Take back what has not been sent."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def notes(self, slot: Slot) -> dict[str, str]:
        """What goes onto a pod with its binding; nothing where the node does not name its devices."""
        pod, view = self.mirror.pods.get(slot.pod), self.mirror.nodes.get(slot.node)
        if pod is None or view is None or not slot.devices:
            return {}
        with suppress(InputError):
            devices = registered(view).devices
            if devices:
                return notes_of(pod.spec, slot.node, devices, slot.devices, int(time.time()))
        return {}

    def is_held_for(self, slot: Slot, in_flight: Collection[str]) -> bool:
        """Whether the pod of a slot may be bound to its node now; if not, that has been asked for.

        Raises LockRefusedError.
        """
        if not slot.devices or not self.notes(slot):
            return True
        node = slot.node
        if node in self._wrong:
            raise LockRefusedError(self._wrong.pop(node))
        uid, since = self._held.get(node, ("", 0.0))
        if uid == slot.pod:
            return True
        if uid and uid in in_flight:
            return False
        if uid and self._is_allocating(uid, node) and self.clock() - since < EXPIRES:
            return False
        if node not in self._asking:
            pod = self.mirror.pods[slot.pod]
            task = asyncio.get_running_loop().create_task(self._take(node, pod))
            self._asking[node] = task
            task.add_done_callback(lambda _: self._asking.pop(node, None))
        return False

    async def _take(self, node: str, pod: Pod) -> None:
        """Take the lock of a node for a pod, or find that somebody has it."""
        path, meta = f"/api/v1/nodes/{node}", pod.metadata
        try:
            view = await self.client.get(path, Node)
            if self._is_free((view.metadata.annotations or {}).get(LOCK, ""), node, meta.uid):
                text = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ},{meta.namespace},{meta.name}"
                change = {"resourceVersion": view.metadata.resource_version, "annotations": {LOCK: text}}
                await self.client.patch(path, {"metadata": change}, guard=self.holds)
                self._held[node] = meta.uid, self.clock()
                self.wake()
                return
        except FencedError:
            return
        except ApiError as error:
            if not error.heals and error.code != 409:
                self._wrong[node] = f"node {node} cannot be locked: {advice(error, self.client.config.source)}"
                self.wake()
                return
        await asyncio.sleep(PAUSE)
        self.wake()

    def _is_free(self, lock: str, node: str, uid: str) -> bool:
        """Whether nobody waits for devices behind a lock, or only the pod for which it is wanted."""
        stamp, _, name = lock.partition(",")
        try:
            since = microseconds(stamp, LOCK)
        except InputError:
            return True
        if time.time() - since / 1e6 >= EXPIRES:
            return True
        if not name:  # as older releases write it
            return False
        pods = self.mirror.pods.values()
        owner = next((pod for pod in pods if f"{pod.metadata.namespace},{pod.metadata.name}" == name), None)
        if owner is None or owner.metadata.uid == uid:
            return True
        if not owner.spec.node_name and owner.spec.scheduler_name != self.scheduler:
            return False  # it is about to be bound; one of our own was left behind by the leader before us
        if owner.spec.node_name == node and not is_over(owner):
            return False  # though it may have its devices: the plugin lets go of the lock after it has said so
        return not self._is_allocating(owner.metadata.uid, node)

    def _is_allocating(self, uid: str, node: str) -> bool:
        """Whether a pod is bound to the node and waits for its devices, as far as we know."""
        pod = self.mirror.pods.get(uid)
        if pod is None or is_over(pod):
            return False
        if not pod.spec.node_name:
            return self.mirror.bound_here.get(uid) == node
        if pod.spec.node_name != node:
            return False
        return (pod.metadata.annotations or {}).get(PHASE, "") == ALLOCATING
