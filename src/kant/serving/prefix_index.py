"""An index of which engine has computed which prompts, as chains of hashed blocks, with a limit for each engine.

A block's hash identifies its tokens and all tokens before it, as in vLLM's prefix cache
(vllm/v1/core/kv_cache_utils.py, 0.32). So the blocks of two prompts agree exactly as far as the prompts do, and one
pass over a prompt's blocks finds how much of it each engine has. An engine's least recently used blocks are forgotten
first, and of a prompt the end before the start, as vLLM frees blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

BLOCK_TOKENS = 64
"""Tokens in a block of the index: a multiple of an engine's own block size, which is mostly 16."""

BYTES = 256
"""Bytes of text in a block, at four bytes a token."""


def block_tokens(block_size: int) -> int:
    """Return the number of tokens in a block of the index, for an engine's `block_size`: a multiple of that."""
    return block_size * max(1, BLOCK_TOKENS // block_size)


def chain(content: Sequence[int] | str, root: str, size: int, after: int | None = None) -> list[int]:
    """Return the chained hash of each block of `size` tokens (or characters). Different roots share no hashes.

    With `after`, the content follows the block that has this hash. Python's keyed hash is used, so that no client can
    craft two prompts with equal hashes.
    """
    found: list[int] = []
    before = hash(root) if after is None else after
    pieces = [content[end - size : end] for end in range(size, len(content) + 1, size)]
    for piece in pieces if isinstance(content, str) else map(tuple, pieces):
        before = hash((before, piece))
        found.append(before)
    return found


class PrefixIndex:
    """The blocks that each engine is assumed to have, by hash.

    Engines are identified by number. `evicted` counts blocks that were forgotten for lack of room.
    """

    def __init__(self) -> None:
        self.evicted = 0
        self._holders: dict[int, int] = {}
        """For each block, the engines that have it, as a bit mask."""
        self._place: dict[int, int] = {}
        self._number: dict[int, int] = {}
        """The number of an engine, by its bit."""
        self._blocks: dict[int, OrderedDict[int, None]] = {}
        """For each engine its blocks, the least recently used first."""

    def match(self, blocks: Sequence[int]) -> dict[int, int]:
        """Return how many leading blocks of a prompt each engine has. Engines that have none are left out."""
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
        """Record that these engines have `depth` blocks."""
        while engines:
            bit = engines & -engines
            found[self._number[bit]] = depth
            engines ^= bit

    def depth(self, number: int, blocks: Iterable[int]) -> int:
        """Return how many leading blocks of a prompt one engine has."""
        own = self._blocks.get(number, ())
        found = 0
        for block in blocks:
            if block not in own:
                break
            found += 1
        return found

    def add(self, number: int, blocks: Sequence[int], most: int) -> None:
        """Record that an engine now has these leading blocks of a prompt, and at most `most` blocks in total."""
        bit = self._bit(number)
        own, holders = self._blocks[number], self._holders
        for block in reversed(blocks[:most]):  # the first block is touched last, so it is forgotten last
            if block in own:
                own.move_to_end(block)
            else:
                own[block] = None
                holders[block] = holders.get(block, 0) | bit
        while len(own) > most:
            self._drop(own.popitem(last=False)[0], bit)
            self.evicted += 1

    def remove(self, number: int, blocks: Iterable[int]) -> None:
        """Remove blocks from an engine."""
        own = self._blocks.get(number)
        if own is None:
            return
        for block in blocks:
            if own.pop(block, 0) is None:
                self._drop(block, self._place[number])

    def forget(self, number: int) -> None:
        """Remove all blocks of an engine that has restarted or is gone."""
        bit = self._place.pop(number, 0)
        if bit:
            for block in self._blocks.pop(number):
                self._drop(block, bit)
            del self._number[bit]

    def size(self, number: int) -> int:
        """Return how many blocks an engine is assumed to have."""
        return len(self._blocks.get(number, ()))

    def _bit(self, number: int) -> int:
        """Return the bit of an engine; a new engine gets the first free one."""
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
