"""Effects: the requests by which a leader carries out its plans. They share a queue, a guard, retries and a shutdown.

Each kind of request is a step. Each effect of a step has a key, and at most one effect per key is in flight. Effects
are level-triggered: the caller asks for an effect again in each pass of its loop until the watch shows the outcome. So
a failed effect needs no clean-up: after a pause it may begin again, computed from the state at that time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kant.kube.connect.client import ApiClient, ApiError, FencedError
from kant.kube.connect.errors import advice
from kant.kube.objects.names import LEADER
from kant.kube.reconcile.slots import Slot

TIMEOUT = 4.0  # seconds for one request, unless the Lease leaves less (`Lease.in_flight`)
PAUSE = 0.2  # seconds before an effect with a transient failure may begin again
REFUSED = 2.0  # seconds before a refused effect may begin again
REMEMBERED = 10_000  # for how many effects of a step object versions are remembered

Key = TypeVar("Key", bound=Hashable)
Work = Callable[[], Coroutine[Any, Any, object]]


ELSEWHERE = "volume-elsewhere"
"""The `word` of a RefusedError: the node cannot use the pod's volume; the pod may be bound to another node."""


class RefusedError(Exception):
    """Something that a pod needs before it is bound is missing. A sentence says why; `word` names what is missing."""

    def __init__(self, slot: Slot, sentence: str, word: str) -> None:
        super().__init__(sentence)
        self.slot = slot
        self.word = word


@dataclass(eq=False)
class Effects:
    """The requests of one leader. Each is sent only while `holds()`; `wake()` follows it; `token()` names the leader.

    Each request has at most `timeout` seconds, here and in the API server, so that requests of a former leader end
    before another one leads.
    """

    client: ApiClient
    wake: Callable[[], None]
    holds: Callable[[], bool] = lambda: True
    token: Callable[[], str] = lambda: ""
    clock: Callable[[], float] = time.monotonic
    timeout: float = TIMEOUT
    group: asyncio.TaskGroup | None = None
    _steps: list[Step[Any]] = field(default_factory=list)

    @property
    def signature(self) -> dict[str, str]:
        """The annotation that identifies the leader: the API server rejects requests with another identity."""
        token = self.token()
        return {LEADER: token} if token else {}

    async def run(self) -> None:
        """Carry out effects forever; cancellation ends those in flight too."""
        async with asyncio.TaskGroup() as self.group:
            try:
                for step in self._steps:
                    step.hire(len(step.queued))
                await asyncio.Event().wait()
            finally:
                self.group = None  # closed before the task group ends, which then accepts no more tasks

    def step(self, workers: int = 1_000_000) -> Step[Any]:
        """Return a new kind of effect, of which at most `workers` run concurrently."""
        self._steps.append(Step(self, workers))
        return self._steps[-1]

    async def drain(self, within: float) -> None:
        """Begin nothing more, and wait up to twice `within` seconds for the effects in flight (see `Step.drain`)."""
        await asyncio.gather(*(step.drain(within) for step in self._steps))

    async def patch(self, path: str, change: object, kind: str = "merge") -> bytes:
        """Patch an object, if this replica leads. Raises ApiError, and FencedError if another replica may lead."""
        return await self.client.patch(path, change, kind=kind, guard=self.holds, timeout=self.timeout)


class Step(Generic[Key]):
    """One kind of effect. `in_flight` has the keys of effects that have begun and may not begin again yet, `queued` the
    effects not sent yet, `refusals` the reasons of refused effects.
    """

    def __init__(self, effects: Effects, workers: int) -> None:
        self.in_flight: dict[Key, None] = {}
        self.refusals: dict[Key, str] = {}
        self.queued: dict[Key, Work] = {}
        self.closed = False
        self._effects = effects
        self._idle = workers
        self._begun: dict[Key, tuple[str, ...]] = {}  # by key: the object versions that the last effect replaces

    def is_unseen(self, key: Key, version: str) -> bool:
        """Whether an effect on this version of its object has begun, and the watch does not show the outcome yet."""
        return version in self._begun.get(key, ())

    def replaced(self, key: Key, version: str) -> None:
        """Note that an effect in flight has also replaced this version, which the watch may still show."""
        self._begun[key] = (*self._begun.get(key, ()), version)

    def begin(self, key: Key, work: Work, version: str = "") -> bool:
        """Begin an effect on this `version` of an object. False: one is in flight, or the last outcome is not seen yet.

        For an effect without a version one call is enough: transient failures are retried until it is carried out.
        """
        if self.closed or key in self.in_flight or (version and self.is_unseen(key, version)):
            return False
        self.in_flight[key] = None
        if version:
            self._begun.pop(key, None)
            self._begun[key] = (version,)
            if len(self._begun) > REMEMBERED:  # the worst effect of a forgotten version is a repeated write
                del self._begun[next(iter(self._begun))]
        self._put(key, work)
        return True

    def recall(self, keys: Iterable[Key]) -> list[Key]:
        """Withdraw the effects with these keys that have not been sent yet. Returns the withdrawn keys."""
        found = [key for key in keys if self.queued.pop(key, None) is not None]
        for key in found:
            del self.in_flight[key]
        return found

    async def drain(self, within: float) -> None:
        """Begin nothing more, and wait for effects in flight: first for all, then only for those that were sent."""
        self.closed = True
        for _ in range(2):
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while self.in_flight:
                        await asyncio.sleep(0.01)
            self.recall(list(self.queued))

    def hire(self, count: int = 1) -> None:
        """Start up to `count` more idle workers for queued effects."""
        group = self._effects.group
        for _ in range(min(self._idle, count) if group is not None else 0):
            assert group is not None
            self._idle -= 1
            group.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self.queued:
                key = next(iter(self.queued))
                await self._carry_out(key, self.queued.pop(key))
        finally:
            self._idle += 1

    async def _carry_out(self, key: Key, work: Work) -> None:
        pause, later = 0.0, asyncio.get_running_loop().call_later
        try:
            await work()
        except FencedError:
            pause = PAUSE
        except ApiError as error:
            if error.heals and key not in self._begun:
                later(PAUSE, self._put, key, work)
                return
            if error.heals:
                pause = PAUSE
            elif error.code in (404, 409):  # the watch shows the present object
                pause = 0.0 if key in self._begun else PAUSE
            else:
                pause = REFUSED
                self.refusals[key] = advice(error, self._effects.client.config.source)
                self._effects.wake()
        if pause:
            self._begun.pop(key, None)
            later(pause, self._end, key)
        else:
            self._end(key)

    def _put(self, key: Key, work: Work) -> None:
        self.queued[key] = work
        self.hire()

    def _end(self, key: Key) -> None:
        self.in_flight.pop(key, None)
        self._effects.wake()
