"""Ejection by answers: never more than may be, for longer each time, and one request tests who may come back."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.rig import SETTINGS
from tests.gateway.test_dispatch import come

from kant.gateway.backend import Limits, Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.outliers import Ejection, Health, judged
from kant.serving.policies import policy_named
from kant.serving.routers import router_named

RULE = Ejection(after=3, base_s=10.0, most_s=60.0)


def dispatcher(count: int) -> Dispatcher:
    urls = [f"http://{k}" for k in range(count)]
    return Dispatcher(urls, SETTINGS, policy_named("fcfs"), router_named("least-tokens"), Limits(), ejection=RULE)


def test_it_is_ejected_for_twice_as_long_each_time_and_begins_again_when_it_has_been_well_for_longer() -> None:
    health, now, sent, times = Health(), 0.0, 0, []
    for failures in (3, 1, 1, 1, 1):  # the later ones are tests that fail
        for k in range(failures):
            sent += 1
            assert health.bad(sent, now, sent, RULE) == (k == failures - 1)
        times.append(health.lasts)
        assert not health.accepts(health.until - 0.001) and health.accepts(health.until)
        now = health.until
    assert times == [10.0, 20.0, 40.0, 60.0, 60.0]
    assert not health.good(sent, now)  # was sent before it was ejected
    assert health.good(sent + 1, now) and health.failures == 0
    for wait, lasts in ((1.0, 60.0), (61.0, 10.0)):
        now += wait
        for _ in range(3):
            sent += 1
            health.bad(sent, now, sent, RULE)
        assert health.lasts == lasts
        now = health.until
        health.good(sent + 1, now)
        sent += 1


def test_good_answers_between_failures_keep_it_in_service() -> None:
    health = Health()
    for sent in range(1, 100, 3):
        assert not health.bad(sent, 0.0, sent, RULE) and not health.bad(sent + 1, 0.0, sent + 1, RULE)
        health.good(sent + 2, 0.0)
    assert not health.ejected
    assert not any(Health().bad(sent, 0.0, sent, Ejection(after=0)) for sent in range(9))


def test_only_failures_of_the_engine_count() -> None:
    assert [judged(status) for status in (200, 304, 400, 404, 429, 500, 501, 502, 503, 504, 505, 599)] == [
        True, True, None, None, None, False, None, False, False, False, None, False,
    ]  # fmt: skip


def test_one_request_tests_who_may_come_back_and_where_all_are_ejected_all_are_used() -> None:
    async def run() -> None:
        chosen = dispatcher(2)
        for backend in chosen.backends:
            backend.draining = True
        first, second = chosen.backends

        def send(*, fails: bool = False) -> Placement:
            placed = come(chosen, 5)
            assert chosen.offer(placed)
            if fails:
                chosen.answered(placed, False)
                chosen.end(placed, None)
            return placed

        first.draining = False
        for _ in range(3):
            send(fails=True)
        assert first.health.ejected and chosen.panics
        early = send()  # nobody else is there
        assert early.backend is first and early.tests
        chosen.end(early, None)
        chosen.now = 10.0
        first.draining, second.draining = True, False
        assert chosen.offer(come(chosen, 500))
        first.draining = False
        held = [send() for _ in range(3)]
        assert [placed.backend for placed in held].count(first) == 1  # it has the fewest, and yet only one
        test = next(placed for placed in held if placed.backend is first)
        assert test.tests
        chosen.said(test, 1)
        assert first in [send().backend for _ in range(4)]  # it answers: the next one may come
        chosen.now = 11.0
        assert not first.health.bad(1, 11.0, chosen.sent, RULE)  # what was sent before says nothing now

    asyncio.run(run())


EVENTS = st.lists(
    st.tuples(st.sampled_from(["come", "good", "bad", "end", "wait", "turn", "said"]), st.integers(0, 9)), max_size=120
)


@given(EVENTS, st.integers(1, 4))
@settings(max_examples=examples(200))
def test_who_is_ejected_gets_nothing_while_another_is_in_service(events: list[tuple[str, int]], count: int) -> None:
    """An oracle that keeps all answers and decides anew from them who may get a request."""

    async def run() -> None:
        chosen = dispatcher(count)
        live: list[Placement] = []
        failed = dict.fromkeys(range(count), 0)  # in a row
        until: dict[int, float] = {}
        sent_when: dict[int, int] = {}
        lasts = dict.fromkeys(range(count), 0.0)
        since = dict.fromkeys(range(count), 0.0)
        sends = 0
        for what, k in events:
            if what == "wait":
                chosen.now += (0.5, 1, 3, 5, 8, 10, 11, 20, 40, 70)[k]
                chosen.ask_again()
            elif what == "turn":
                backend = chosen.backends[k % count]
                if backend.up:
                    chosen.unreachable(backend)
                else:
                    chosen.found(backend)
            elif what == "come":
                testing = {p.backend.number for p in live if p.backend is not None and p.tests}
                opened = [b.number for b in chosen.backends if b.open]
                may = [n for n in opened if n not in until or (chosen.now >= until[n] and n not in testing)] or opened
                placed = come(chosen, 5)
                assert chosen.offer(placed) == bool(may)
                if placed.backend is None:
                    chosen.end(placed, None)
                    continue
                assert placed.backend.number in may
                sends += 1
                live.append(placed)
            elif live:
                placed = live[k % len(live)]
                if placed.backend is None:
                    continue
                n = placed.backend.number
                if what == "said":
                    chosen.said(placed, 1)
                    assert not placed.tests
                    continue
                live.remove(placed)
                if what == "good":
                    chosen.answered(placed, True)
                    if n not in until:
                        failed[n] = 0
                    elif placed.sent > sent_when[n]:
                        del until[n]
                        failed[n], since[n] = 0, chosen.now
                elif what == "bad":
                    chosen.answered(placed, False)
                    if n in until:
                        again = placed.sent > sent_when[n] and chosen.now >= until[n]
                    else:
                        failed[n] += 1
                        again = failed[n] == 3
                        if again and chosen.now - since[n] > lasts[n]:
                            lasts[n] = 0.0
                    if again:
                        lasts[n] = min(60.0, 2 * lasts[n] if lasts[n] else 10.0)
                        until[n], sent_when[n] = chosen.now + lasts[n], sends
                chosen.end(placed, None)
            assert {b.number for b in chosen.backends if b.health.ejected} == set(until)
            opened = [b.number for b in chosen.backends if b.open]
            assert chosen.panics == (bool(opened) and set(opened) <= set(until))

    asyncio.run(run())
