"""An order of migrations in which each has room when it is made."""

from __future__ import annotations

import numpy as np

from kant.optimize.defragment.cluster import SPREAD, Layout, Move


def ordered(layout: Layout, moves: list[Move], most: int) -> list[Move]:
    """The moves in a feasible order, at most `most` of them; makes them on `layout`.

    In a cyclic wait, one VM takes a detour by a spare slot, at the cost of one more move. A move with neither room nor
    a spare slot is left out, with those that wait for it.
    """
    left = sorted(moves, key=lambda move: (-int(layout.cluster.vm_cores[move.vm]), move.vm))
    done: list[Move] = []
    while left and len(done) < most:
        waiting = []
        for move in left:
            if len(done) < most and layout.may(move):
                layout.make(move)
                done.append(move)
            else:
                waiting.append(move)
        if len(waiting) == len(left):
            spare = _detour(layout, waiting) if len(done) + len(waiting) < most else None
            if spare is None:
                break
            layout.make(spare)
            done.append(spare)
        left = waiting
    return done


def _detour(layout: Layout, waiting: list[Move]) -> Move | None:
    """A move of a waiting VM, the smallest first, to a slot that no VM waits for, after which another has room."""
    cluster = layout.cluster
    wanted = {(move.host, move.numa) for move in waiting}
    for blocked in sorted(waiting, key=lambda move: (int(cluster.vm_cores[move.vm]), move.vm)):
        if blocked.numa == SPREAD:
            continue
        room = np.argwhere(layout.cores >= cluster.vm_cores[blocked.vm])
        for host, numa in room[np.argsort(-layout.cores[tuple(room.T)], kind="stable")].tolist():
            move = Move(blocked.vm, host, numa)
            if (host, numa) in wanted or not layout.may(move):
                continue
            tried = layout.copy()
            tried.make(move)
            if any(tried.may(other) for other in waiting if other.vm != blocked.vm):
                return move
            break
    return None
