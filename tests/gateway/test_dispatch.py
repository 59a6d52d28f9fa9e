"""The dispatcher under any sequence of events: nobody is lost, nobody is placed where there is no room."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.rig import SETTINGS, dispatcher

from kant.gateway.ask import RefusedError, read_ask
from kant.gateway.backend import Limits, Placement
from kant.gateway.dispatch import MOST_BACKENDS, Dispatcher
from kant.gateway.looks import looked
from kant.gateway.scrape import Scraped
from kant.serving.policies import POLICIES, policy_named
from kant.serving.routers import ROUTERS, router_named
from kant.serving.routing import least

EVENTS = st.lists(
    st.tuples(st.sampled_from(["come", "said", "end", "retry", "turn", "have"]), st.integers(0, 15)), max_size=60
)
URLS = ("http://a", "http://b")
LARGE = replace(SETTINGS, num_blocks=4000, prefix_cache=True)


def come(chosen: Dispatcher, prompt: int, **more: object) -> Placement:
    body = {"model": "", "prompt": [1] * prompt, "max_tokens": 20, **more}
    return chosen.come(read_ask("/v1/completions", json.dumps(body).encode()))


def check(chosen: Dispatcher, live: list[Placement], in_flight: int) -> None:
    """Everything that lives is at one place, and what is counted is what is there."""
    placed = [p for p in live if p.backend is not None]
    held = [p for queue in chosen.held.values() for p in queue]
    assert len(placed) + len(held) == len(live) and len({p.row for p in live}) == len(live)
    assert len(chosen.free) + len(live) == chosen.limits.at_once
    for backend in chosen.backends:
        mine = [p for p in placed if p.backend is backend]
        assert len(mine) == len(backend.rows) <= in_flight
        site = backend.site
        assert set(site.live) == {p.row for p in mine}
        assert site.tokens() == sum(sent.tokens for sent in site.live.values())
        assert site.pending_prefill() == sum(sent.prompt for sent in site.live.values() if not sent.done)
    assert all(backend.rows or not backend.leaving or backend.url in chosen.addresses for backend in chosen.backends)
    assert len(chosen.loads.free) + len(chosen.backends) == MOST_BACKENDS
    assert chosen.usual("")[0] == chosen.in_service("", frozenset())
    if held and not (chosen.router.holds or chosen.policy.limits):
        waits = min(held)
        assert all(not b.open or len(b.rows) >= in_flight or b.number in waits.without for b in chosen.backends)


@given(EVENTS, st.integers(1, 3), st.sampled_from(sorted(POLICIES)), st.sampled_from(["round-robin", "block"]))
@example(  # the last one goes before whoever was sent back, and need not wait for a backend that he may not have
    [("come", 0), ("come", 1), ("come", 0), ("retry", 1), ("come", 0)], 2, "layered-priority", "round-robin"
)
def test_nobody_is_lost_and_nobody_is_over_a_limit(
    events: list[tuple[str, int]], in_flight: int, policy: str, router: str
) -> None:
    async def run() -> None:
        chosen = dispatcher(URLS, policy, router, in_flight=in_flight, at_once=20)
        live: list[Placement] = []
        said: dict[int, int] = {}
        for what, k in events:
            if what == "come":
                if chosen.free:
                    live.append(come(chosen, 30 * k + 1, priority=k))
                    chosen.offer(live[-1])
            elif what == "have":  # pods come, terminate, and are gone
                chosen.replace_backends({url: bool(k >> 2 + i & 1) for i, url in enumerate(URLS) if k >> i & 1})
                assert all(backend.rows or backend.url in chosen.addresses for backend in chosen.backends)
                assert len({backend.number for backend in chosen.backends}) == len(chosen.backends) <= chosen.numbers
            elif what == "turn" and chosen.backends:
                backend = chosen.backends[k % len(chosen.backends)]
                if k % 3 == 0:
                    chosen.lost(backend)
                elif k % 3 == 1:
                    chosen.found(backend)
                else:
                    backend.draining = not backend.draining
                    chosen.ask_again()
            elif live:
                placed = live[k % len(live)]
                if what == "said":
                    said[placed.order] = said.get(placed.order, 0) + k
                    chosen.said(placed, said[placed.order])
                elif what == "retry" and placed.backend is not None:
                    number = placed.backend.number
                    chosen.take_back(placed)
                    said.pop(placed.order, None)
                    placed.without = frozenset({number})
                    chosen.offer(placed)
                    chosen.ask_again()
                elif what == "end":
                    live.remove(placed)
                    chosen.end(placed, 7 if k % 2 else None, 30)
                    chosen.end(placed, 7)  # a second call does nothing
            check(chosen, live, in_flight)
        chosen.replace_backends(dict.fromkeys(URLS, True))
        for backend in chosen.backends:
            backend.draining = False
            chosen.found(backend)
        for placed in live:
            placed.without = frozenset()
        chosen.ask_again()
        while live:
            placed = next(p for p in live if p.backend is not None)  # somebody always has a place
            live.remove(placed)
            chosen.end(placed, 3)
            check(chosen, live, in_flight)
        assert not chosen.held

    asyncio.run(run())


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12))
def test_who_is_held_is_placed_by_priority_and_then_by_arrival(priorities: list[int]) -> None:
    async def run() -> None:
        chosen = dispatcher(["http://a"], "priority", in_flight=1)
        first = come(chosen, 5)
        assert chosen.offer(first)
        waiting = [come(chosen, 5, priority=priority) for priority in priorities]
        assert not any(chosen.offer(placed) for placed in waiting)
        order, now = [], first
        for _ in waiting:
            chosen.end(now, 1)
            now = next(iter(chosen.backends[0].rows.values()))
            assert chosen.sent_priority(now) == now.ask.fields["priority"]
            order.append(now.order)
        assert order == [placed.order for placed in sorted(waiting, key=lambda p: (p.ask.fields["priority"], p.order))]

    asyncio.run(run())


def test_past_future_holds_what_the_memory_will_not_hold() -> None:
    """60 blocks of 16 tokens; every output before was short, so many fit; once they are long, few do."""

    async def fits(output: int) -> int:
        chosen = dispatcher(["http://a"], "past-future")
        for _ in range(1000):
            placed = come(chosen, 10)
            assert chosen.offer(placed)
            chosen.said(placed, output)
            chosen.end(placed, output)
        held = [not chosen.offer(come(chosen, 10)) for _ in range(100)]
        return held.index(True)

    assert asyncio.run(fits(10)) > 2 * asyncio.run(fits(200))


def test_what_others_send_to_an_engine_counts_once_it_stays() -> None:
    chosen = dispatcher(["http://a", "http://b"], router="shortest-queue")
    first = chosen.backends[0]
    for looks in range(3):
        assert first.site.requests == 0
        first.compare(Scraped(4, 1, 0.5), 0, 0)
        assert first.site.other_requests == (5 if looks == 2 else 0)
    assert first.site.tokens() == round(0.5 * first.site.settings.tokens)
    assert all(chosen.offer(placed) and placed.backend is chosen.backends[1] for placed in [come(chosen, 5)])
    first.compare(Scraped(0, 0, 0.0, blocks=500, block_size=32), 0, 0)
    assert first.site.requests == 0 and first.site.settings.tokens == 499 * 32


@given(st.lists(st.integers(1, 400), min_size=1, max_size=10), st.integers(0, 12), st.integers(0, 12), st.floats(0, 1))
@settings(max_examples=examples(60))
def test_of_answers_that_nobody_sees_the_metrics_say_what_is_over_what_waits_and_what_it_holds(
    prompts: list[int], running: int, waiting: int, usage: float
) -> None:
    async def run() -> None:
        chosen = dispatcher(["http://a"], router="prefix")
        (backend,) = chosen.backends
        came = [come(chosen, prompt) for prompt in prompts]
        for placed in came:
            placed.unseen = True
            assert chosen.offer(placed)
        assert backend.site.pending_prefill() == sum(prompts)
        said = Scraped(running, waiting, usage)
        looked(backend, chosen, said, list(backend.rows.values()), (len(came), sum(prompts)))
        left = came[max(0, len(came) - running - waiting) :]  # the oldest are over
        assert list(backend.rows.values()) == left and all(placed.over for placed in came if placed not in left)
        begun = left[: max(0, len(left) - waiting)]
        behind = [placed.prompt for placed in left[len(begun) :]]
        assert backend.site.pending_prefill() == sum(behind)
        held = sum(placed.prompt for placed in begun)
        outputs = backend.site.tokens() - backend.site.other_tokens - sum(behind) - held
        used = round(usage * backend.site.settings.tokens)
        assert len(begun) <= outputs <= max(len(begun), used - held)
        assert not begun or outputs > used - held - len(begun)
        due = [when for when, _, placed, _ in chosen.expected if placed in left[len(begun) :]]
        chosen.now = min(due, default=0.0) - 1e-9
        chosen.expect()
        assert backend.site.pending_prefill() == sum(behind)  # not before the latency model says so
        chosen.now += 1e9
        last = come(chosen, 7)
        assert chosen.offer(last) and backend.site.pending_prefill() == 7
        chosen.end(last, 1)
        chosen.lost(backend)
        assert not backend.rows and len(chosen.free) == chosen.limits.at_once

    asyncio.run(run())


async def test_where_no_answers_are_seen_outputs_are_as_long_as_the_engines_say() -> None:
    chosen = dispatcher(["http://a"])
    for unseen, said in ((False, 256.0), (True, 40.0)):
        placed = come(chosen, 5)
        placed.unseen = unseen
        assert chosen.offer(placed)
        chosen.end(placed, None)
        for k in range(1, 300):
            before = Scraped(generated=400 * k, ended=10 * k)
            chosen.counted(before, Scraped(generated=400 * k + 400, ended=10 * k + 10))
        assert chosen.output == pytest.approx(said)


@given(st.lists(st.integers(100, 900), max_size=4), st.integers(1, 500), st.lists(st.floats(0, 2), max_size=5))
@settings(max_examples=examples(40))
def test_a_deadline_that_no_backend_would_keep_is_refused_at_once(
    before: list[int], prompt: int, deadlines: list[float]
) -> None:
    async def refused(deadline_s: float, prompts: list[int], tokens: int, believed: bool = True) -> bool:
        chosen = dispatcher(["http://a"], settings=LARGE, first_token_s=[math.inf, 999.0][believed])
        for length in prompts:
            assert chosen.offer(come(chosen, length))
        placed = come(chosen, tokens)
        placed.deadline_s = deadline_s
        try:
            assert chosen.offer(placed)
            return False
        except RefusedError as error:
            assert (error.status, error.kind) == (429, "overloaded") and error.retry_after > 0
            return True

    async def run() -> None:
        later = [await refused(deadline, before, prompt) for deadline in sorted([0.0, *deadlines, 1e4])]
        assert later == sorted(later, reverse=True) and later[0] and not later[-1]
        assert not any([await refused(deadline, before, prompt, False) for deadline in deadlines])
        for deadline in deadlines:  # who has more before him is not earlier
            assert await refused(deadline, before, prompt) <= await refused(deadline, [*before, 901], prompt)
        assert await refused(0.02, [], 900) and not await refused(0.02, [], 4)

    asyncio.run(run())


async def test_what_is_cached_counts_for_a_deadline() -> None:
    chosen = dispatcher(["http://a"], router="prefix", settings=LARGE, first_token_s=999.0)
    for again in (False, True):
        placed = come(chosen, 900)
        placed.deadline_s = 0.05
        if again:
            chosen.now = 0.049  # it has waited, or was tried elsewhere
            with pytest.raises(RefusedError):
                chosen.offer(placed)
            chosen.now = 0.0
            assert chosen.offer(placed)
            return
        with pytest.raises(RefusedError, match=r"within 0\.05 seconds"):
            chosen.offer(placed)
        placed.deadline_s = math.inf
        assert chosen.offer(placed)
        chosen.end(placed, 1)


async def test_what_cannot_be_placed_is_refused() -> None:
    chosen = dispatcher(["http://a"], in_flight=1, held=1, at_once=3)
    chosen.backends[0].models = frozenset({"m"})
    with pytest.raises(RefusedError, match="not served here"):
        chosen.offer(come(chosen, 5, model="other"))
    assert chosen.offer(come(chosen, 5, model="m"))
    assert not chosen.offer(come(chosen, 5, model="m"))
    with pytest.raises(RefusedError, match="at most 3 requests"):
        come(chosen, 5)


def test_programs_that_strangers_name_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.gateway.programs.PROGRAMS", 10)
    chosen = dispatcher(["http://a"], "plas", "program-affinity")
    for i in range(100):
        placed = come(chosen, 5, vllm_xargs={"program_id": f"p{i}"})
        chosen.offer(placed)
        chosen.end(placed, 5)
        assert chosen.programs.number("p0") == 0  # it comes again and again
    assert len(chosen.programs.known) == 10
    assert len(chosen.policy.service) <= 11  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(set(ROUTERS) - {"round-robin"}))
def test_routers_that_see_the_same_do_not_all_choose_the_first(name: str) -> None:
    """Each of 64 routers sends one request to four engines that have nothing: each engine gets some."""
    urls = [f"http://{k}" for k in range(4)]
    counts = [0] * 4
    for seed in range(64):
        chosen = Dispatcher(urls, SETTINGS, policy_named("fcfs"), router_named(name), Limits(), seed)
        placed = come(chosen, 30)
        assert chosen.offer(placed) and placed.backend is not None
        counts[placed.backend.number] += 1
    assert min(counts) >= 5


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 99))
def test_a_least_one_is_drawn_and_each_is(values: list[int], seed: int) -> None:
    draw = np.random.Generator(np.random.PCG64(seed))
    best = {k for k, value in enumerate(values) if value == min(values)}
    drawn = [least(values, draw) for _ in range(40 * len(best))]
    assert set(drawn) == best
