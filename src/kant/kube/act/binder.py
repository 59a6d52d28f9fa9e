"""The binder: sends the bindings of placed workloads, those of a gang together, and reports the result of each.

The bindings of a gang are sent once no pod is being evicted on any of its nodes. Transient failures are retried. After
a lost response or a 409 (which an earlier attempt may have caused) the pod is read before the result is decided.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from kant.kube.act.effects import Effects, RefusedError, Step
from kant.kube.act.gates import open_gate, our_gate
from kant.kube.connect.client import ApiError, FencedError
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload

if TYPE_CHECKING:
    from kant.kube.act.claim_binder import ClaimBinder
    from kant.kube.act.device_locks import DeviceLocks
    from kant.kube.act.volume_binder import VolumeBinder

WORKERS = 48  # concurrent bindings
PATIENCE = 30.0  # seconds for which a transient failure of a binding is retried
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
WITHDRAWN = "its node has lost the resources that it was placed for"


class Outcome(Enum):
    BOUND = "bound"
    GONE = "gone"  # the pod no longer exists
    ASTRAY = "astray"  # the pod is bound, but to another node
    REFUSED = "refused"  # the API server refuses it permanently, or for longer than PATIENCE
    WITHDRAWN = "withdrawn"  # not sent: the node is no longer available
    NOT_LEADING = "not leading"  # another replica leads


@dataclass(frozen=True, slots=True)
class BindResult:
    """The result of binding the pod `uid` of a workload. `pod` is the pod as read back, if it was read and was bound.

    `code` is the HTTP status (0: none), or the `word` of a RefusedError. `notes` are the binding's annotations.
    """

    workload: Workload
    slot: Slot
    uid: str
    outcome: Outcome
    seconds: float
    pod: Pod | None = None
    why: str = ""
    code: int | str = 201
    notes: dict[str, str] | None = None


class Binder:
    """Sends bindings. Each result is added to `results` and wakes the driver's loop.

    `leaving` has, by node, the uids of pods that must be gone before another pod is bound to the node. No pod may be
    bound to a node in `closed`. No pod with GPUs may be bound to a node in `short`, which has lost GPUs that pods hold.
    """

    def __init__(
        self, effects: Effects, mirror: Mirror, volumes: Callable[[], VolumeBinder | None],
        claims: Callable[[], ClaimBinder | None], locks: Callable[[str], DeviceLocks | None],
    ) -> None:  # fmt: skip
        self.effects = effects
        self.step: Step[str] = effects.step(WORKERS)  # by the uid of a pod
        self.mirror = mirror
        self.volumes = volumes
        self.claims = claims
        self.locks = locks
        self.results: deque[BindResult] = deque()
        self.leaving: dict[str, dict[str, None]] = {}
        self.closed: set[str] = set()
        self.short: set[str] = set()
        self._places: dict[str, tuple[Workload, Slot]] = {}  # by pod uid, for bindings in flight
        self._rng = random.Random()

    def pump(self, placed: deque[Workload]) -> None:
        """Send the bindings of placed workloads on whose nodes no pod is leaving; the others stay in `placed`."""
        for _ in range(0 if self.step.closed else len(placed)):
            workload = placed.popleft()
            if workload.phase is not Phase.PLACED or workload.refused:
                continue  # send no more of its bindings; it waits again after the last response
            if not self._send(workload):
                placed.append(workload)

    def _send(self, workload: Workload) -> bool:
        """Send those bindings of a workload that may be sent now. Returns False if some must be sent later."""
        slots = [slot for slot in workload.slots if slot.pod and not slot.bound]
        if any(slot.node in self.leaving for slot in slots) or any(self._is_there(uid) for uid in workload.after):
            return False
        try:
            if not self._is_prepared(workload):
                return False
            is_sent = True
            for slot in slots:
                if slot.pod in self.step.in_flight:
                    continue
                locks = self.locks(slot.node)
                if locks is None or locks.is_held_for(slot, self.step.in_flight):
                    self._places[slot.pod] = workload, slot
                    self.step.begin(slot.pod, partial(self._bind, workload, slot, slot.pod))
                else:
                    is_sent = False
            return is_sent
        except RefusedError as error:
            slot, why = error.slot, str(error)
            self._note(BindResult(workload, slot, slot.pod, Outcome.REFUSED, 0.0, why=why, code=error.word))
            return True

    def _is_prepared(self, workload: Workload) -> bool:
        """Whether the workload's pods have their volumes and devices. Raises RefusedError if they cannot have them."""
        volumes, claims = self.volumes(), self.claims()
        try:
            has_volumes = volumes is None or volumes.prepare(workload)
            return (claims is None or claims.prepare(workload)) and has_volumes
        except RefusedError:
            if volumes is not None:
                volumes.give_back(workload)
            raise

    def _is_there(self, uid: str) -> bool:
        pod = self.mirror.pods.get(uid)
        return pod is not None and not is_over(pod)

    def _note(self, result: BindResult) -> None:
        self._places.pop(result.uid, None)
        self.results.append(result)
        self.effects.wake()

    def recall(self, nodes: Collection[str]) -> None:
        """Withdraw those bindings to these nodes that have not been sent yet."""
        for uid in self.step.recall([uid for uid, (_, slot) in self._places.items() if slot.node in nodes]):
            workload, slot = self._places[uid]
            self._note(BindResult(workload, slot, uid, Outcome.WITHDRAWN, 0.0, why=WITHDRAWN, code=0))

    def _may_be_sent(self, slot: Slot) -> bool:
        return slot.node not in self.closed and not (slot.demand.gpus and slot.node in self.short)

    def left(self, uid: str) -> None:
        """Record that a pod is gone, so that no binding waits for it. The pod may never have been bound."""
        for node in [node for node, pods in self.leaving.items() if uid in pods]:
            del self.leaving[node][uid]
            if not self.leaving[node]:
                del self.leaving[node]

    async def _bind(self, workload: Workload, slot: Slot, uid: str) -> None:
        locks, began = self.locks(slot.node), self.effects.clock()
        notes = locks.notes(slot) if locks is not None else {}
        outcome, pod, why, code = await self._judged(workload, slot, uid, notes)
        seconds = self.effects.clock() - began
        self._note(BindResult(workload, slot, uid, outcome, seconds, pod, why, code, notes))

    async def _judged(
        self, workload: Workload, slot: Slot, uid: str, notes: dict[str, str]
    ) -> tuple[Outcome, Pod | None, str, int]:
        """Send a binding until its result is known."""
        effects, began = self.effects, self.effects.clock()
        wait, last, pod, is_known = FIRST_WAIT, "", self.mirror.pods.get(uid), True
        if pod is None or slot.pod != uid or workload.phase is not Phase.PLACED:
            return Outcome.GONE, None, "", 404
        namespace, name = pod.metadata.namespace, pod.metadata.name

        def may_be_sent() -> bool:
            return effects.holds() and self._may_be_sent(slot)

        while True:
            if slot.pod != uid or workload.phase is not Phase.PLACED:
                return Outcome.GONE, None, "", 404  # its job lost the allocation before the request was sent
            code, asked = 0, None
            try:
                if our_gate(pod) >= 0 and may_be_sent():
                    await open_gate(effects, pod)
                if not may_be_sent():
                    raise FencedError
                await effects.client.bind(
                    namespace, name, uid, slot.node, effects.signature | notes,
                    guard=may_be_sent, timeout=effects.timeout,
                )  # fmt: skip
                return Outcome.BOUND, None, "", 201
            except FencedError:
                if not effects.holds():
                    return Outcome.NOT_LEADING, None, "", 0
                if is_known:
                    return Outcome.WITHDRAWN, None, WITHDRAWN, 0
            except ApiError as error:
                code, last, asked = error.code, error.message, error.retry_after
                if not effects.holds():
                    return Outcome.NOT_LEADING, None, last, code
                if code == 404 or not (error.heals or code in (409, 422, 403)):
                    return (Outcome.GONE if code == 404 else Outcome.REFUSED), None, last, code
            read = await self._read(namespace, name)
            if read is not None:
                if read.metadata.uid != uid:
                    return Outcome.GONE, None, "", 404
                if read.spec.node_name:
                    same = read.spec.node_name == slot.node
                    return (Outcome.BOUND if same else Outcome.ASTRAY), read, "" if same else last, code
                pod = read
            is_known = read is not None or 0 < code < 500  # otherwise the pod may be bound
            if is_known and (
                effects.clock() - began > PATIENCE or slot.pod != uid or workload.phase is not Phase.PLACED
            ):
                return Outcome.REFUSED, None, last, code
            await asyncio.sleep(max(asked or 0.0, wait * self._rng.uniform(0.5, 1.0)))
            wait = min(wait * 2, LONGEST_WAIT)

    async def _read(self, namespace: str, name: str) -> Pod | None:
        """Return the pod from the API server: an empty Pod if it does not exist, None if it cannot be read now."""
        try:
            return await self.effects.client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", Pod)
        except ApiError as error:
            return Pod() if error.code == 404 else None
