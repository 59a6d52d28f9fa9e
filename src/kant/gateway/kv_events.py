"""Follows engines' prefix caches by the KV events of vLLM and SGLang, over ZMQ.

Both engines publish batches of msgpack arrays (vllm/distributed/kv_events.py, 0.32; SGLang has the same): which blocks
of tokens were stored after which, and which were removed. Events contain the tokens, so the blocks can be hashed in the
router's own way, and the index matches the engine. The router does not know the tokens of text prompts, nor those for
adapters, which events name by an internal number. For these the index relies on the requests that were sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from kant.live.logs import log_event
from kant.serving.prefix_index import BLOCK_TOKENS, PrefixIndex, chain

if TYPE_CHECKING:
    from kant.gateway.backend import Backend

log = logging.getLogger("kant.gateway")

ON_GPU = (None, "GPU")
"""The media of blocks that count as cached. Blocks in host memory do not count."""

Name = int | bytes
"""The name that an engine gives to a block."""


class BlockStored(msgspec.Struct, array_like=True, tag=True):
    """Consecutive blocks of tokens after a known block."""

    block_hashes: list[Name]
    parent_block_hash: Name | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True):
    """Blocks that were removed."""

    block_hashes: list[Name]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True):
    """All blocks were removed."""


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_BATCH = msgspec.msgpack.Decoder(_Batch)


class EngineEvents:
    """Applies the events of one engine to the index. `missed` counts lost batches.

    `most` returns how many blocks of the index fit in the KV cache of the engine.
    """

    def __init__(self, index: PrefixIndex, number: int, most: Callable[[], int]) -> None:
        self.index, self.number, self.most, self.missed = index, number, most, 0
        self._next: int | None = None
        self._ends: dict[Name, tuple[int | None, tuple[int, ...], int | None]] = {}
        """Where each block of the engine ends: the block of the index before it, the tokens after that, and the block
        of the index that it completes."""

    def take(self, number: int, payload: bytes) -> None:
        """Process a batch with its number; after a gap, all known blocks are forgotten. An invalid batch is ignored."""
        if self._next is not None and number != self._next:
            self.missed += max(1, number - self._next)
            self._clear()
        self._next = number + 1
        try:
            batch = _BATCH.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        for event in batch.events:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved():
                    self._removed(event)
                case AllBlocksCleared():
                    self._clear()

    def _clear(self) -> None:
        self._ends.clear()
        self.index.forget(self.number)

    def _stored(self, event: BlockStored) -> None:
        size = event.block_size
        if event.lora_id is not None or event.medium not in ON_GPU or size < 1:
            return
        parent = event.parent_block_hash
        if parent is None:
            before: int | None = None
            rest: tuple[int, ...] = ()
        elif parent in self._ends:
            before, rest, _ = self._ends[parent]
        else:
            return  # the beginning of its prompt was stored before we listened
        found: list[int] = []
        for k, name in enumerate(event.block_hashes):
            rest += tuple(event.token_ids[k * size : (k + 1) * size])
            full = chain(rest, "", BLOCK_TOKENS, before)
            if full:
                before, rest = full[-1], rest[len(full) * BLOCK_TOKENS :]
                found += full
            self._ends[name] = (before, rest, full[-1] if full else None)
        self.index.add(self.number, found, max(self.most(), 1))

    def _removed(self, event: BlockRemoved) -> None:
        if event.medium not in ON_GPU:
            return
        gone = [self._ends.pop(name, (None, (), None))[2] for name in event.block_hashes]
        self.index.remove(self.number, [block for block in gone if block is not None])


async def follow(backend: Backend, index: PrefixIndex, port: int) -> None:
    """Follow the events that a backend publishes at a port of its host, forever."""
    import zmq
    import zmq.asyncio

    where = f"tcp://{urlsplit(backend.url).hostname}:{port}"
    events = EngineEvents(index, backend.number, lambda: backend.site.settings.tokens // BLOCK_TOKENS)
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.subscribe(b"")
        socket.connect(where)
        log_event(log, "follows KV events", backend=backend.number, at=where)
        while True:
            parts: list[Any] = await socket.recv_multipart()
            if len(parts) == 3:
                before = events.missed
                events.take(int.from_bytes(parts[1], "big"), parts[2])
                if events.missed > before:
                    log_event(log, "missed KV events", logging.WARNING, backend=backend.number, batches=events.missed)
            await asyncio.sleep(0)
