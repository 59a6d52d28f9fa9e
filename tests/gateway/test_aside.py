"""Decisions that take milliseconds are made by another process: the same ones, and nobody waits but who asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples
from tests.gateway.rig import SETTINGS, dispatcher
from tests.gateway.test_dispatch import come
from tests.patience import PATIENCE_S

from kant.gateway.aside import Aside
from kant.model.errors import InputError
from kant.service.router_process import RouterProcess
from kant.serving.aside import answer, answered, question, understood
from kant.serving.routers.block import Block
from kant.serving.routing import Incoming, decide
from kant.serving.site import LoadTable, ObservedSite


class Here:
    """Answers in this process, once it may; None: it never does."""

    def __init__(self, may: asyncio.Event | None) -> None:
        self.may, self.asked = may, 0

    async def ask(self, question: bytes) -> bytes:
        self.asked += 1
        if self.may is None:
            raise InputError("the process", "an answer")
        await self.may.wait()
        return answer(question)

    async def close(self) -> None:
        self.asked = -1


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(1, 60), st.integers(0, 40), st.booleans()),
    max_size=25,
)
"""Requests: engine, prompt, predicted output, tokens that have come, and whether it has ended."""


EACH = [(k, 100 + 10 * k, 30, 5 * j, j == 0) for k in range(3) for j in range(4)]
"""Requests are in other rows than in which they came, as the first of each engine has ended."""


@example(EACH, [2, 0, 1], 40, 3)
@given(EVENTS, st.lists(st.integers(0, 2), unique=True, min_size=2), st.integers(1, 500), st.integers(0, 9))
@settings(max_examples=examples(40))
def test_a_question_has_all_that_a_decision_needs(
    events: list[tuple[int, int, int, int, bool]], open_now: list[int], prompt: int, others: int
) -> None:
    loads = LoadTable(4)
    sites = [ObservedSite(SETTINGS, 10 + k, loads) for k in range(3)]
    sites[1].resize(replace(SETTINGS, num_blocks=40))
    sites[2].beside(others, 50 * others)
    for key, (k, length, predicted, done, _) in enumerate(events):
        sites[k].send(key, length, float(predicted))
        sites[k].said(key, done)
    for key, (k, _, _, _, ended) in enumerate(events):
        if ended:
            sites[k].end(key)
    chosen, request = [sites[k] for k in open_now], Incoming(3.0, prompt, 20.0, -1)
    draw = np.random.Generator(np.random.PCG64(prompt))
    asked = question(Block(), request, chosen, loads, draw, SETTINGS)
    for there, here in zip(understood(asked)[2], chosen, strict=True):
        assert (there.number, there.settings, there.tokens()) == (here.number, here.settings, here.tokens())
        assert (there.requests, there.other_requests) == (here.requests, here.other_requests)
        assert [column.tolist() for column in there.loads()] == [column.tolist() for column in here.loads()]
    k, after = answered(answer(asked))
    assert k == decide(Block(), request, chosen, draw)
    assert after.bit_generator.state == draw.bit_generator.state


@pytest.mark.parametrize("answers", [True, False])
async def test_nothing_waits_for_a_decision_but_the_requests_behind_it(answers: bool) -> None:
    chosen, may = dispatcher([f"http://{name}" for name in "abcd"], router="block"), asyncio.Event()
    here, draws = Here(may if answers else None), chosen.draw.bit_generator.state
    chosen.aside = Aside(here)
    chosen.backends[0].draining = True
    requests = [come(chosen, prompt) for prompt in (100, 100, 300)]
    assert [chosen.offer(placed) for placed in requests] == [False] * 3 and chosen.waiting == 3
    for _ in range(3):
        await asyncio.sleep(0)
    assert answers == (chosen.waiting == 3)
    chosen.end(requests.pop(0), None)  # its client has gone, while it is decided about
    chosen.backends[3].draining = True
    may.set()
    async with asyncio.timeout(PATIENCE_S):
        while any(placed.backend is None for placed in requests):
            await asyncio.sleep(0)
    if answers:  # among what is open then, and the second sees where the first went
        assert {placed.backend.number for placed in requests if placed.backend} == {1, 2}
    assert chosen.draw.bit_generator.state != draws
    assert chosen.waiting == 0 and not chosen.held and len(chosen.free) == chosen.limits.at_once - 2
    assert all(placed.foreseen is None for placed in requests)
    await chosen.aside.close()
    assert here.asked == -1


def test_who_decides_about_each_request_needs_room_for_one_that_waits() -> None:
    words = ("serve", "route", "--backends", "http://a:1", "--router", "block", "--held", "0")
    assert "--held: expected a whole number from 1" in kant(*words).refusal()


async def test_the_process_decides_until_it_is_closed() -> None:
    chosen, process = dispatcher(["http://a", "http://b"], router="block"), RouterProcess()
    chosen.aside = Aside(process)
    await chosen.aside.open(chosen)
    first, second = come(chosen, 100), come(chosen, 100)
    for placed in (first, second):
        assert not chosen.offer(placed) and placed.placed is not None
        async with asyncio.timeout(PATIENCE_S):
            await placed.placed
    numbers = {placed.backend.number for placed in (first, second) if placed.backend}
    assert numbers == {0, 1}  # the second sees where the first went
    assert (child := process._child) is not None and child.returncode is None
    await chosen.aside.close()
    assert child.returncode is not None
