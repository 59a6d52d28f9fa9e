"""Leader election: at no instant two leaders, and nothing that a leader has sent arrives under the next."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube import virtual
from tests.kube.control_plane import ControlPlane
from tests.patience import PATIENCE_S

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config, load
from kant.kube.lead.lease import Lease, LeaseObject, LeaseRecord, boot_clock
from kant.kube.lead.lease_thread import LeaseThread
from kant.kube.objects.views import Meta
from kant.model.errors import InputError

FAST = {"duration": 15.0, "renew_deadline": 10.0, "retry": 2.0, "in_flight": 4.0}


class Client:
    """The part of an `ApiClient` that a Lease uses, in memory."""

    async def answer(self, method: str, body: bytes | None, timeout: float) -> Any:
        raise NotImplementedError

    async def get(self, path: str, view: Any, *, timeout: float) -> Any:
        return await self.answer("GET", None, timeout)

    async def call(self, method: str, path: str, body: bytes, *, timeout: float) -> bytes:
        return msgspec.json.encode(await self.answer(method, body, timeout))


class Store(Client):
    """One Lease behind a network that delays, loses answers, and delivers what its sender has given up."""

    def __init__(self, seed: int, slow: float, lossy: float) -> None:
        self.rng, self.slow, self.lossy = random.Random(seed), slow, lossy
        self.record: LeaseRecord | None = None
        self.version = 0
        self.conflicts = 0

    def apply(self, method: str, body: bytes | None) -> LeaseObject:
        if method == "GET":
            if self.record is None:
                raise ApiError(404, "NotFound", "no lease")
        else:
            wanted = msgspec.json.decode(body or b"", type=LeaseObject)
            if wanted.metadata.resource_version != (str(self.version) if self.record else ""):
                self.conflicts += 1
                raise ApiError(409, "Conflict", "changed")
            self.version += 1
            self.record = wanted.spec
        assert self.record is not None
        return LeaseObject(metadata=Meta(resource_version=str(self.version)), spec=self.record)

    async def answer(self, method: str, body: bytes | None, timeout: float) -> Any:
        there, back = (self.rng.expovariate(1 / self.slow) for _ in range(2))
        lost = self.rng.random() < self.lossy

        async def deliver() -> LeaseObject:  # goes on even if the sender is gone
            await asyncio.sleep(there)
            answer = self.apply(method, body)
            await asyncio.sleep(back if not lost else 1e6)
            return answer

        delivery = asyncio.ensure_future(deliver())
        delivery.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(delivery)
        except TimeoutError:
            raise ApiError(0, "Timeout", "no answer") from None


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 2**32),
    slow=st.sampled_from([0.01, 0.5, 2.0, 5.0]),
    lossy=st.sampled_from([0.0, 0.1, 0.5]),
    stops=st.lists(st.tuples(st.integers(0, 2), st.floats(1, 280), st.floats(1, 40)), max_size=4),
)
def test_no_two_hold_and_what_a_leader_sends_ends_before_the_next_leads(
    seed: int, slow: float, lossy: float, stops: list[tuple[int, float, float]]
) -> None:
    async def main() -> tuple[list[list[float]], Store]:
        store = Store(seed, slow, lossy)
        leases = [
            Lease(store, "ns", "kant", f"c{i}", **FAST, clock=virtual.now, rng=random.Random(seed + i))  # type: ignore[arg-type]
            for i in range(3)
        ]
        tasks = [asyncio.create_task(lease.run()) for lease in leases]
        held: list[list[float]] = [[] for _ in leases]
        until = [0.0] * 3
        while virtual.now() < 300:
            await asyncio.sleep(0.25)
            for which, at, length in stops:  # a process that is killed and comes back as the same candidate
                if at <= virtual.now() < at + 0.25 and not tasks[which].done():
                    tasks[which].cancel()
                    until[which] = virtual.now() + length
            for which, task in enumerate(tasks):
                if task.cancelled() and virtual.now() >= until[which]:
                    tasks[which] = asyncio.create_task(leases[which].run())
            for which, lease in enumerate(leases):
                if lease.holds():
                    held[which].append(virtual.now())
        for task in tasks:
            task.cancel()
        return held, store

    held, _ = virtual.run(main())
    spans = sorted((at, which) for which, times in enumerate(held) for at in times)
    for (first, one), (second, other) in pairwise(spans):
        assert one == other or second > first + FAST["in_flight"], (first, one, second, other)
    if slow <= 0.01 and lossy == 0.0:
        assert len(spans) > 300, "a good network has a leader most of the time"


@virtual.timed
async def test_a_leader_that_lets_go_is_followed_at_once_and_each_term_has_its_own_token() -> None:
    store, heard = Store(1, 0.001, 0.0), list[str]()
    one, two = (
        Lease(store, "ns", "kant", name, **FAST, clock=virtual.now, on_acquired=heard.append)  # type: ignore[arg-type]
        for name in ("one", "two")
    )
    first = asyncio.create_task(one.run())
    await asyncio.sleep(1)
    second = asyncio.create_task(two.run())
    await asyncio.sleep(60)
    assert one.holds() and not two.holds() and two.leader == "one"
    first.cancel()
    await one.release()
    assert not one.holds()
    await asyncio.sleep(3)
    assert two.holds() and two.token == "two/2"
    assert heard == ["one/1", "two/2"]
    second.cancel()


@virtual.timed
async def test_a_leader_that_cannot_renew_is_told_so_by_its_own_clock() -> None:
    store, lost = Store(1, 0.001, 0.0), list[float]()
    lease = Lease(store, "ns", "kant", "a", **FAST, clock=virtual.now, on_lost=lambda: lost.append(virtual.now()))  # type: ignore[arg-type]
    task = asyncio.create_task(lease.run())
    await asyncio.sleep(5)
    assert lease.holds()
    store.lossy = 1.0
    store.slow = 1e5
    await asyncio.sleep(20)
    assert not lease.holds()
    assert len(lost) == 1 and lost[0] <= 5 + FAST["renew_deadline"] + 0.1
    task.cancel()


class Late(Store):
    """What is written is there at once; its sender hears of it three seconds later."""

    async def answer(self, method: str, body: bytes | None, timeout: float) -> Any:
        answer = self.apply(method, body)
        if method != "GET":
            await asyncio.sleep(3)
        return answer


@virtual.timed
async def test_a_leader_lets_go_though_it_has_not_heard_of_its_last_renewal() -> None:
    store, trouble = Late(1, 1, 0), list[str]()
    lease = Lease(
        store, "ns", "kant", "a", **FAST, clock=virtual.now, on_trouble=lambda error: trouble.append(str(error))
    )  # type: ignore[arg-type]
    task = asyncio.create_task(lease.run())
    await asyncio.sleep(5.5)
    assert store.version == 2, "it is renewed, and the answer is on its way"
    task.cancel()
    await lease.release()
    assert store.record is not None and store.record.holder_identity == "" and store.conflicts == 1
    assert not trouble


@virtual.timed
async def test_a_leader_counts_from_when_it_sent_not_from_when_it_heard() -> None:
    lease = Lease(Late(1, 1, 0), "ns", "kant", "a", **FAST, clock=virtual.now)  # type: ignore[arg-type]
    task = asyncio.create_task(lease.run())
    await asyncio.sleep(3.1)
    assert lease.holds()
    task.cancel()
    await asyncio.sleep(6.8)
    assert lease.holds()
    await asyncio.sleep(0.2)
    assert not lease.holds(), "ten seconds after the write began"


@virtual.timed
async def test_a_deleted_lease_is_not_free_for_those_who_have_seen_its_holder() -> None:
    store = Store(1, 0.001, 0.0)
    one, two = (Lease(store, "ns", "kant", n, **FAST, clock=virtual.now) for n in ("one", "two"))  # type: ignore[arg-type]
    first = asyncio.create_task(one.run())
    await asyncio.sleep(1)
    second = asyncio.create_task(two.run())
    await asyncio.sleep(5)
    first.cancel()  # as if it were stopped: it cannot renew, and has not let go
    store.record = None
    await asyncio.sleep(1)
    while virtual.now() < 40:
        assert not (one.holds() and two.holds())
        await asyncio.sleep(0.1)
    assert two.holds()
    second.cancel()


def test_times_that_cannot_be_safe_are_refused() -> None:
    with pytest.raises(InputError, match="renew deadline"):
        Lease(None, "ns", "kant", duration=15, renew_deadline=12, in_flight=4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="retry"):
        Lease(None, "ns", "kant", retry=10)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_clock_runs_while_a_process_is_stopped() -> None:
    """SIGSTOP, then SIGCONT: the first thing that the process sees is that it holds no more."""
    program = (
        "import sys, kant.kube.lead.lease as m; l = m.Lease(None, 'n', 'k', duration=6,"
        " renew_deadline=2, retry=0.2, in_flight=0.5); l._until = m.boot_clock() + 2\n"
        "print(l.holds(), l._until, flush=True); sys.stdin.readline(); print(l.holds(), flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdin is not None
    held, until = process.stdout.readline().split()
    assert held == "True"
    process.send_signal(signal.SIGSTOP)
    while boot_clock() <= float(until):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGCONT)
    assert process.communicate("\n")[0] == "False\n"


async def test_candidates_at_a_real_api_server(plane: ControlPlane) -> None:
    short = {"duration": 3.0, "renew_deadline": 1.5, "retry": 0.1, "in_flight": 1.0}
    async with ApiClient(load(plane.kubeconfig("admin"))) as client:
        leases = [Lease(client, "kube-system", "kant", f"c{i}", **short) for i in range(3)]  # type: ignore[arg-type]
        tasks = [asyncio.create_task(lease.run()) for lease in leases]
        terms = []
        for _ in range(2):
            async with asyncio.timeout(PATIENCE_S):
                while not any(lease.holds() for lease in leases):
                    await asyncio.sleep(0.02)
            leader = next(i for i, lease in enumerate(leases) if lease.holds())
            assert sum(lease.holds() for lease in leases) == 1
            terms.append(leases[leader].token)
            tasks[leader].cancel()  # dies without a word
            async with asyncio.timeout(PATIENCE_S):
                while leases[leader].holds():
                    await asyncio.sleep(0.02)
        found = await client.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kant", LeaseObject)
        assert len({*terms}) == 2 and (found.spec.lease_transitions or 0) >= 2
        for task in tasks:
            task.cancel()


@settings(max_examples=examples(30))
@given(seed=st.integers(0, 2**32), lives=st.floats(3, 60))
def test_who_follows_a_leader_that_was_killed_does_so_a_moment_after_its_time_is_up(seed: int, lives: float) -> None:
    """However long after a renewal it dies, and whenever the others look; the clock of the test is virtual."""

    async def main() -> float:
        store, acquired = Store(seed, 0.01, 0.0), list[float]()
        leases = [
            Lease(
                store, "ns", "kant", f"c{i}", **FAST, clock=virtual.now, rng=random.Random(seed + i),
                on_acquired=lambda _: acquired.append(virtual.now()),
            )  # type: ignore[arg-type]
            for i in range(2)
        ]  # fmt: skip
        tasks = [asyncio.create_task(leases[0].run())]
        await asyncio.sleep(1)
        tasks.append(asyncio.create_task(leases[1].run()))
        await asyncio.sleep(lives)
        tasks[0].cancel()
        killed = virtual.now()
        while len(acquired) < 2:
            await asyncio.sleep(0.1)
        tasks[1].cancel()
        return acquired[1] - killed

    assert virtual.run(main()) < FAST["duration"] + 1.0


class OneLease(Client):
    """A Lease with its annotations, and no network before it."""

    def __init__(self) -> None:
        self.stands: LeaseObject | None = None

    async def answer(self, method: str, body: bytes | None, timeout: float) -> Any:
        if method == "GET" and self.stands is None:
            raise ApiError(404, "NotFound", "no lease")
        if method != "GET":
            wanted = msgspec.json.decode(body or b"", type=LeaseObject)
            version = 1 + int(wanted.metadata.resource_version or 0)
            meta = Meta(resource_version=str(version), annotations=wanted.metadata.annotations)
            self.stands = LeaseObject(metadata=meta, spec=wanted.spec)
        return self.stands


async def test_what_a_leader_has_told_stays_until_the_next_one_tells_it() -> None:
    client, clock, notes = OneLease(), [0.0], {"used": "by a", "version": "1"}

    def candidate(identity: str) -> Lease:
        def told(stood: dict[str, str]) -> dict[str, str]:
            return {"used": stood.get("used", "")} | notes

        return Lease(client, "ns", "kant", identity, notes=told, clock=lambda: clock[0])  # type: ignore[arg-type]

    assert await candidate("a")._acquire()
    notes, other = {"version": "2"}, candidate("b")
    assert not await other._acquire()
    clock[0] += 100
    assert await other._acquire()
    assert client.stands is not None and client.stands.metadata.annotations == {"used": "by a", "version": "2"}
    notes = {"used": "by b"}
    await other._renew()
    assert client.stands.metadata.annotations == {"used": "by b"}


async def test_what_ends_the_thread_of_a_lease_is_raised_to_who_waits_for_it() -> None:
    entered = threading.Event()

    class Broken:
        async def run(self) -> None:
            await asyncio.to_thread(entered.wait)
            raise RuntimeError("it is broken")

        def holds(self) -> bool:
            return True

    def thread(config: Config) -> LeaseThread:
        return LeaseThread(config, lambda *_: Broken(), lambda error: None, lambda: True)  # type: ignore[arg-type]

    with pytest.raises(InputError, match="certificate-authority"):
        await thread(Config("https://127.0.0.1:1", ca="none")).__aenter__()
    candidate = await thread(Config("http://127.0.0.1:1")).__aenter__()
    entered.set()
    for ends in (candidate.elected(), candidate.__aexit__()):
        with pytest.raises(RuntimeError, match="it is broken"):
            await ends
