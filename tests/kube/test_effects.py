"""The queue of effects: whatever is answered, nothing is sent twice at once, too early, or by who leads no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube import virtual

from kant.kube.act.effects import PAUSE, REFUSED, Effects, Step
from kant.kube.act.evictor import Eviction, Evictor
from kant.kube.connect.client import ApiClient, ApiError, FencedError
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.workload import Workload

HEALS, CONFLICTS = (0, 429, 500), (404, 409)
CODES = (201, *HEALS, *CONFLICTS, 403)


class Server:
    """An API server that answers by a script, each after a while."""

    config = SimpleNamespace(source="a test")

    def __init__(self, codes: list[int], seconds: float = 1.0) -> None:
        self.codes, self.seconds, self.holds = codes, seconds, True
        self.sent: list[tuple[str, float, int]] = []  # the key, when it was sent, and what was answered
        self.under_way: Counter[str] = Counter()
        self.most = 0

    async def send(self, key: str, *_: Any, **options: Any) -> None:
        if not self.holds:
            raise FencedError
        assert not self.under_way[key]
        self.under_way[key] += 1
        self.most = max(self.most, self.under_way.total())
        code = self.codes.pop(0) if self.codes else 201
        self.sent.append((key, virtual.now(), code))
        await asyncio.sleep(self.seconds)
        self.under_way[key] -= 1
        if code != 201:
            raise ApiError(code, "No", "no")

    async def evict(self, namespace: str, pod: str, *_: Any, **options: Any) -> None:
        await self.send(pod)


def queue(server: Server) -> Effects:
    return Effects(cast(ApiClient, server), lambda: None, lambda: server.holds, clock=virtual.now)


@settings(max_examples=examples(100))
@given(
    begun=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=20),
    codes=st.lists(st.sampled_from(CODES), max_size=12),
    workers=st.integers(1, 3),
)
@virtual.timed
async def test_an_effect_is_sent_once_at_a_time_and_again_only_when_it_may(
    begun: list[tuple[str, float]], codes: list[int], workers: int
) -> None:
    server = Server(codes)
    effects = queue(server)
    step: Step[str] = effects.step(workers)
    running = asyncio.create_task(effects.run())
    for key, wait in begun:
        was_busy = key in step.in_flight
        assert step.begin(key, partial(server.send, key)) != was_busy
        await asyncio.sleep(wait)
    await asyncio.sleep(120.0)
    assert not step.in_flight and not step.queued and server.most <= workers
    by_key: dict[str, tuple[float, int]] = {}
    for key, at, code in server.sent:
        if key in by_key:
            then, answer = by_key[key]
            pause = PAUSE if answer in (*HEALS, *CONFLICTS) else REFUSED if answer == 403 else 0.0
            assert at >= then + server.seconds + pause - 1e-6
        by_key[key] = at, code
    assert set(step.refusals) == {key for key, _, code in server.sent if code == 403}
    running.cancel()


@given(st.sampled_from(CODES))
@virtual.timed
async def test_an_effect_on_a_version_is_not_sent_again_before_the_watch_shows_its_outcome(code: int) -> None:
    server = Server([code])
    effects = queue(server)
    step: Step[str] = effects.step()
    running = asyncio.create_task(effects.run())
    assert step.begin("a", partial(server.send, "a"), "1")
    await asyncio.sleep(10.0)
    assert step.is_unseen("a", "1") == (code in (201, *CONFLICTS)) and len(server.sent) == 1
    assert step.begin("a", partial(server.send, "a"), "1") == (code not in (201, *CONFLICTS))
    await asyncio.sleep(10.0)
    step.replaced("a", "2")
    assert all(not step.begin("a", partial(server.send, "a"), version) for version in "12"), "both are old"
    assert step.begin("a", partial(server.send, "a"), "3") and not step.is_unseen("a", "2")
    running.cancel()


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from((201, *HEALS)), max_size=8))
@virtual.timed
async def test_what_nobody_begins_again_is_tried_until_it_is_carried_out(codes: list[int]) -> None:
    server = Server(list(codes))
    effects = queue(server)
    step: Step[str] = effects.step()
    step.begin("a", partial(server.send, "a"))
    running = asyncio.create_task(effects.run())  # what has begun before is carried out too
    await asyncio.sleep(60.0)
    tries = codes.index(201) + 1 if 201 in codes else len(codes) + 1
    assert [code for _, _, code in server.sent] == [*codes, 201][:tries] and not step.in_flight
    running.cancel()


@given(st.integers(1, 3), st.integers(0, 6), st.booleans())
@virtual.timed
async def test_who_stops_sends_nothing_more(workers: int, count: int, killed: bool) -> None:
    server = Server([], seconds=1.5)
    effects = queue(server)
    steps: list[Step[str]] = [effects.step(workers), effects.step(workers)]
    running = asyncio.create_task(effects.run())
    for kind, step in enumerate(steps):
        for number in range(count):
            step.begin(f"{kind}-{number}", partial(server.send, f"{kind}-{number}"))
    await asyncio.sleep(0.01)
    if killed:
        running.cancel()
        await asyncio.wait({running})
    else:
        await effects.drain(1.0)
        assert not any(step.in_flight for step in steps) and virtual.now() <= 2.1
    sent = len(server.sent)
    assert sent == 2 * min(workers, count)
    assert killed or not any(step.begin("late", partial(server.send, "late")) for step in steps)
    await asyncio.sleep(60.0)
    assert len(server.sent) == sent
    running.cancel()


@virtual.timed
async def test_what_is_fenced_is_not_sent_and_what_is_recalled_is_not_either() -> None:
    server = Server([])
    effects = queue(server)
    step: Step[str] = effects.step(1)
    running = asyncio.create_task(effects.run())
    for key in "abc":
        step.begin(key, partial(server.send, key), "1")
    await asyncio.sleep(0.5)
    assert step.recall("abc") == ["b", "c"] and list(step.in_flight) == ["a"]
    server.holds = False
    step.begin("b", partial(server.send, "b"), "2")
    await asyncio.sleep(5.0)
    assert [key for key, _, _ in server.sent] == ["a"] and not step.in_flight
    server.holds = True
    assert step.begin("b", partial(server.send, "b"), "2")  # it was never sent
    running.cancel()


class Protected(Server):
    """It never lets `a` go, says so at once, and cannot say of `b`."""

    async def evict(self, namespace: str, pod: str, *_: Any, **options: Any) -> None:
        if pod == "a":
            raise ApiError(429, "TooManyRequests", "a budget")
        self.codes.append(500)
        await self.send(pod)


@virtual.timed
async def test_an_eviction_is_refused_once_nothing_of_it_is_under_way() -> None:
    """Else a victim would be evicted for somebody who waits again already."""
    server, mirror = Protected([]), Mirror()
    effects = queue(server)
    evictor = Evictor(effects, mirror)
    running = asyncio.create_task(effects.run())
    pods = [k.Pod(k.Meta(name, "ml", uid=name)) for name in ("a", "b")]
    for pod in pods:
        mirror.pod("added", pod)
    eviction = Eviction("why", victims=[(Workload("w"), pods)])
    evictor.start(eviction)
    while not evictor.refused and virtual.now() < 600.0:
        await asyncio.sleep(0.1)
    assert evictor.refused and not server.under_way.total()
    sent = len(server.sent)
    await asyncio.sleep(600.0)
    assert len(server.sent) == sent and not evictor.is_busy and not evictor.done
    running.cancel()
