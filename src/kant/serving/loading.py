"""Requests whose prompt's KV comes through a KV connector: the last rows of the waiting ones, from the end.

As in vLLM (`kv_holding_waiting` of its scheduler) they hold blocks, but no seat, and are asked before all others that
wait: in order of the start of their transfer, by priority in that of the waiting ones.
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving.columns import (
    AHEAD,
    BLOCK,
    BY_PRIORITY,
    COMPUTED,
    COUNT,
    DONE,
    FOREVER,
    HELD,
    LOADED,
    LOADS,
    LOOKAHEAD,
    PROMPT,
    REMOTE,
    RUNS,
    SPECULATIVE,
    Table,
    Times,
)
from kant.serving.waiting import before


@inlined
def put(requests: Table, times: Times, limits: Table, waiting: Table, state: Table, r: int) -> None:
    """Add a request whose KV is asked for."""
    i = len(waiting) - 1 - state[LOADS]
    if limits[BY_PRIORITY] == 1:
        while i + 1 < len(waiting) and before(requests, times, limits, r, waiting[i + 1]):
            waiting[i] = waiting[i + 1]
            i += 1
    waiting[i] = r
    state[LOADS] += 1


@inlined
def take(waiting: Table, state: Table, i: int) -> None:
    """Remove the `i`-th request."""
    state[LOADS] -= 1
    for k in range(i, state[LOADS]):
        waiting[len(waiting) - 1 - k] = waiting[len(waiting) - 2 - k]


@inlined
def first_loaded(requests: Table, times: Times, waiting: Table, state: Table, now: float) -> float:
    """Return when the next KV is here that nobody has been asked about yet, from `now` on; infinity if none comes."""
    first = FOREVER
    for i in range(state[LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if requests[r, REMOTE] > 0:
            first = min(first, max(times[r, LOADED], now))
    return float(first)


@inlined
def left_of_prefills(
    requests: Table, limits: Table, state: Table, running: Table, waiting: Table, plan: Table, row: int, fresh: int
) -> int:  # fmt: skip
    """Return the blocks that a transfer leaves to others: what prompts and the KV that comes still need to decode.

    Running requests from the `fresh`-th on are admitted by this step, whose plan has them from a row on: those whose
    prompt it completes need no more.
    """
    size, more = limits[BLOCK], 0
    if limits[SPECULATIVE] > 0:
        more = 1 + limits[SPECULATIVE] + limits[LOOKAHEAD]
    total = (more + size - 1) // size
    for i in range(state[RUNS] + state[LOADS]):
        r = running[i] if i < state[RUNS] else waiting[len(waiting) - 1 - (i - state[RUNS])]
        known = requests[r, PROMPT] + requests[r, DONE]
        if fresh <= i < state[RUNS] and requests[r, COMPUTED] + plan[row + i - fresh, COUNT] >= known:
            continue
        if requests[r, AHEAD] == 0 and (requests[r, COMPUTED] < known - 1 or requests[r, DONE] == 0):
            total += max((known + more + size - 1) // size - requests[r, HELD], 0)
    return int(total)
