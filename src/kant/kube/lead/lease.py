"""Leader election by a Lease: a leader knows by its own clock for how long no other replica can lead.

A candidate takes over a lease only if the record has not changed for the whole duration by the candidate's own clock,
so clocks of different machines are never compared. A leader counts from the moment when it *sent* its last successful
renewal: the server cannot have changed the record earlier. The leader stops `renew_deadline` after that moment. Each of
its requests ends at most `in_flight` seconds after it is sent. If `renew_deadline + in_flight < duration`, all of them
end before another replica may lead. If the network delays a binding longer, the API server rejects it by its token.

Source: client-go, tools/leaderelection; fencing tokens: M. Kleppmann, How to do distributed locking (2016).
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import ceil

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.decoding import decoded
from kant.kube.objects.times import micro_now
from kant.kube.objects.views import LeaseObject, LeaseRecord
from kant.model.errors import InputError

LOOKS = 8
"""How often a candidate reads another holder's record between two attempts."""


def boot_clock() -> float:
    """Return seconds on a clock that also runs while the process is stopped or the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


def own_identity() -> str:
    """Return a unique identity of this process; a restarted process has another one."""
    return f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"


class Lease:
    """One candidate for the Lease `namespace/name`. All times are seconds. duration: how long the record must be
    unchanged before another may lead; renew_deadline: how long a leader leads after it sent its last successful
    renewal; retry: between two attempts, during which a candidate reads the record LOOKS times, and once more when it
    may take over; in_flight: the timeout of requests that only a leader may send. `run` calls `on_acquired(token)` and
    `on_lost()`. `notes` returns the annotations to write with each renewal, given the present ones. `on_rival` gets the
    annotations of another leader. `client` should be used for nothing else, so that no renewal waits behind bindings.

    If someone deletes the Lease of a leader, a candidate that has never seen it takes over at once. Then only the token
    on the bindings separates the two leaders, until the first one fails to renew.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        identity: str | None = None,
        *,
        duration: float = 15.0,
        renew_deadline: float = 10.0,
        retry: float = 2.0,
        in_flight: float = 4.0,
        on_acquired: Callable[[str], None] = lambda token: None,
        on_lost: Callable[[], None] = lambda: None,
        on_trouble: Callable[[ApiError | InputError], None] = lambda error: None,
        notes: Callable[[dict[str, str]], dict[str, str]] = lambda stood: {},
        on_rival: Callable[[dict[str, str]], None] = lambda notes: None,
        clock: Callable[[], float] = boot_clock,
        rng: random.Random | None = None,
    ) -> None:
        if not 0 < retry < renew_deadline:
            raise InputError("the Lease: retry", f"over 0 s and under the renew deadline, {renew_deadline} s", retry)
        if renew_deadline + in_flight >= duration:
            least = f"more than renew deadline + request timeout, {renew_deadline} + {in_flight} s"
            raise InputError("the Lease: duration", least, duration)
        self.client = client
        self.identity = identity or own_identity()
        self.duration, self.renew_deadline, self.retry, self.in_flight = duration, renew_deadline, retry, in_flight
        self.on_acquired, self.on_lost, self.on_trouble = on_acquired, on_lost, on_trouble
        self._notes = notes
        self._on_rival = on_rival
        self._clock = clock
        self._rng = rng or random.Random()
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._meta = {"name": name, "namespace": namespace}
        self._path = f"{self._collection}/{name}"
        self._until = float("-inf")  # when this replica stops leading, by its own clock
        self._seen = LeaseObject()
        self._seen_at = float("-inf")  # when this replica first saw the present record
        self._transitions = 0
        self._in_trouble = False  # whether the last attempt failed

    def holds(self) -> bool:
        """Whether a request sent now, with the timeout `in_flight`, ends before another replica may lead."""
        return self._clock() < self._until

    @property
    def token(self) -> str:
        """The identity of the leader and its term. Bindings carry it; the API server compares it with the Lease."""
        return f"{self.identity}/{self._transitions}"

    @property
    def leader(self) -> str:
        """The identity of the last known leader; "" for none."""
        return self._seen.spec.holder_identity or ""

    async def run(self) -> None:
        """Stand for election forever. To end, cancel this task; call `release` once no request is in flight."""
        while True:
            while not await self._attempt(self._acquire):
                await asyncio.sleep(self._pause())
            self.on_acquired(self.token)
            while self.holds():
                await asyncio.sleep(min(self.retry, max(0.0, self._until - self._clock())))
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, self._until - self._clock())):
                        await self._attempt(self._renew)
            self._until = float("-inf")
            self.on_lost()

    async def release(self) -> None:
        """Give up the lease, so that another replica need not wait. First end all requests that only a leader may send.

        A renewal in flight may have changed the record; then the write conflicts, and the record is read again.
        """
        held, self._until = self.holds(), float("-inf")
        try:
            while held:
                now = micro_now()
                try:
                    return await self._write(LeaseRecord("", 1, now, now, self._transitions))
                except ApiError as error:
                    if error.code != 409:
                        raise
                known = self._seen.metadata.resource_version
                await self._read()
                ours = self._seen.spec.holder_identity == self.identity
                held = ours and self._seen.metadata.resource_version != known
        except ApiError as error:
            self.on_trouble(error)

    async def _attempt(self, step: Callable[[], Awaitable[bool]]) -> bool:
        """Make one attempt. Errors are reported, but a conflict only means that another candidate was faster."""
        self._in_trouble = False
        try:
            return await step()
        except ApiError as error:
            if error.code == 409:
                return False
            self.on_trouble(error)
        except InputError as error:
            self.on_trouble(error)
        self._in_trouble = True
        return False

    def _pause(self) -> float:
        """Return the seconds until a candidate tries again. The lease expires `_stands()` seconds after the candidate
        saw the last renewal: it reads often, and at once when that time is up. If reading fails, it reads less often.
        """
        left = self._stands() - (self._clock() - self._seen_at)
        if self._in_trouble or left <= 0:
            return self.retry * self._rng.uniform(1.0, 1.2)
        return min(left, self.retry / LOOKS * self._rng.uniform(1.0, 1.2))

    def _stands(self) -> float:
        """Return for how many seconds a holder's record must be unchanged before another replica may lead."""
        return max(self.duration, float(self._seen.spec.lease_duration_seconds or 0))

    async def _read(self) -> None:
        try:
            found = await self.client.get(self._path, LeaseObject, timeout=self._patience())
        except ApiError as error:
            if error.code != 404:
                raise
            found = LeaseObject(spec=self._seen.spec)  # deleted: the holder may lead until the record expires
        if found.metadata.resource_version != self._seen.metadata.resource_version or self._seen_at == float("-inf"):
            self._seen, self._seen_at = found, self._clock()

    async def _acquire(self) -> bool:
        await self._read()
        spec = self._seen.spec
        holder = spec.holder_identity
        if holder and holder != self.identity and self._clock() - self._seen_at < self._stands():
            self._on_rival(self._seen.metadata.annotations or {})
            return False
        changes = int(holder != self.identity)
        transitions = (spec.lease_transitions or 0) + changes
        acquired = micro_now() if changes else spec.acquire_time
        await self._lead(LeaseRecord(self.identity, ceil(self.duration), acquired, micro_now(), transitions))
        return self.holds()

    async def _renew(self) -> bool:
        """Renew from the record that this replica last wrote. If that fails, read who holds the Lease."""
        spec = self._seen.spec
        try:
            await self._lead(msgspec.structs.replace(spec, renew_time=micro_now()))
        except ApiError:
            await self._read()  # the failed write may have succeeded, or another replica leads
            if self._seen.spec.holder_identity != self.identity:
                self._until = float("-inf")
            raise
        return True

    async def _lead(self, record: LeaseRecord) -> None:
        """Write the record. Leadership counts from when the write was sent."""
        sent = self._clock()
        await self._write(record)
        self._transitions = record.lease_transitions or 0
        self._until = max(self._until, sent + self.renew_deadline)

    async def _write(self, record: LeaseRecord) -> None:
        version = self._seen.metadata.resource_version
        notes = self._notes(self._seen.metadata.annotations or {})
        meta = self._meta | {"annotations": notes} | ({"resourceVersion": version} if version else {})
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": record}
        method, path = ("PUT", self._path) if version else ("POST", self._collection)
        raw = await self.client.call(method, path, msgspec.json.encode(lease), timeout=self._patience())
        self._seen = decoded(raw, LeaseObject, f"{method} {path}")
        self._seen_at = self._clock()

    def _patience(self) -> float:
        """Return the timeout of one attempt, which leaves time for another before the deadline."""
        return min(self.in_flight, max(self.retry, self.renew_deadline / 3))
