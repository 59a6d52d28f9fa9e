"""The binder: placed workloads become bindings, a gang's all at once, and what became of each is reported.

A gang is sent when every node of it is clear of pods that are still being evicted. Whatever may heal is tried again;
an answer that was lost is no answer, so the pod is read before it is judged (409 is as often an echo of our own).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from kant.kube.act.claim_binder import ClaimBinder, ClaimRefusedError
from kant.kube.act.device_locks import DeviceLocks, LockRefusedError
from kant.kube.act.gates import open_gate, our_gate
from kant.kube.act.volume_binder import VolumeBinder, VolumeRefusedError
from kant.kube.connect.client import ApiClient, ApiError, FencedError
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import LEADER
from kant.kube.objects.views import Pod
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload

TIMEOUT = 4.0  # seconds for one binding, unless the Lease leaves less (`Lease.in_flight`)
PATIENCE = 30.0  # seconds for which a binding that may heal is tried again
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
WITHDRAWN = "its node has lost what it was placed for"


class Outcome(Enum):
    BOUND = "bound"
    GONE = "gone"  # the pod is not there any more
    ASTRAY = "astray"  # it is bound, to another node
    REFUSED = "refused"  # for good, or for longer than our patience
    WITHDRAWN = "withdrawn"  # it was not sent: its node has not what it was placed for any more
    NOT_LEADING = "not leading"  # somebody else leads


@dataclass(frozen=True, slots=True)
class BindResult:
    """What became of the pod `uid` of a workload; `pod` as it was read, where it was.

    `code` is that of the last refusal, or a word. `notes` are annotations that came with the binding.
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
    """`results` collects what became of the bindings; `wake` is called when one more is there.

    `leaving` has, by node, the uids of pods whose eviction must be over before anything is bound there. `holds` is the
    guard of every binding, and `token` says who leads. `closed` are nodes to which nothing may be sent, and `short`
    those that have lost more GPUs than were free.
    """

    def __init__(
        self,
        client: ApiClient,
        mirror: Mirror,
        wake: Callable[[], None],
        holds: Callable[[], bool],
        token: Callable[[], str],
        volumes: VolumeBinder | None = None,
        claims: ClaimBinder | None = None,
        locks: DeviceLocks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = client
        self.mirror = mirror
        self.wake = wake
        self.holds = holds
        self.token = token
        self.volumes = volumes
        self.claims = claims
        self.locks = locks
        self.clock = clock
        self.results: deque[BindResult] = deque()
        self.leaving: dict[str, dict[str, None]] = {}
        self.closed: set[str] = set()
        self.short: set[str] = set()
        self.in_flight: set[str] = set()
        self.timeout = TIMEOUT  # seconds after which a binding without an answer is tried again
        self._queue: deque[tuple[Workload, Slot, str]] = deque()
        self._more = asyncio.Event()
        self._rng = random.Random()
        self._closed = False

    def pump(self, placed: deque[Workload]) -> None:
        """Send the placed workloads whose nodes are clear; the others stay in `placed`."""
        if self._closed:
            return
        for _ in range(len(placed)):
            workload = placed.popleft()
            if workload.phase is not Phase.PLACED or workload.refused:
                continue  # who is refused goes back when the last answer has come, and nothing more of it is sent
            if any(slot.node in self.leaving for slot in workload.slots if slot.pod and not slot.bound):
                placed.append(workload)
                continue
            if workload.after and any(self._is_there(uid) for uid in workload.after):
                placed.append(workload)
                continue
            if not self._is_prepared(workload):
                if not any(result.workload is workload for result in self.results):
                    placed.append(workload)
                continue
            waits = False
            for slot in workload.slots:
                if slot.pod and not slot.bound and slot.pod not in self.in_flight:
                    if self._has_lock(workload, slot):
                        self.in_flight.add(slot.pod)
                        self._queue.append((workload, slot, slot.pod))
                    else:
                        waits = True
            if waits and not any(result.workload is workload for result in self.results):
                placed.append(workload)
        if self._queue:
            self._more.set()

    def _is_there(self, uid: str) -> bool:
        pod = self.mirror.pods.get(uid)
        return pod is not None and not is_over(pod)

    def _is_prepared(self, workload: Workload) -> bool:
        """Whether its pods have their volumes and devices; where they cannot, that is a result."""
        try:
            has_volumes = self.volumes is None or self.volumes.prepare(workload)
            return (self.claims is None or self.claims.prepare(workload)) and has_volumes
        except (VolumeRefusedError, ClaimRefusedError) as error:
            if self.volumes is not None:
                self.volumes.give_back(workload)
            self.results.append(
                BindResult(workload, error.slot, error.slot.pod, Outcome.REFUSED, 0.0, why=str(error), code=error.word)
            )
            self.wake()
            return False

    def _has_lock(self, workload: Workload, slot: Slot) -> bool:
        """Whether the pod may be sent to its node now; where it never may, that is a result."""
        if self.locks is None:
            return True
        try:
            return self.locks.is_held_for(slot, self.in_flight)
        except LockRefusedError as error:
            self.results.append(BindResult(workload, slot, slot.pod, Outcome.REFUSED, 0.0, why=str(error), code="lock"))
            self.wake()
            return False

    def recall(self, nodes: Collection[str]) -> None:
        """What has been handed over for these nodes and not been sent is not to be."""
        kept: deque[tuple[Workload, Slot, str]] = deque()
        for workload, slot, uid in self._queue:
            if slot.node in nodes:
                self.in_flight.discard(uid)
                self.results.append(BindResult(workload, slot, uid, Outcome.WITHDRAWN, 0.0, why=WITHDRAWN, code=0))
                self.wake()
            else:
                kept.append((workload, slot, uid))
        self._queue = kept

    def _may_be_sent(self, slot: Slot) -> bool:
        return slot.node not in self.closed and not (slot.demand.gpus and slot.node in self.short)

    def left(self, uid: str) -> None:
        """A pod is gone. Nothing waits for it any more, also where it was evicted before it was bound to its node."""
        for node in [node for node, pods in self.leaving.items() if uid in pods]:
            del self.leaving[node][uid]
            if not self.leaving[node]:
                del self.leaving[node]

    async def drain(self, within: float = 1.0) -> None:
        """Take nothing more, and wait for what is under way: first for all of it, then only for what has been sent.

        So who leads next does not find half of a gang, and no binding of ours comes after it has begun.
        """
        self._closed = True
        for _ in range(2):
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while self.in_flight:
                        await asyncio.sleep(0.01)
            while self._queue:
                self.in_flight.discard(self._queue.popleft()[2])

    async def run(self, workers: int = 48) -> None:
        """Send what comes, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._more.clear()
                await self._more.wait()
            workload, slot, uid = self._queue.popleft()
            began = self.clock()
            notes = self.locks.notes(slot) if self.locks is not None else {}
            outcome, pod, why, code = await self._bind(workload, slot, uid, began, notes)
            self.in_flight.discard(uid)
            self.results.append(BindResult(workload, slot, uid, outcome, self.clock() - began, pod, why, code, notes))
            self.wake()

    async def _bind(
        self, workload: Workload, slot: Slot, uid: str, began: float, notes: dict[str, str]
    ) -> tuple[Outcome, Pod | None, str, int]:
        wait, last, pod, is_known = FIRST_WAIT, "", self.mirror.pods.get(uid), True
        if pod is None or slot.pod != uid or workload.phase is not Phase.PLACED:
            return Outcome.GONE, None, "", 404
        namespace, name = pod.metadata.namespace, pod.metadata.name
        while True:
            if slot.pod != uid or workload.phase is not Phase.PLACED:
                return Outcome.GONE, None, "", 404  # its place was taken from it while it waited here
            code, asked = 0, None
            try:
                if not self.holds():
                    raise FencedError
                if our_gate(pod) >= 0:
                    await open_gate(self.client, pod, self.holds)
                if not self._may_be_sent(slot):
                    raise FencedError
                await self.client.bind(
                    namespace, name, uid, slot.node, {LEADER: self.token(), **notes},
                    guard=lambda: self.holds() and self._may_be_sent(slot), timeout=self.timeout,
                )  # fmt: skip
                return Outcome.BOUND, None, "", 201
            except FencedError:
                if not self.holds():
                    return Outcome.NOT_LEADING, None, "", 0
                if is_known:
                    return Outcome.WITHDRAWN, None, WITHDRAWN, 0
            except ApiError as error:
                code, last, asked = error.code, error.message, error.retry_after
                if not self.holds():
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
            is_known = read is not None or 0 < code < 500  # else the pod may be bound for all we know
            if is_known and (self.clock() - began > PATIENCE or slot.pod != uid or workload.phase is not Phase.PLACED):
                return Outcome.REFUSED, None, last, code
            await asyncio.sleep(max(asked or 0.0, wait * self._rng.uniform(0.5, 1.0)))
            wait = min(wait * 2, LONGEST_WAIT)

    async def _read(self, namespace: str, name: str) -> Pod | None:
        """The pod as it is; None where that cannot be told now. One that is not there has no uid."""
        try:
            return await self.client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", Pod)
        except ApiError as error:
            return Pod() if error.code == 404 else None
