"""Sends decisions to users: events.k8s.io/v1 Events, and the condition PodScheduled=False with its reason.

Messages are sent in the background and never delay bindings. Messages may be late, repetitions are merged, and events
beyond a limit are dropped and counted. Conditions are sent before events, since autoscalers read them, and are never
dropped: at most one is queued for each pod.

Eight concurrent requests cost the API server and etcd 50% more CPU time per request than 32 or more (`python -m
benchmarks.kubernetes_costs`). But ten new connections at once delay a binding. So concurrency grows with the queue.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from kant.kube.connect.client import ApiClient, ApiError, encoded
from kant.kube.objects.times import micro_now, now_text
from kant.kube.objects.views import Condition, Meta
from kant.model.errors import InputError

BOUND = 20_000  # queued events and conditions beyond which events are dropped
REMEMBERED = 100_000  # number of last messages that are remembered, to avoid repetitions
REPEAT = 1_800.0  # seconds until the same event may be sent again; the server forgets events after an hour
NOTE = 1_024  # maximum characters in the note of an event
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds of back-off
OVERDUE = 15.0  # maximum seconds that an event waits for bindings to end
CONDITION_OVERDUE = 0.5  # maximum seconds that a condition waits for bindings to end
FEW = 4  # concurrent requests that are always allowed
SHARE = 4  # queued messages for each further concurrent request
LOOK = 0.05  # seconds between two checks whether bindings are still in flight

Key = tuple[str, str]

API_OF = {"Lease": "coordination.k8s.io/v1"}
"""The API group of each kind that is not in the core group."""


@dataclass(frozen=True, slots=True)
class Note:
    """One queued request: an Event to create or a condition to patch; `said` is its text, to find repetitions."""

    key: Key
    method: str
    path: str
    body: bytes
    said: str
    since: float


class EventRecorder:
    """Queues messages about pods and nodes (identified by their `Meta`); `run` sends them.

    `workers`: maximum concurrent requests; None: half of the client's connections. `busy()`: whether bindings are in
    flight. During bindings, conditions wait for up to CONDITION_OVERDUE seconds and events for up to OVERDUE; overdue
    messages then use a quarter of the workers. A worker is a task that ends when nothing is queued. `dropped` counts
    messages lost to the limit, `failed` those that were rejected, and `sent` the rest.
    """

    def __init__(
        self,
        client: ApiClient,
        instance: str,
        *,
        workers: int | None = None,
        bound: int = BOUND,
        busy: Callable[[], bool] = lambda: False,
        on_trouble: Callable[[ApiError | InputError], None] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.client = client
        self.workers = workers or max(1, client.concurrency // 2)
        self.sent = self.dropped = self.failed = 0
        self.on_refused: Callable[[str, int], None] = lambda uid, code: None  # a condition was rejected for good
        self.on_dropped: Callable[[], None] = lambda: None
        self._bound, self._on_trouble, self._clock = bound, on_trouble, clock
        self.busy = busy
        self._rng = rng or random.Random()
        self._conditions: OrderedDict[Key, Note] = OrderedDict()
        self._events: OrderedDict[Key, Note] = OrderedDict()
        self._queues = self._conditions, self._events  # conditions are sent first
        self._said: OrderedDict[Key, tuple[str, float]] = OrderedDict()
        self._group: asyncio.TaskGroup | None = None
        self._at_work = 0
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[Key] = set()  # keys of requests in flight: one per key, to keep the order
        self._not_before = float("-inf")
        self._wait = FIRST_WAIT
        self._numbers = count(time.time_ns())  # suffixes of event names: they only have to be unique
        source = encoded({"reportingController": "kant", "reportingInstance": instance[:128]})
        self._source = source[1:-1].decode()

    def __len__(self) -> int:
        return len(self._conditions) + len(self._events) + len(self._under_way)

    def event(self, of: Meta, type: str, reason: str, message: str, action: str, kind: str = "Pod") -> None:
        """Queue an event about an object. `type` is Normal or Warning. Equal events are REPEAT seconds apart."""
        note = message if len(message) <= NOTE else message[: NOTE - 1] + "…"
        self._event(of, type, reason, encoded(note).decode(), action, (of.uid, reason), kind)

    def scheduled(self, pod: Meta, node: str) -> None:
        """Queue the event that kube-scheduler posts for a bound pod; a queued condition is dropped."""
        self._conditions.pop((pod.uid, ""), None)
        self._said.pop((pod.uid, ""), None)
        note = f'"Successfully assigned {pod.namespace}/{pod.name} to {node}"'
        self._event(pod, "Normal", "Scheduled", note, "Binding", (pod.uid, "Scheduled"))

    def condition(
        self, pod: Meta, message: str, reason: str = "Unschedulable", current: Condition | None = None
    ) -> bool:
        """Queue PodScheduled=False with this reason, unless it was sent last, or the pod shows it (`current`).

        If the pod has changed since `pod.resource_version`, the server rejects the condition, so a bound pod is never
        marked. Returns whether the condition is queued now; otherwise it has been sent, or is being sent.
        """
        key, said = (pod.uid, ""), f"{reason}: {message}"
        sent = self._said.get(key)
        same = current is not None and (current.status, current.reason, current.message) == ("False", reason, message)
        if same or (sent is not None and sent[0] == said):
            self._conditions.pop(key, None)  # a queued condition is outdated
            return False
        wanted = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        if current is None or current.status != "False":
            wanted["lastTransitionTime"] = now_text()
        metadata = {"uid": pod.uid} | ({"resourceVersion": pod.resource_version} if pod.resource_version else {})
        body = encoded({"metadata": metadata, "status": {"conditions": [wanted]}})
        path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/status"
        self._put(self._conditions, Note(key, "PATCH", path, body, said, self._clock()))
        return True

    def is_pending(self, uid: str) -> bool:
        """Whether a condition of this pod is queued or in flight."""
        return (uid, "") in self._conditions or (uid, "") in self._under_way

    def forget(self, uid: str) -> None:
        """Drop the queued condition of a pod, and forget the last one sent."""
        self._conditions.pop((uid, ""), None)
        self._said.pop((uid, ""), None)

    async def run(self) -> None:
        """Send queued messages forever."""
        async with asyncio.TaskGroup() as self._group:
            try:
                self._hire()
                await asyncio.Event().wait()
            finally:  # before the task group ends, which then accepts no more workers
                self._group = None
                if self._timer is not None:
                    self._timer.cancel()

    async def drain(self, seconds: float) -> bool:
        """Wait at most `seconds` until everything is sent. Returns whether everything was sent."""
        end = self._clock() + seconds
        while len(self) and self._clock() < end:
            await asyncio.sleep(0.01)
        return not len(self)

    def _event(self, of: Meta, type: str, reason: str, note: str, action: str, key: Key, kind: str = "Pod") -> None:
        said = self._said.get(key)
        if said is not None and said[0] == note and self._clock() - said[1] < REPEAT:
            return
        space = of.namespace or "default"  # the namespace for events of cluster-scoped objects
        inside = f'"namespace":"{of.namespace}",' if of.namespace else ""
        name = f"{of.name[:230]}.{next(self._numbers):x}"  # names of objects need no escapes
        api = API_OF.get(kind, "v1")
        body = (
            f'{{"apiVersion":"events.k8s.io/v1","kind":"Event",{self._source},'
            f'"metadata":{{"name":"{name}","namespace":"{space}"}},"eventTime":"{micro_now()}",'
            f'"type":"{type}","reason":"{reason}","action":"{action}","note":{note},'
            f'"regarding":{{"apiVersion":"{api}","kind":"{kind}",{inside}"name":"{of.name}","uid":"{of.uid}"}}}}'
        )
        path = f"/apis/events.k8s.io/v1/namespaces/{space}/events"
        self._put(self._events, Note(key, "POST", path, body.encode(), note, self._clock()))

    def _put(self, queue: OrderedDict[Key, Note], note: Note) -> None:
        queue[note.key] = note  # the latest message replaces an older one, at the same position
        if self._events and len(self._conditions) + len(self._events) > self._bound:
            self._events.popitem(last=False)
            self.dropped += 1
            self.on_dropped()
        self._hire()

    def _hire(self) -> None:
        """Start workers for the messages that may be sent now. If none may be sent, check again in LOOK seconds."""
        if self._group is None:
            return
        waiting = 0
        for queue in self._queues:
            if self._may_be_sent(queue):
                waiting += len(queue)
        most = min(self.workers, max(FEW, waiting // SHARE))
        for _ in range(min(waiting, most - self._at_work)):
            self._at_work += 1
            self._group.create_task(self._work())
        if not waiting:
            self._look_later()

    def _look(self) -> None:
        self._timer = None
        self._hire()

    def _look_later(self) -> None:
        if self._group is not None and self._timer is None and any(self._queues):
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def _next(self) -> Note | None:
        for queue in filter(self._may_be_sent, self._queues):
            for key in queue:
                if key not in self._under_way:
                    return queue.pop(key)
        return None

    def _may_be_sent(self, queue: OrderedDict[Key, Note]) -> bool:
        """Whether messages of a queue may be sent now: no bindings are in flight, or the first is overdue."""
        if not queue or not self.busy():
            return bool(queue)
        longest = OVERDUE if queue is self._events else CONDITION_OVERDUE
        is_due = len(queue) > self._bound // 2 or self._clock() - next(iter(queue.values())).since > longest
        return is_due and len(self._under_way) < max(1, self.workers // 4)

    async def _work(self) -> None:
        try:
            while True:
                await self._turn()
                note = self._next()
                if note is None:
                    break
                self._under_way.add(note.key)
                try:
                    await self._tell(note)
                finally:
                    self._under_way.discard(note.key)
        finally:
            self._at_work -= 1
        self._look_later()

    async def _turn(self) -> None:
        """Wait until a back-off ends."""
        while (rest := self._not_before - self._clock()) > 0:
            await asyncio.sleep(rest)

    async def _tell(self, note: Note) -> None:
        condition = note.method == "PATCH"
        kind = "application/strategic-merge-patch+json" if condition else "application/json"
        if condition:
            self._remember(note)  # before sending, so that an equal one is not queued meanwhile
        try:
            await self.client.call(note.method, note.path, note.body, content_type=kind)
        except (ApiError, InputError) as error:
            self._said.pop(note.key, None)
            if isinstance(error, ApiError) and error.heals:
                self._back_off(note, error)
            else:
                self.failed += 1
                code = getattr(error, "code", 0)
                if code not in (404, 409):  # the pod is gone, or has changed: no error
                    self._on_trouble(error)
                if condition:
                    self.on_refused(note.key[0], code)
            return
        self.sent += 1
        self._wait = FIRST_WAIT
        if not condition and note.key[1] != "Scheduled":
            self._remember(note)

    def _remember(self, note: Note) -> None:
        self._said[note.key] = note.said, self._clock()
        self._said.move_to_end(note.key)
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)

    def _back_off(self, note: Note, error: ApiError) -> None:
        """Put a message back at the head of its queue, unless there is a newer one; all workers pause."""
        queue = self._conditions if note.method == "PATCH" else self._events
        if note.key not in queue:
            self._put(queue, note)
            if note.key in queue:
                queue.move_to_end(note.key, last=False)
        if self._clock() >= self._not_before:  # one back-off for all workers that failed at the same time
            wait = max(error.retry_after or 0.0, self._wait * self._rng.uniform(0.5, 1.0))
            self._not_before = self._clock() + wait
            self._wait = min(self._wait * 2, LONGEST_WAIT)
