"""SGLang's radix cache (srt/mem_cache/radix_cache.py, 0.5.23, Apache-2.0): texts as a tree, one token a page.

A node has a piece of text, and holds its KV. What a request uses is locked, from its node to the root. Of leaves that
are not locked the least recently used is evicted whole. A text that ends or differs within a node splits it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise


class Node:
    """A piece of text that follows its parent's. `used` is the number of the last look-up that used the node."""

    __slots__ = ("children", "locks", "parent", "text", "used")

    def __init__(self, text: Sequence[int], parent: Node | None, used: int, locks: int = 0) -> None:
        self.text, self.parent, self.used, self.locks = text, parent, used, locks
        self.children: dict[int, Node] = {}

    def __lt__(self, other: Node) -> bool:
        return self.used < other.used


class Radix:
    """A tree of texts; `evictable` is the number of tokens that could be evicted."""

    def __init__(self) -> None:
        self.looks = 0
        self.root = Node((), None, 0, 1)
        self.evictable = 0
        self.leaves: set[Node] = set()

    def _split(self, node: Node, length: int) -> Node:
        parent = node.parent
        assert parent is not None
        above = Node(node.text[:length], parent, node.used, node.locks)
        above.children[node.text[length]] = node
        parent.children[node.text[0]] = above
        node.parent, node.text = above, node.text[length:]
        return above

    def find(self, text: Sequence[int]) -> tuple[int, Node]:
        """Return how many leading tokens of a text are in the tree, and the node in which they end."""
        self.looks += 1
        node, at = self.root, 0
        while at < len(text) and (child := node.children.get(text[at])) is not None:
            child.used = self.looks
            length = common(child.text, text, at)
            at += length
            if length < len(child.text):
                return at, self._split(child, length)
            node = child
        return at, node

    def insert(self, text: Sequence[int]) -> int:
        """Add a text. Returns how many of its tokens were in the tree already."""
        had, node = self.find(text)
        if had < len(text):
            self.looks += 1
            child = Node(text[had:], node, self.looks)
            node.children[text[had]] = child
            self.evictable += len(child.text)
            self._judge(node)
            self._judge(child)
        return had

    def _judge(self, node: Node) -> None:
        if node.locks == 0 and not node.children:
            self.leaves.add(node)
        else:
            self.leaves.discard(node)

    def lock(self, node: Node, by: int = 1) -> None:
        """Lock a node and all nodes above it; with -1 unlock them."""
        at: Node | None = node
        while at is not None and at is not self.root:
            if at.locks == (0 if by > 0 else 1):
                self.evictable -= by * len(at.text)
            at.locks += by
            self._judge(at)
            at = at.parent

    def by_weight(self, nodes: Sequence[Node]) -> list[int]:
        """Return the indices of nodes in depth-first order; branches with the most of these nodes come first."""
        weight: Counter[Node] = Counter()
        for node in nodes:
            weight.update(above(node))

        def way(place: int) -> list[tuple[int, int]]:
            path = list(above(nodes[place]))[::-1]
            turns = [list(one.children.values()).index(next) for one, next in pairwise(path)]
            return [*((-weight[node], turn) for node, turn in zip(path[1:], turns, strict=True)), (1, 0)]

        return sorted(range(len(nodes)), key=way)

    def evict(self, tokens: int) -> int:
        """Evict at least `tokens` tokens, or all that are not locked. Returns how many were evicted."""
        heap = list(self.leaves)
        heapq.heapify(heap)
        found = 0
        while found < tokens and heap:
            node = heapq.heappop(heap)
            parent = node.parent
            assert parent is not None
            found += len(node.text)
            self.evictable -= len(node.text)
            self.leaves.discard(node)
            del parent.children[node.text[0]]
            self._judge(parent)
            if parent in self.leaves:
                heapq.heappush(heap, parent)
        return found


def above(node: Node | None) -> Iterator[Node]:
    """Yield a node and all above it."""
    while node is not None:
        yield node
        node = node.parent


def common(piece: Sequence[int], text: Sequence[int], at: int) -> int:
    """Return how many tokens a piece of text has in common with another text from `at` on."""
    most = min(len(piece), len(text) - at)
    if piece[:most] == text[at : at + most]:
        return most
    low, high = 0, most  # equal up to `low`, different somewhere before `high`
    while high - low > 1:
        half = (low + high) // 2
        low, high = (half, high) if piece[low:half] == text[at + low : at + half] else (low, half)
    return low
