"""Which engine has computed which prompts: chains of hashed blocks, bounded for each engine.

A block's hash names its tokens and all tokens before it, as in vLLM's prefix cache
(vllm/v1/core/kv_cache_utils.py, 0.32). So the blocks of two prompts agree exactly as far as the prompts do, and one
walk along a prompt's blocks finds how much of it every engine has. What an engine has not used for longest is forgotten
first, the end of a prompt before its beginning, as vLLM frees them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_TOKENS = 64
"""Tokens of a block here; an engine's own blocks, mostly of 16, divide it."""

BYTES = 256
"""Of text in a block, at four bytes a token."""


def block_tokens(block_size: int) -> int:
    """Tokens of an index's block where an engine's block has `block_size`: a multiple of it."""
    return block_size * max(1, BLOCK_TOKENS // block_size)


def chain(content: Sequence[int] | str, root: str, size: int, after: int | None = None) -> list[int]:
    """The hash of each `size` tokens (of a text: characters); contents of different roots share nothing.

    With `after` the content follows the block of that hash.

    Python's keyed hash is used, so that no client can craft two prompts that are taken for one.
    """
    found: list[int] = []
    before = hash(root) if after is None else after
    for end in range(size, len(content) + 1, size):
        piece = content[end - size : end]
        before = hash((before, piece if isinstance(piece, str) else tuple(piece)))
        found.append(before)
    return found


class PrefixIndex:
    """The blocks that each of some engines is thought to have, by hash.

    Engines are known by number. `evicted` counts blocks that were forgotten to make room.
    """

    def __init__(self) -> None:
        self.evicted = 0
        self._holders: dict[int, int] = {}
        """Of each block, the engines that have it, as bits of their places."""
        self._place: dict[int, int] = {}
        self._number: dict[int, int] = {}
        """By its bit, the number of an engine."""
        self._blocks: dict[int, OrderedDict[int, None]] = {}
        """Of each engine its blocks, the least recently used first."""

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """How many leading blocks of a prompt each engine has; only engines that have any."""
        found: dict[int, int] = {}
        holders = self._holders
        have, depth = -1, 0
        for block in blocks:
            now = holders.get(block, 0) & have
            if now != have:
                if depth:
                    self._note(found, have & ~now, depth)
                if not now:
                    return found
                have = now
            depth += 1
        if depth:
            self._note(found, have, depth)
        return found

    def _note(self, found: dict[int, int], engines: int, depth: int) -> None:
        """These engines have so many blocks."""
        while engines:
            bit = engines & -engines
            found[self._number[bit]] = depth
            engines ^= bit

    def add(self, number: int, blocks: Sequence[int], most: int) -> None:
        """An engine has these leading blocks of a prompt now, and `most` blocks at most."""
        bit = self._bit(number)
        own, holders = self._blocks[number], self._holders
        for block in reversed(blocks[:most]):  # the first is used last, so it is forgotten last
            if block in own:
                own.move_to_end(block)
            else:
                own[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(own) > most:
            self._drop(own.popitem(last=False)[0], bit)
            self.evicted += 1

    def remove(self, number: int, blocks: Iterable[int]) -> None:
        """An engine has these blocks no more."""
        own = self._blocks.get(number)
        if own is None:
            return
        for block in blocks:
            if own.pop(block, 0) is None:
                self._drop(block, self._place[number])

    def forget(self, number: int) -> None:
        """An engine has nothing any more: it has restarted, or is gone."""
        bit = self._place.pop(number, 0)
        if bit:
            for block in self._blocks.pop(number):
                self._drop(block, bit)
            del self._number[bit]

    def size(self, number: int) -> int:
        """How many blocks an engine is thought to have."""
        return len(self._blocks.get(number, ()))

    def _bit(self, number: int) -> int:
        """The bit of an engine; the first that is free for one that is new."""
        bit = self._place.get(number)
        if bit is None:
            bit = 1
            while bit in self._number:
                bit <<= 1
            self._place[number], self._number[bit], self._blocks[number] = bit, number, OrderedDict()
        return bit

    def _drop(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
