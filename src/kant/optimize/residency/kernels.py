"""The compiled game: try an action at a use of a buffer, and decide all later uses by a rule."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.compiled import compiled_at_once, inlined

Numbers = NDArray[np.int64]

# Columns of a use.
STEP, SIZE, TICKS, BEFORE, MADE = 0, 1, 2, 3, 4
# Moves. A copy is made as late or as early as possible.
DROP, KEEP, LATE, EARLY = 0, 1, 2, 3


@inlined
def has_room(free: Numbers, first: int, last: int, size: int) -> bool:
    """Whether `size` is free at each step from `first` to `last`."""
    for step in range(first, last + 1):  # noqa: SIM110 - compiled
        if free[step] < size:
            return False
    return True


@inlined
def copy_start(uses: Numbers, u: int, late: bool, free: Numbers, supply: Numbers, take: bool) -> int:
    """Return the step at which a copy for a use can begin, or -1. `take`: reserve memory and copy time for it."""
    step, size, need = uses[u, STEP], uses[u, SIZE], uses[u, TICKS]
    low = uses[uses[u, BEFORE], STEP] + 1 if uses[u, BEFORE] >= 0 else 0
    if free[step] < size:
        return -1
    first = step
    got = 0
    while first > low and free[first - 1] >= size and (got < need or not late):
        first -= 1
        got += supply[first]
    if got < need or first == step:
        return -1
    if not late:  # the copy begins no earlier than is useful
        while first < step - 1 and supply[first] == 0:
            first += 1
    if take:
        left = need
        k = step - 1 if late else first
        while left > 0:
            part = min(left, supply[k])
            supply[k] -= part
            left -= part
            k += -1 if late else 1
        for k in range(first, step + 1):
            free[k] -= size
    return int(first)


@inlined
def move(
    uses: Numbers, u: int, action: int, done: Numbers, starts: Numbers, free: Numbers, supply: Numbers, reads: Numbers
) -> bool:
    """Carry out a move if possible; return whether it was. Record it in `done`, and a copy's start in `starts`."""
    step, size = uses[u, STEP], uses[u, SIZE]
    if action == DROP:
        reads[step] += uses[u, TICKS]
    elif action == KEEP:
        if uses[u, MADE]:
            first = step
        elif uses[u, BEFORE] >= 0 and done[uses[u, BEFORE]] != DROP:
            first = uses[uses[u, BEFORE], STEP] + 1
        else:
            return False
        if not has_room(free, first, step, size):
            return False
        for k in range(first, step + 1):
            free[k] -= size
    else:
        if uses[u, MADE]:
            return False
        first = copy_start(uses, u, action == LATE, free, supply, True)
        if first < 0:
            return False
        starts[u] = first
    done[u] = action
    return True


@compiled_at_once
def attempt(
    uses: Numbers, u: int, action: int, done: Numbers, starts: Numbers, free: Numbers, supply: Numbers, reads: Numbers
) -> bool:
    """`move`, for callers that are not compiled."""
    return move(uses, u, action, done, starts, free, supply, reads)


@compiled_at_once
def play(
    uses: Numbers,
    first: int,
    least: float,
    compute: Numbers,
    done: Numbers,
    starts: Numbers,
    free: Numbers,
    supply: Numbers,
    reads: Numbers,
) -> int:
    """Play from use `first` to the end by a rule. Returns how many ticks the program takes.

    A buffer that a step can read while it computes is dropped. Any other buffer is kept, otherwise copied late, if that
    saves at least `least` ticks per unit of size and step. All others are dropped.
    """
    for u in range(first, uses.shape[0]):
        step, size, ticks = uses[u, STEP], uses[u, SIZE], uses[u, TICKS]
        chosen = False
        if reads[step] + ticks > compute[step]:
            saved = ticks - max(0, compute[step] - reads[step])
            span = 1
            if uses[u, BEFORE] >= 0 and done[uses[u, BEFORE]] != DROP:
                span = step - uses[uses[u, BEFORE], STEP]
            if saved >= least * size * span:
                chosen = move(uses, u, KEEP, done, starts, free, supply, reads)
            if not chosen and not uses[u, MADE]:
                begin = copy_start(uses, u, True, free, supply, False)
                if begin >= 0 and saved >= least * size * (step - begin + 1):
                    chosen = move(uses, u, LATE, done, starts, free, supply, reads)
        elif uses[u, MADE]:  # whether the next use needs the buffer in fast memory is not known yet
            chosen = least == 0.0 and move(uses, u, KEEP, done, starts, free, supply, reads)
        if not chosen:
            move(uses, u, DROP, done, starts, free, supply, reads)
    total = 0
    for step in range(len(compute)):
        total += max(compute[step], reads[step])
    return total
