"""KV events as vLLM and SGLang publish them: the index has what the engine has."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.rig import SETTINGS
from tests.patience import PATIENCE_S

from kant.gateway.backend import Backend
from kant.gateway.kv_events import EngineEvents, follow
from kant.serving.prefix_index import BLOCK_TOKENS, PrefixIndex, chain
from kant.serving.site import ObservedSite

SIZE = 16


class Cache:
    """An engine's cache of whole beginnings of prompts, by block of 16 tokens; it says what it stores and frees."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.had: OrderedDict[tuple[int, ...], int] = OrderedDict()
        self.named = 0

    def compute(self, tokens: tuple[int, ...]) -> list[list[object]]:
        """The events of computing a prompt."""
        events: list[list[object]] = []
        starts = [tokens[:end] for end in range(SIZE, len(tokens) + 1, SIZE)][: self.room]
        new = [start for start in starts if start not in self.had]
        if new:
            parent = self.had.get(new[0][:-SIZE])
            for start in new:
                self.had[start] = self.named = self.named + 1
            said = [token for start in new for token in start[-SIZE:]]
            events.append(["BlockStored", [self.had[start] for start in new], parent, said, SIZE, None, "GPU", None])
        for start in reversed(starts):
            self.had.move_to_end(start)
        freed = []
        while len(self.had) > self.room:
            freed.append(self.had.popitem(last=False)[1])
        if freed:
            events.append(["BlockRemoved", freed, "GPU"])
        return events

    def match(self, tokens: tuple[int, ...]) -> int:
        """How many blocks of the index it has of a prompt."""
        had = 0
        while (had + 1) * BLOCK_TOKENS <= len(tokens) and tokens[: (had + 1) * BLOCK_TOKENS] in self.had:
            had += 1
        return had


def payload(*events: list[object]) -> bytes:
    return msgspec.msgpack.encode([0.5, list(events), None])


def known(index: PrefixIndex, tokens: tuple[int, ...]) -> int:
    return index.match(chain(tokens, "", BLOCK_TOKENS)).get(7, 0)


PROMPTS = st.lists(st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=6), st.integers(0, 70)), max_size=20)


@given(PROMPTS, st.integers(4, 40))
def test_the_index_has_what_the_engine_has(prompts: list[tuple[list[int], int]], room: int) -> None:
    index, cache = PrefixIndex(), Cache(room)
    events = EngineEvents(index, 7, lambda: 1000)
    texts = [tuple(t for piece in pieces for t in [piece] * 32) + (9,) * tail for pieces, tail in prompts]
    for k, tokens in enumerate(texts):
        events.take(k, payload(*cache.compute(tokens)))
        assert [known(index, text) for text in texts] == [cache.match(text) for text in texts]


def test_a_lost_batch_or_a_clear_leaves_nothing_and_odd_batches_are_passed() -> None:
    index, tokens = PrefixIndex(), tuple(range(128))
    events = EngineEvents(index, 7, lambda: 1000)
    stored = Cache(100).compute(tokens)
    events.take(0, payload(*stored))
    assert known(index, tokens) == 2
    events.take(1, b"\xff no batch")
    events.take(2, payload(["BlockStored", [99], 98, [1] * 16, 16, None], ["BlockStored", [97], None, [1] * 64, 64, 3]))
    assert known(index, tokens) == 2 and index.size(7) == 2  # of an unknown parent, and of an adapter
    events.take(3, payload(["AllBlocksCleared"]))
    assert index.size(7) == 0
    events.take(4, payload(*stored))
    events.take(6, payload(["BlockRemoved", [1]]))
    assert events.missed == 1 and index.size(7) == 0


@pytest.mark.service
async def test_events_are_followed_over_zmq() -> None:
    index, tokens = PrefixIndex(), tuple(range(128))
    with zmq.asyncio.Context() as context, context.socket(zmq.PUB) as engine:
        engine.setsockopt(zmq.LINGER, 0)
        port = engine.bind_to_random_port("tcp://127.0.0.1")
        backend = Backend(7, "http://127.0.0.1:8000", ObservedSite(SETTINGS, 7))
        task = asyncio.create_task(follow(backend, index, port))
        number = 0
        async with asyncio.timeout(PATIENCE_S):
            while known(index, tokens) == 0:  # until it has subscribed
                await engine.send_multipart(
                    [b"kv-events", number.to_bytes(8, "big"), payload(*Cache(9).compute(tokens))]
                )
                number += 1
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
