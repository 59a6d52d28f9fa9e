"""Greedy migrations: the best single one, repeatedly. For what the flow cannot place, and as the simplest baseline."""

from __future__ import annotations

import numpy as np

from kant.optimize.defragment.cluster import SPREAD, Layout, Move

TRIED = 24
"""The best source slots and target slots that are tried for each size, as the first may not be allowed."""


def best_move(layout: Layout) -> Move | None:
    """The migration of a VM on one slot that lowers the fragments most; None if none does."""
    cluster = layout.cluster
    block = cluster.instance.block
    rest = layout.cores % block
    best: tuple[int, Move] | None = None
    for size in sorted(set(cluster.vm_cores[~cluster.spread].tolist())):
        vms = np.flatnonzero(~cluster.spread & (cluster.vm_cores == size))
        host, slot = layout.host[vms], layout.slot[vms]
        saved_there = rest[host, slot] - (layout.cores[host, slot] + size) % block
        saved_here = np.where(layout.cores >= size, rest - (layout.cores - size) % block, -block)
        sources = np.argsort(-saved_there, kind="stable")[:TRIED].tolist()
        targets = np.argsort(-saved_here, axis=None, kind="stable")[:TRIED].tolist()
        pairs = sorted(
            ((int(saved_there[a] + saved_here.flat[b]), a, b) for a in sources for b in targets), key=lambda p: -p[0]
        )
        for saved, a, b in pairs:
            if saved <= (best[0] if best else 0):
                break
            move = Move(int(vms[a]), *map(int, np.unravel_index(b, layout.cores.shape)))
            if layout.may(move):
                best = saved, move
                break
    return best[1] if best else None


def greedy(layout: Layout, moves: int) -> list[Move]:
    """Make the best single migration, at most `moves` times."""
    made: list[Move] = []
    while len(made) < moves and (move := best_move(layout)) is not None:
        assert move.numa != SPREAD
        layout.make(move)
        made.append(move)
    return made
