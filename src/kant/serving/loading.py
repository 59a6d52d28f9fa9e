"""Requests whose prompt's KV comes or goes through a KV connector.

Those whose KV comes are the last rows of the waiting ones, from the end.

As in vLLM (`kv_holding_waiting` of its scheduler) they hold blocks, but no seat, and are asked before all others that
wait: in order of the start of their transfer, by priority in that of the waiting ones. Those whose KV is sent have
ended, and hold their blocks until it is (`finished_sending`).
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving.blocks import give_back
from kant.serving.columns import (
    AHEAD,
    BLOCK,
    BLOCK_ROW,
    BY_PRIORITY,
    COMES,
    COMPUTED,
    COUNT,
    DONE,
    ENDED,
    FINISH,
    FINISHED,
    FIRST_LEFT,
    FOREVER,
    HELD,
    LAST_LEFT,
    LOADED,
    LOADS,
    LOOKAHEAD,
    NEXT_ENDED,
    PROMPT,
    REMOTE,
    RUNS,
    SPECULATIVE,
    STATE,
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
def fail(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    ended: Table, now: float,
) -> None:  # fmt: skip
    """End the requests of which not all KV has come: vLLM's policy `fail`."""
    i = 0
    while i < state[LOADS]:
        r = waiting[len(waiting) - 1 - i]
        if requests[r, COMES] >= requests[r, PROMPT] or times[r, LOADED] > now:
            i += 1
            continue
        take(waiting, state, i)
        give_back(requests, blocks, held, limits, state, r)
        times[r, FINISH], requests[r, STATE] = now, FINISHED
        ended[state[ENDED]] = r
        state[ENDED] += 1


@inlined
def send(requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, now: float) -> float:
    """Free the blocks of requests whose KV has been sent by now; return when the next one's has, infinity if none's."""
    first, before, r = FOREVER, -1, state[FIRST_LEFT] - 1
    while r >= 0:
        following = requests[r, NEXT_ENDED]
        if times[r, LOADED] > now:
            first, before = min(first, times[r, LOADED]), r
        else:
            requests[r, BLOCK_ROW] = 2 * r
            give_back(requests, blocks, held, limits, state, r)
            if before < 0:
                state[FIRST_LEFT] = following
            else:
                requests[before, NEXT_ENDED] = following
            if following == 0:
                state[LAST_LEFT] = before + 1
        r = following - 1
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
