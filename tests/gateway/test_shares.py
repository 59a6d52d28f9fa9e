"""Who waits takes turns: against the virtual token counter as its paper states it, and by what tenants see."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.gateway.rig import SETTINGS, dispatcher

from kant.gateway.ask import RefusedError, read_ask
from kant.gateway.backend import Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.tenants import Tenant
from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.latency import latency_model

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from("abc"), st.integers(1, 60), st.integers(1, 40)),
        st.tuples(st.just("end"), st.just(""), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def come(chosen: Dispatcher, tenant: str, prompt: int, output: int = 5, level: int = 0) -> Placement:
    body = {"model": "", "prompt": [1] * prompt, "max_tokens": output}
    return chosen.come(read_ask("/v1/completions", json.dumps(body).encode()), float(output), tenant, level)


class Textbook:
    """Algorithm 2 of Sheng et al. (OSDI 2024) with outputs that are known (4.4), for one place: weights 1 and 2."""

    def __init__(self) -> None:
        self.c: dict[str, float] = {}
        self.queue: list[tuple[str, int, int, int]] = []
        self.last_left: str | None = None
        self.runs: tuple[str, int, int, int] | None = None

    def arrive(self, u: str, number: int, prompt: int, output: int) -> None:
        if self.runs is None:  # there is room, and so nobody waits
            self.runs = (u, number, prompt, output)
            self.c[u] = self.c.get(u, 0.0) + prompt + 2 * output
            return
        if u not in [request[0] for request in self.queue]:
            if not self.queue:
                lift = self.c[self.last_left] if self.last_left is not None else 0.0
            else:
                lift = min(self.c[request[0]] for request in self.queue)
            self.c[u] = max(self.c.get(u, 0.0), lift)
        self.queue.append((u, number, prompt, output))

    def end(self) -> None:
        self.runs = None
        if self.queue:
            k = min((request[0] for request in self.queue), key=lambda u: (self.c[u], u))
            r = next(request for request in self.queue if request[0] == k)
            self.queue.remove(r)
            self.c[k] += r[2] + 2 * r[3]
            self.runs = r
            if k not in [request[0] for request in self.queue]:
                self.last_left = k


AN_IDLE_QUEUE = [
    ("come", "a", 1, 1), ("come", "b", 1, 1), ("end", "", 0, 0), ("end", "", 0, 0),
    ("come", "b", 1, 1), ("come", "a", 1, 1),
]  # fmt: skip
"""Whoever left the queue last has been served since, without waiting."""


@example(AN_IDLE_QUEUE, True)
@example([("come", "a", 1, 3), ("end", "", 0, 0)], False)
@given(STEPS, st.booleans())
def test_turns_are_those_of_the_textbook(steps: list[tuple[str, str, int, int]], streams: bool) -> None:
    async def run() -> None:
        chosen, book = dispatcher(["http://a"], in_flight=1), Textbook()
        live: dict[int, Placement] = {}
        for what, tenant, prompt, output in steps:
            if what == "come":
                placed = come(chosen, tenant, prompt, output)
                live[placed.order] = placed
                chosen.offer(placed)
                book.arrive(tenant, placed.order, prompt, output)
            else:
                runs = next((p for p in live.values() if p.backend is not None), None)
                if runs is not None:
                    if streams:  # else the whole answer comes at once
                        chosen.said(runs, int(runs.predicted))
                    del live[runs.order]
                    chosen.end(runs, int(runs.predicted))
                book.end()
            running = [p.order for p in live.values() if p.backend is not None]
            assert running == ([book.runs[1]] if book.runs else [])
            assert {tenant: chosen.shares.of(tenant) for tenant in book.c} == pytest.approx(book.c)

    asyncio.run(run())


A100 = EngineSettings(latency_model("llama-3-8b", "a100")[0], 4000, async_scheduling=True)


def answered_s(flood: int, whose: str, prompt: int = 100) -> float:
    """Seconds to the whole answers of two requests of b, behind so many that came five seconds before; in the mean.

    The engine is simulated, and has 16 places; the outputs are 50 to 350 tokens, those of b 200.
    """

    async def run() -> float:
        chosen, engine = dispatcher(["http://a"], settings=A100, in_flight=16), Engine(A100)
        draw = np.random.Generator(np.random.PCG64(1))
        coming = [(0.0, whose, int(output)) for output in draw.integers(50, 350, flood)] + [(5.0, "b", 200)] * 2
        waits: list[Placement] = []
        mine: list[Placement] = []
        there: dict[int, Placement] = {}
        now, ends = 0.0, []
        while len(ends) < 2:
            now = chosen.now = now + 0.01
            engine.run(now)
            for row in engine.take_ended():
                placed = there.pop(row)
                chosen.end(placed, int(placed.predicted))
                if placed in mine:
                    ends.append(engine.times[row, c.FINISH] - 5.0)
            while coming and coming[0][0] <= now:
                came, tenant, output = coming.pop(0)
                waits.append(come(chosen, tenant, prompt, output))
                chosen.offer(waits[-1])
                mine += waits[-1:] if came else []
            for placed in [placed for placed in waits if placed.backend is not None]:
                waits.remove(placed)
                there[engine.add(now, placed.prompt, int(placed.predicted))] = placed
        return sum(ends) / 2

    return asyncio.run(run())


def test_two_behind_a_hundred_of_another_wait_as_if_alone() -> None:
    """Within a fifth for questions of 100 tokens; if all were of one tenant they would wait for the whole hundred."""
    alone = answered_s(0, "a")
    assert alone <= answered_s(100, "a") <= 1.2 * alone
    assert answered_s(100, "b") > 3 * alone


async def test_the_least_urgent_is_shed_with_when_to_come_again() -> None:
    chosen = dispatcher(["http://a"], in_flight=1, held=3)
    assert chosen.offer(come(chosen, "a", 5))
    low = [come(chosen, "low", 5, level=9) for _ in range(2)]
    for placed in [come(chosen, "a", 5), *low]:
        assert not chosen.offer(placed)
    own = come(chosen, "low", 5, level=9)
    with pytest.raises(RefusedError) as refused:  # nobody goes later than this one
        chosen.offer(own)
    chosen.end(own, None)
    assert refused.value.status == 429 and refused.value.retry_after >= 1
    latest = low[1].placed
    assert latest is not None
    assert not chosen.offer(come(chosen, "b", 5)) and chosen.waiting == 3
    with pytest.raises(RefusedError) as shed:
        await latest
    assert shed.value.status == 429 and shed.value.retry_after >= 1
    chosen.end(low[1], None)
    assert len(chosen.free) + 4 == chosen.limits.at_once and chosen.shares.waits == {"a": 1, "low": 1, "b": 1}


async def test_an_engine_gets_no_more_than_its_model_says_it_bears() -> None:
    chosen = dispatcher(["http://a"], in_flight=1000, first_token_s=0.2)
    most = sum(chosen.offer(come(chosen, "a", 100)) for _ in range(60))
    step = SETTINGS.latency.slope * 100 * most / 1e3
    assert 2 <= most < 60 and step <= 0.2
    full = dispatcher(["http://a"], in_flight=1000, first_token_s=1e6)
    most = sum(full.offer(come(full, "a", 100)) for _ in range(60))
    assert most == SETTINGS.tokens // 100


def test_a_budget_of_tokens_is_spent_by_what_was_had() -> None:
    tenant = Tenant("a", tokens_per_minute=600.0, budget=600.0)
    tenant.take(0.0)
    tenant.spend(650)
    with pytest.raises(RefusedError) as refused:
        tenant.take(1.0)
    assert refused.value.status == 429 and refused.value.retry_after == 5
    tenant.take(7.0)
