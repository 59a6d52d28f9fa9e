"""The placement kernel: follow what changed, ask the best node, take it, until the whole group has its place.

For each demand the engine keeps what every node is worth to it (score and capacity) and a tournament tree over the
nodes in tie order, whose root is the best node. A call brings that up to date from the log of changed nodes, so its
cost follows what changed and not the size of the cluster; the sum of capacities answers at once how many pods
could be placed at all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from kant.cluster.columns import (
    D_CPU,
    D_GPUS,
    D_MEMORY,
    D_MILLI,
    D_SLICES,
    D_TAG,
    Table,
    note_change,
    take_piece,
)
from kant.compiled import compiled, inlined
from kant.placement.fits import capacity, mixed
from kant.placement.policy import NodePolicy, Pick, Score
from kant.placement.slices import cut

CURSOR = 0  # how far in the log of changed nodes the slot has come; -1: nowhere yet
TOTAL = 1  # pods of the demand that fit on all nodes together
SLOT_WIDTH = 2

Kernel = Callable[..., int]


@inlined
def winner(winners: Table, slot: int, child: int, size: int) -> int:
    """The best leaf below a child of the tree: itself, where the child is a leaf."""
    return int(winners[slot, child]) if child < size else child - size


@inlined
def play(winners: Table, scores: Table, slot: int, i: int, size: int) -> int:
    """The better of the two sides of tree node `i`; the left one, earlier in tie order, on ties."""
    left = winner(winners, slot, 2 * i, size)
    right = winner(winners, slot, 2 * i + 1, size)
    return left if scores[slot, left] >= scores[slot, right] else right


@inlined
def smallest_that_holds(caps: Table, slot: int, pods: int, otherwise: int) -> int:
    """The leaf with the least capacity that still takes all of `pods`."""
    best = -1
    for leaf in range(caps.shape[1]):
        if caps[slot, leaf] >= pods and (best < 0 or caps[slot, leaf] < caps[slot, best]):
            best = leaf
    return best if best >= 0 else otherwise


def make_kernel(score: Score, pick: Pick, fresh: bool) -> Kernel:
    """The placement kernel for one policy's functions."""

    def place_group(
        table: Table, log: Table, demands: Table, d: int, mix: Table, params: Table, order: Table, rank: Table,
        scores: Table, caps: Table, winners: Table, slots: Table, slot: int, count: int,
        by_node: bool, seed: int, salt: int, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Place `count` pods of demand `d`; append to `pieces` from row `used` on, and take them from `table`.

        Returns the number of rows used, or -1 - f where only f pods fit (then nothing is taken).
        """
        size = scores.shape[1]
        ring = log.shape[0] - 1
        placed, begin = 0, used
        while True:
            cursor = slots[slot, CURSOR]
            draw = mixed(mixed(seed, salt), placed) if fresh else 0
            rebuild = fresh or cursor < 0 or log[0] - cursor > ring
            for k in range(order.shape[0] if rebuild else log[0] - cursor):
                node = k if rebuild else log[1 + (cursor + k) % ring]
                leaf = rank[node]
                fits = capacity(table, node, demands, d)
                slots[slot, TOTAL] += fits - caps[slot, leaf]
                caps[slot, leaf] = fits
                worth = -1
                if fits > 0:
                    worth = score(table, node, demands, d, mix, params, draw)
                scores[slot, leaf] = worth
                if not rebuild:
                    i = (leaf + size) >> 1
                    while i >= 1:
                        best = play(winners, scores, slot, i, size)
                        if winners[slot, i] == best and best != leaf:
                            break
                        winners[slot, i] = best
                        i >>= 1
            if rebuild:
                for i in range(size - 1, 0, -1):
                    winners[slot, i] = play(winners, scores, slot, i, size)
            slots[slot, CURSOR] = log[0]

            if placed == 0 and slots[slot, TOTAL] < count:
                return int(-1 - slots[slot, TOTAL])
            if placed == count:
                return used

            leaf = winners[slot, 1] if size > 1 else 0
            batch = 1
            if by_node:
                if caps[slot, leaf] > count - placed:
                    leaf = smallest_that_holds(caps, slot, count - placed, leaf)
                batch = min(caps[slot, leaf], count - placed)
            node = order[leaf]
            for _ in range(batch):
                piece = pieces[used]
                piece[0] = node
                piece[1] = 1
                piece[2] = pick(table, node, demands, d, mix, params, draw)
                piece[3] = demands[d, D_MILLI] if demands[d, D_GPUS] > 0 else 0
                piece[4] = demands[d, D_CPU]
                piece[5] = demands[d, D_MEMORY]
                piece[6] = demands[d, D_TAG]
                if demands[d, D_SLICES] > 0:
                    cut(table, node, demands, d, piece)
                take_piece(table, piece)
                placed += 1
                last = pieces[used - 1]
                if used > begin and last[0] == node and last[6] == piece[6] and last[6] != 0:
                    last[1] += 1
                    last[2] |= piece[2]
                    last[4] += piece[4]
                    last[5] += piece[5]
                else:
                    used += 1
            note_change(log, node)

    return compiled(place_group)


@cache
def kernel_of(policy: type[NodePolicy]) -> Kernel:
    """The kernel of a policy class, made once."""
    return make_kernel(policy.score, policy.pick, policy.fresh)
