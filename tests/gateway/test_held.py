"""Requests that wait: in order, whoever leaves, and at the same cost however many they are."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.rig import dispatcher
from tests.gateway.test_dispatch import come

from kant.gateway.backend import Placement
from kant.gateway.held import Held, HeldBySize, HeldInTurns
from kant.gateway.shares import Shares
from kant.serving.routers import router_named
from kant.serving.routing import Overtaking, Router


def naive_place(waits: list[Placement], router: Router, room: set[int]) -> tuple[list[int], list[int]]:
    """Who is asked about and who gets a place, by the definition: in order, each against all that must wait."""
    overtaking, asked, placed = Overtaking(router), [], []
    for each in sorted(waits):
        if overtaking.may_ask(each.size):
            asked.append(each.order)
            if each.order in room:
                placed.append(each.order)
                continue
        overtaking.held(each.size)
        if not router.overtaken:
            break
    return asked, placed


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(1, 9), st.sampled_from("pppdxa"), st.integers(0, 30)), max_size=60
    ),
    st.sampled_from(["fcfs", "overtaking"]),
)
@settings(max_examples=examples(200))
def test_it_asks_in_the_order_that_is_defined(events: list[tuple[int, int, str, int]], kind: str) -> None:
    router = router_named("intelligent" if kind == "overtaking" else "least-tokens")
    held: Held = HeldBySize() if kind == "overtaking" else HeldInTurns(Shares())
    chosen = dispatcher(["http://a"])
    waits: list[Placement] = []
    for priority, prompt, what, k in events:
        if what == "p":
            placed = come(chosen, prompt)
            placed.priority, placed.due = float(priority), float(k % 3)
            overtaking = Overtaking(router)
            for other in sorted(waits):
                if other < placed:
                    overtaking.held(other.size)
            assert held.may_ask(placed) == overtaking.may_ask(placed.size)
            held.push(placed)
            waits.append(placed)
        elif what == "d" and waits:
            placed = waits.pop(k % len(waits))
            held.discard(placed)
            if k % 2:  # it comes back, as one that was refused
                held.push(placed)
                waits.append(placed)
        elif what in "xa":
            room = {w.order for w in waits if w.order * 7 % 31 < k}
            asked: list[int] = []

            def ask(placed: Placement, asked: list[int] = asked, room: set[int] = room) -> bool:
                asked.append(placed.order)
                return placed.order in room

            expected, leave = naive_place(waits, router, room)
            held.place(ask)
            assert asked == expected
            waits = [w for w in waits if w.order not in leave]
        assert sorted(w.order for w in held) == sorted(w.order for w in waits) and len(held) == len(waits)


def calls(what: Any) -> int:
    """Calls of functions, of Python and of C, that something makes."""
    count = 0

    def note(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("router", ["least-tokens", "intelligent"])  # in turns, and by size
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_one_more_costs_the_same_however_many_wait(router: str, policy: str) -> None:
    """To come, to leave again, and to go when there is room: each makes as many calls with 2,000 held as with 100."""

    async def cost(count: int) -> tuple[int, int, int]:
        chosen = dispatcher(["http://a", "http://b"], policy, router, in_flight=1)
        first, second = come(chosen, 5), come(chosen, 5)
        assert chosen.offer(first) and chosen.offer(second)
        waits = [come(chosen, 5 + k % 50, priority=k * 7919 % 1000) for k in range(count - 2)]
        for placed in waits:
            assert not chosen.offer(placed)
        last, gone = come(chosen, 30, priority=500), come(chosen, 30, priority=500)
        arrives = max(calls(lambda: chosen.offer(last)), calls(lambda: chosen.offer(gone)))
        leaves = max(calls(partial(chosen.end, placed, None)) for placed in (gone, *waits[10:40]))
        goes = max(calls(partial(chosen.end, placed, 5)) for placed in (first, second))
        assert chosen.waiting == len(chosen.held[""])
        return arrives, leaves, goes

    few, many = asyncio.run(cost(100)), asyncio.run(cost(2_000))
    assert all(b <= a + 12 for a, b in zip(few, many, strict=True)), (few, many)


async def test_whoever_is_cancelled_while_room_comes_takes_none() -> None:
    chosen = dispatcher(["http://a"], in_flight=1)
    first = come(chosen, 5)
    assert chosen.offer(first)
    waits = [come(chosen, 5) for _ in range(3)]
    assert not any(chosen.offer(placed) for placed in waits)
    assert waits[0].placed is not None
    waits[0].placed.cancel()  # its time is over, and it has not yet said so
    chosen.end(first, 5)
    assert waits[0].backend is None and waits[1].backend is not None
    chosen.end(waits[0], None)
    assert chosen.waiting == 1 and len(chosen.free) == chosen.limits.at_once - 2
    chosen.end(waits[1], 5)
    assert waits[2].backend is not None and not chosen.held and chosen.waiting == 0


def test_those_who_leave_do_not_stay_in_the_memory() -> None:
    held = HeldInTurns(Shares())
    chosen = dispatcher(["http://a"])
    for _ in range(5000):
        placed = come(chosen, 5)
        held.push(placed)
        held.discard(placed)
        chosen.free.append(placed.row)
    assert len(held.turns) + sum(map(len, held.queues.values())) <= 300
