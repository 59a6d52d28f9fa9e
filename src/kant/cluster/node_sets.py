"""Node sets: named sets of nodes, such as all nodes that the selector of some pods admits.

A demand row ends with the bits of its set, `NODES_IN_WORD` per column, so compiled functions need no other table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import D_LIMITED, D_POOLS, NODES_IN_WORD, Table
from kant.model.errors import StateError


def admitting(demand: Table, pool_of: Table) -> NDArray[np.bool_]:
    """Return a mask of the nodes to which a demand may go, by their pools and by its node set.

    `demand` is a row of the demand table, and `pool_of` has the pool of each node.
    """
    pools = int(demand[D_POOLS])
    if not demand[D_LIMITED]:
        mask: NDArray[np.bool_] = (pools >> pool_of) & 1 == 1
        return mask
    mask = _members(demand[demand[D_LIMITED] :], len(pool_of))
    rows = mask.nonzero()[0]  # few rows: to read `pool_of` for all nodes takes longer
    mask[rows] = (pools >> pool_of[rows]) & 1 == 1
    return mask


def _members(words: Table, nodes: int) -> NDArray[np.bool_]:
    """Return a mask of the nodes whose bits are set in the words of a node set."""
    packed = words.astype("<u4").view(np.uint8)  # a word has NODES_IN_WORD bits
    return np.unpackbits(packed, count=nodes, bitorder="little").view(np.bool_)


class NodeSets:
    """The node sets of one cluster. A node may be in any number of them.

    `pool_of` has the pool of each node. A set that was not named yet is empty.
    """

    def __init__(self, pool_of: list[int]) -> None:
        self.pool_of = pool_of
        self.words = -(-len(pool_of) // NODES_IN_WORD)
        self.version = 0  # counts changes of any set
        self._bits: dict[str, Table] = {}
        self._in_pool: dict[str, dict[int, int]] = {}  # how many nodes of a set each pool has

    def __contains__(self, name: object) -> bool:
        return name in self._bits

    def bits(self, name: str) -> Table:
        """Return one bit for each node of the cluster, shape (words,)."""
        bits = self._bits.get(name)
        if bits is None:
            bits = self._bits[name] = np.zeros(self.words, dtype=np.int64)
            self._in_pool[name] = {}
        return bits

    def pools(self, name: str) -> int:
        """Return the pools that have a node of the set, as bits."""
        self.bits(name)
        return sum(1 << pool for pool in self._in_pool[name])

    def nodes(self, name: str) -> list[int]:
        """Return the nodes of the set, by index."""
        found: list[int] = _members(self.bits(name), len(self.pool_of)).nonzero()[0].tolist()
        return found

    def grow(self, nodes: int) -> None:
        """Make room for `nodes` nodes."""
        self.pool_of += [0] * (nodes - len(self.pool_of))
        more = -(-nodes // NODES_IN_WORD) - self.words
        self.words += more
        for name, bits in self._bits.items():
            self._bits[name] = np.concatenate([bits, np.zeros(more, dtype=np.int64)])

    def of(self, node: int) -> list[str]:
        """Return the sets that a node is in."""
        word, bit = divmod(node, NODES_IN_WORD)
        return [name for name, bits in self._bits.items() if bits.item(word) >> bit & 1]

    def move(self, node: int, pool: int) -> list[str]:
        """Move a node to another pool. Returns its sets that now have nodes in other pools than before."""
        before, moved = self.pool_of[node], []
        self.pool_of[node] = pool
        for name in self.of(node) if pool != before else ():
            counts = self._in_pool[name]
            counts[before] -= 1
            if counts[before] == 0 or pool not in counts:
                moved.append(name)
            if not counts[before]:
                del counts[before]
            counts[pool] = counts.get(pool, 0) + 1
        return moved

    def check(self) -> None:
        """Raise StateError unless the counts of nodes by pool are right."""
        for name in self._bits:
            if self._in_pool[name] != Counter(self.pool_of[node] for node in self.nodes(name)):
                raise StateError("violated invariant: a node set counts its nodes by pool")

    def change(self, name: str, nodes: Iterable[int], inside: bool) -> list[int]:
        """Add nodes to a set, or remove them. Returns the nodes for which this is a change."""
        bits, in_pool, rows = self.bits(name), self._in_pool[name], np.array([*dict.fromkeys(nodes)], dtype=np.int64)
        rows = rows[(bits[rows // NODES_IN_WORD] >> rows % NODES_IN_WORD & 1) != inside]
        np.bitwise_xor.at(bits, rows // NODES_IN_WORD, 1 << rows % NODES_IN_WORD)
        changed: list[int] = rows.tolist()
        for pool, count in Counter(map(self.pool_of.__getitem__, changed)).items():
            in_pool[pool] = in_pool.get(pool, 0) + (count if inside else -count)
            if not in_pool[pool]:
                del in_pool[pool]
        self.version += bool(changed)
        return changed
