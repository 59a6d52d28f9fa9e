"""The placement kernels: compiled functions that choose the best node, pod by pod or node by node, for a whole group.

There are two per policy, built from its score and its choice of devices. `index_kernel` chooses among all nodes. It
keeps every node's score for a demand, the number of pods that fit there, and a tournament tree over the nodes in tie
order whose root is the best node (`capacity.NodeScores`). A call updates them from the log of changed nodes, so its
cost depends on the changes and not on the size of the cluster. `slice_kernel` chooses among given nodes, such as those
of a leaf. It scores them on each call and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table, counted_capacity, give_piece, note_change, note_counts, note_piece
from kant.compiled import compiled, inlined
from kant.placement.fits import capacity, mixed, own_capacity
from kant.placement.pieces import put
from kant.placement.policy import NodePolicy, Pick, Score

# --- the index of a demand, for each node at its position in tie order ---------------------------------------------
SCORE = 0  # -1 if no pod fits
FITTING = 1  # pods that fit
WINNER = 2  # the tournament tree: the best node below each inner node; the root is 1
INDEX_WIDTH = 3

# --- the marks of a demand, once for all nodes ----------------------------------------------------------------------
CURSOR = 0  # position of the slot in the log of changed nodes; -1: not built
TOTAL = 1  # pods that fit on all nodes together
MARKS_WIDTH = 2

# --- rows of `order` ----------------------------------------------------------------------------------------------
NODE_AT = 0  # the node at each position of tie order
PLACE_OF = 1  # the position of each node in tie order

COUNT_ALL = 1 << 60
"""More pods than fit anywhere: a kernel called with this count takes no capacity and returns how many fit."""

Kernel = Callable[..., int]
F = TypeVar("F", bound=Callable[..., object])


@inlined
def winner(index: Table, slot: int, child: int, size: int) -> int:
    """Return the best leaf below a child of the tree: the child itself if it is a leaf."""
    return int(index[slot, WINNER, child]) if child < size else child - size


@inlined
def play(index: Table, slot: int, i: int, size: int) -> int:
    """Return the better of the two sides of tree node `i`; the left one, earlier in tie order, on ties."""
    left = winner(index, slot, 2 * i, size)
    right = winner(index, slot, 2 * i + 1, size)
    return left if index[slot, SCORE, left] >= index[slot, SCORE, right] else right


@inlined
def smallest_that_holds(index: Table, slot: int, pods: int, otherwise: int) -> int:
    """Return the leaf with the least capacity that takes all of `pods`, or `otherwise`."""
    best = -1
    for leaf in range(index.shape[2]):
        fitting = index[slot, FITTING, leaf]
        if fitting >= pods and (best < 0 or fitting < index[slot, FITTING, best]):
            best = leaf
    return best if best >= 0 else otherwise


@inlined
def best_allowed(table: Table, demands: Table, d: int, order: Table, index: Table, slot: int) -> int:
    """Return the best-scoring leaf that affinity rules allow; -1: none.

    It looks at all scores, since a pod on one node can close other nodes without changing their scores.
    """
    best = -1
    for leaf in range(order.shape[1]):
        better = index[slot, FITTING, leaf] > 0 and (best < 0 or index[slot, SCORE, leaf] > index[slot, SCORE, best])
        if better and counted_capacity(table, order[NODE_AT, leaf], demands, d, c.WIDE) > 0:
            best = leaf
    return int(best)


def named(kernel: F, *around: Callable[..., object]) -> F:
    """Rename the kernel after the functions from which it was built.

    Machine code cached on disk refers to the kernels that it calls, and the linker identifies these by name.
    """
    kernel.__qualname__ += "".join(f" {one.__module__}.{one.__qualname__}" for one in around)
    return kernel


def make_index_kernel(score: Score, pick: Pick, fresh: bool) -> Kernel:
    """Build the kernel that chooses among all nodes, from one policy's functions."""

    def place_group(
        table: Table, log: Table, demands: Table, d: int, typical: Table, params: Table, order: Table, index: Table,
        marks: Table, slot: int, count: int, by_node: bool, drawn: int, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Place `count` pods of demand `d`; append to `pieces` from row `used` on, and take them from `table`.

        Returns the number of rows used, or -1 - f if only f pods fit (then nothing is taken).
        """
        size = index.shape[2]
        ring = log.shape[0] - 1
        placed, begin = 0, used
        while True:
            cursor = marks[slot, CURSOR]
            draw = mixed(drawn, placed) if fresh else 0
            rebuild = fresh or cursor < 0 or log[0] - cursor > ring
            for k in range(order.shape[1] if rebuild else log[0] - cursor):
                node = k if rebuild else log[1 + (cursor + k) % ring]
                leaf = order[PLACE_OF, node]
                fits = own_capacity(table, node, demands, d)
                marks[slot, TOTAL] += fits - index[slot, FITTING, leaf]
                index[slot, FITTING, leaf] = fits
                worth = -1
                if fits > 0:
                    worth = score(table, node, demands, d, typical, params, draw)
                index[slot, SCORE, leaf] = worth
                if not rebuild:
                    i = (leaf + size) >> 1
                    while i >= 1:
                        best = play(index, slot, i, size)
                        if index[slot, WINNER, i] == best and best != leaf:
                            break
                        index[slot, WINNER, i] = best
                        i >>= 1
            if rebuild:
                for i in range(size - 1, 0, -1):
                    index[slot, WINNER, i] = play(index, slot, i, size)
            marks[slot, CURSOR] = log[0]

            if placed == 0 and marks[slot, TOTAL] < count:
                return int(-1 - marks[slot, TOTAL])
            if placed == count:
                return used

            leaf = index[slot, WINNER, 1]
            most = count - placed
            if demands[d, c.D_WIDE] == 1:
                leaf = best_allowed(table, demands, d, order, index, slot)
                if leaf < 0:
                    for row in range(used - 1, begin - 1, -1):
                        give_piece(table, pieces[row], demands)
                        note_piece(table, log, pieces[row], demands)
                    return int(-1 - placed)
                most = min(most, counted_capacity(table, order[NODE_AT, leaf], demands, d, c.WIDE))
            batch = 1
            if by_node:
                if index[slot, FITTING, leaf] > most and demands[d, c.D_WIDE] == 0:
                    leaf = smallest_that_holds(index, slot, most, leaf)
                batch = min(index[slot, FITTING, leaf], most)
            node = order[NODE_AT, leaf]
            for _ in range(batch):
                mask = pick(table, node, demands, d, typical, params, draw)
                used = put(table, node, mask, demands, d, pieces, begin, used)
            placed += batch
            note_change(log, node)
            if demands[d, c.D_COUNTED] > 0:
                note_counts(table, log, node, demands, d)

    return compiled(named(place_group, score, pick))


def make_slice_kernel(score: Score, pick: Pick, fresh: bool) -> Kernel:
    """Build the kernel that chooses among given nodes, from one policy's functions."""

    def place_in_slice(
        table: Table, log: Table, demands: Table, d: int, typical: Table, params: Table, nodes: Table, count: int,
        by_node: bool, drawn: int, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Place `count` pods of demand `d`, which must fit, on `nodes`, given in tie order.

        Appends to `pieces` from row `used` on, takes them from `table`, and returns the number of rows used.
        """
        fitting = np.zeros(nodes.shape[0], dtype=np.int64)
        worth = np.zeros(nodes.shape[0], dtype=np.int64)
        placed, best, begin = 0, -1, used
        while placed < count:
            draw = mixed(drawn, placed) if fresh else 0
            everyone = fresh or best < 0
            for i in range(0 if everyone else best, nodes.shape[0] if everyone else best + 1):
                fitting[i] = capacity(table, nodes[i], demands, d)
                worth[i] = -1
                if fitting[i] > 0:
                    worth[i] = score(table, nodes[i], demands, d, typical, params, draw)
            best = 0
            for i in range(1, nodes.shape[0]):
                if worth[i] > worth[best]:
                    best = i
            batch = 1
            if by_node:
                missing = count - placed
                if fitting[best] > missing:
                    for i in range(nodes.shape[0]):
                        if missing <= fitting[i] < fitting[best]:
                            best = i
                batch = min(fitting[best], missing)
            node = nodes[best]
            for _ in range(batch):
                mask = pick(table, node, demands, d, typical, params, draw)
                used = put(table, node, mask, demands, d, pieces, begin, used)
            placed += batch
            note_change(log, node)
            if demands[d, c.D_COUNTED] > 0:
                note_counts(table, log, node, demands, d)
        return used

    return compiled(named(place_in_slice, score, pick))


@cache
def index_kernel(policy: type[NodePolicy]) -> Kernel:
    """Return the kernel by which a policy class chooses among all nodes; it is built once."""
    return make_index_kernel(policy.score, policy.pick, policy.fresh)


@cache
def slice_kernel(policy: type[NodePolicy]) -> Kernel:
    """Return the kernel by which a policy class chooses among given nodes; it is built once."""
    return make_slice_kernel(policy.score, policy.pick, policy.fresh)
