"""Requests that receive the KV of their prompt, or send it, through a KV connector.

Requests whose KV is coming are at the end of the table of waiting requests, the first of them in the last row.

As in vLLM (`kv_holding_waiting` of its scheduler), they hold blocks but no seat, and are considered before all other
waiting requests: in the order in which their transfers began, or with priorities in that of waiting requests. Requests
whose KV is being sent have ended; they hold their blocks until it has been sent (`finished_sending`).
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving import columns as c
from kant.serving.blocks import give_back
from kant.serving.columns import FOREVER, Table, Times
from kant.serving.waiting import before


@inlined
def put(requests: Table, times: Times, limits: Table, waiting: Table, state: Table, r: int) -> None:
    """Add a request whose KV has been requested and is coming."""
    i = len(waiting) - 1 - state[c.LOADS]
    if limits[c.BY_PRIORITY] == 1:
        while i + 1 < len(waiting) and before(requests, times, limits, r, waiting[i + 1]):
            waiting[i] = waiting[i + 1]
            i += 1
    waiting[i] = r
    state[c.LOADS] += 1


@inlined
def take(waiting: Table, state: Table, i: int) -> None:
    """Remove the `i`-th request whose KV is coming."""
    state[c.LOADS] -= 1
    for k in range(i, state[c.LOADS]):
        waiting[len(waiting) - 1 - k] = waiting[len(waiting) - 2 - k]


@inlined
def first_loaded(requests: Table, times: Times, waiting: Table, state: Table, now: float) -> float:
    """Return when the next KV that has not been considered yet arrives, from `now` on; infinity if there is none."""
    first = FOREVER
    for i in range(state[c.LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if requests[r, c.REMOTE] > 0:
            first = min(first, max(times[r, c.LOADED], now))
    return float(first)


@inlined
def fail(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    ended: Table, now: float,
) -> None:  # fmt: skip
    """End the requests whose KV has not arrived completely: vLLM's policy `fail`."""
    i = 0
    while i < state[c.LOADS]:
        r = waiting[len(waiting) - 1 - i]
        if requests[r, c.COMES] >= requests[r, c.PROMPT] or times[r, c.LOADED] > now:
            i += 1
            continue
        take(waiting, state, i)
        give_back(requests, blocks, held, limits, state, r)
        times[r, c.FINISH], requests[r, c.STATE] = now, c.FINISHED
        ended[state[c.ENDED]] = r
        state[c.ENDED] += 1


@inlined
def send(requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, now: float) -> float:
    """Free the blocks of requests whose KV has been sent by now. Returns when the next KV will be sent, or infinity."""
    first, before, r = FOREVER, -1, state[c.FIRST_LEFT] - 1
    while r >= 0:
        following = requests[r, c.NEXT_ENDED]
        if times[r, c.LOADED] > now:
            first, before = min(first, times[r, c.LOADED]), r
        else:
            requests[r, c.BLOCK_ROW] = 2 * r
            give_back(requests, blocks, held, limits, state, r)
            if before < 0:
                state[c.FIRST_LEFT] = following
            else:
                requests[before, c.NEXT_ENDED] = following
            if following == 0:
                state[c.LAST_LEFT] = before + 1
        r = following - 1
    return float(first)


@inlined
def left_of_prefills(
    requests: Table, limits: Table, state: Table, running: Table, waiting: Table, plan: Table, row: int, fresh: int
) -> int:  # fmt: skip
    """Return how many blocks a transfer has to leave to others: running prompts, and requests whose KV is arriving,
    still need these to decode.

    Running requests from the `fresh`-th on are admitted by this step; in its plan they begin at `row`. Requests whose
    prompt the step completes need no further blocks.
    """
    size, more = limits[c.BLOCK], 0
    if limits[c.SPECULATIVE] > 0:
        more = 1 + limits[c.SPECULATIVE] + limits[c.LOOKAHEAD]
    total = (more + size - 1) // size
    for i in range(state[c.RUNS] + state[c.LOADS]):
        r = running[i] if i < state[c.RUNS] else waiting[len(waiting) - 1 - (i - state[c.RUNS])]
        known = requests[r, c.PROMPT] + requests[r, c.DONE]
        if fresh <= i < state[c.RUNS] and requests[r, c.COMPUTED] + plan[row + i - fresh, c.COUNT] >= known:
            continue
        if requests[r, c.AHEAD] == 0 and (requests[r, c.COMPUTED] < known - 1 or requests[r, c.DONE] == 0):
            total += max((known + more + size - 1) // size - requests[r, c.HELD], 0)
    return int(total)
