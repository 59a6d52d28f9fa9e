"""The placement kernel for a stretch of the fabric: its nodes are scored when they are asked, and nothing is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from kant.cluster.columns import D_CPU, D_GPUS, D_MEMORY, D_MILLI, D_SLICES, D_TAG, Table, note_change, take_piece
from kant.compiled import compiled, inlined
from kant.placement.fits import capacity, mixed
from kant.placement.policy import NodePolicy, Pick, Score
from kant.placement.slices import cut

Kernel = Callable[..., int]


@inlined
def put(table: Table, node: int, mask: int, demands: Table, d: int, pieces: Table, begin: int, used: int) -> int:
    """Take the devices `mask` for one pod and append it to `pieces`; returns the number of rows used.

    Pods of whole GPUs, or without GPUs, that follow each other on one node share a piece, from row `begin` on. The
    engine does the same in its loop: there a call for each pod was measured to cost a tenth.
    """
    piece = pieces[used]
    piece[0] = node
    piece[1] = 1
    piece[2] = mask
    piece[3] = demands[d, D_MILLI] if demands[d, D_GPUS] > 0 else 0
    piece[4] = demands[d, D_CPU]
    piece[5] = demands[d, D_MEMORY]
    piece[6] = demands[d, D_TAG]
    if demands[d, D_SLICES] > 0:
        cut(table, node, demands, d, piece)
    take_piece(table, piece)
    last = pieces[used - 1]
    if used > begin and last[0] == node and last[6] == piece[6] and last[6] != 0:
        last[1] += 1
        last[2] |= piece[2]
        last[4] += piece[4]
        last[5] += piece[5]
        return used
    return used + 1


def make_kernel(score: Score, pick: Pick, fresh: bool) -> Kernel:
    """The kernel for one policy's functions."""

    def place_in_stretch(
        table: Table, log: Table, demands: Table, d: int, mix: Table, params: Table, walk: Table, first: int, last: int,
        count: int, by_node: bool, seed: int, salt: int, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Place `count` pods of demand `d`, which are known to fit, on the nodes walk[first:last].

        Appends to `pieces` from row `used` on, takes them from `table`, and returns the number of rows used. The
        rules are those of the engine: the highest score, the first of equals.
        """
        takes = np.zeros(last - first, dtype=np.int64)
        worth = np.full(last - first, -1, dtype=np.int64)
        placed, best, begin = 0, -1, used
        while placed < count:
            draw = mixed(mixed(seed, salt), placed) if fresh else 0
            everyone = fresh or best < 0
            for i in range(0 if everyone else best, last - first if everyone else best + 1):
                takes[i] = capacity(table, walk[first + i], demands, d)
                worth[i] = -1
                if takes[i] > 0:
                    worth[i] = score(table, walk[first + i], demands, d, mix, params, draw)
            best = int(np.argmax(worth))
            batch = 1
            if by_node:
                missing = count - placed
                if takes[best] > missing:
                    for i in range(last - first):
                        if missing <= takes[i] < takes[best]:
                            best = i
                batch = min(takes[best], missing)
            node = walk[first + best]
            for _ in range(batch):
                mask = pick(table, node, demands, d, mix, params, draw)
                used = put(table, node, mask, demands, d, pieces, begin, used)
            placed += batch
            note_change(log, node)
        return used

    return compiled(place_in_stretch)


@cache
def kernel_of(policy: type[NodePolicy]) -> Kernel:
    """The kernel of a policy class, made once."""
    return make_kernel(policy.score, policy.pick, policy.fresh)
