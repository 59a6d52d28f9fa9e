"""Blocks of KV that are kept in host memory as well: vLLM's OffloadingConnector with one group of full attention.

As in vLLM 0.32 (kv_connector/v1/offloading/scheduler.py, kv_offload/cpu/manager.py and policies/lru.py): a step stores
the blocks that it fills, and loads those that a waiting request finds beyond the prefix cache; meanwhile that request
holds blocks and no seat (`loading`). A request waits until what it finds is stored, and until nobody else loads it. The
least recently used block is replaced, a prompt's last block before its first; a store that finds no room is tried again
with the next step. Each direction is one stream. A store begins when its step is computed. A step waits for stores of
blocks that it writes to, if their request was preempted or has ended.

Rows of the table of blocks: those of the GPU, those of the host, and the blocks that are being stored.
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving.blocks import content_of, find, forget, remember, unlink
from kant.serving.columns import (
    BEFORE,
    BLOCK,
    CLOCK,
    CLOCK_WIDTH,
    COMPUTED,
    CONTENT,
    COUNT,
    DONE,
    FINISHED,
    FIRST_LEFT,
    FLUSHED,
    FOREVER,
    HASHED,
    HEAD,
    HELD,
    HOST,
    LAST_LEFT,
    LOAD_STREAM,
    LOADED,
    LOADS,
    NEXT,
    NEXT_ENDED,
    NOTHING,
    OFFERED,
    PROMPT,
    PROMPT_ONLY,
    REMOTE,
    STATE,
    STATE_WIDTH,
    STORE_STREAM,
    STORED,
    STORES,
    SWAP_MS,
    SWAPPED,
    TAIL,
    USABLE,
    USERS,
    WAITING,
    WHO,
    Table,
    Times,
)

HOST_SIDE = 1 << 61
"""Added to a content in host memory."""

CHUNK, OWNER, SOURCE, AT_ONCE, OPEN = range(5)
"""Columns of a block that is being stored: its row, request and block on the GPU, 1 if the step that ends its request
writes to that block, 1 until its time is known."""


@inlined
def kept(requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, r: int, k: int) -> int:
    """Return the row of the `k`-th block of a request in host memory, -1 if it is not there."""
    return find(blocks, buckets, content_of(requests, shared, limits, r, k, 0) + HOST_SIDE)


@inlined
def refresh(blocks: Table, state: Table, b: int) -> None:
    """Make a block the most recently used one."""
    own = state[STATE_WIDTH:]
    unlink(blocks, own, b)
    last = own[TAIL]
    blocks[b, BEFORE], blocks[b, NEXT] = last, -1
    if last >= 0:
        blocks[last, NEXT] = b
    else:
        own[HEAD] = b
    own[TAIL] = b


@inlined
def land(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, limits: Table, state: Table,
    clock: Times, waiting: Table,
) -> None:  # fmt: skip
    """End the transfers that are over by now."""
    first, left = limits[USABLE] + limits[HOST], 0
    for i in range(state[STORES]):
        chunk = blocks[first + i, CHUNK]
        if clock[CLOCK_WIDTH + chunk - limits[USABLE]] <= clock[CLOCK]:
            blocks[chunk, USERS] = 0
        else:
            blocks[first + left] = blocks[first + i]
            left += 1
    state[STORES] = left
    for i in range(state[LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if requests[r, REMOTE] == 1 and times[r, LOADED] <= clock[CLOCK]:
            requests[r, REMOTE] = 2
            for k in range(requests[r, HASHED], requests[r, SWAPPED] // limits[BLOCK]):
                blocks[kept(requests, shared, blocks, buckets, limits, r, k), USERS] -= 1


@inlined
def found(
    requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, state: Table, r: int, hits: int
) -> int:  # fmt: skip
    """Return how many blocks of a waiting request beyond `hits` host memory has, -1 if it has to be asked again."""
    requests[r, OFFERED] = 0
    first = limits[USABLE] + limits[HOST]
    for i in range(state[STORES]):
        if blocks[first + i, OWNER] == r:
            return -1
    k, busy = hits, False
    while k < (requests[r, PROMPT] + requests[r, DONE]) // limits[BLOCK]:
        b = kept(requests, shared, blocks, buckets, limits, r, k)
        if b < 0:
            break
        busy = busy or blocks[b, USERS] != 0
        k += 1
    return -1 if busy else k - hits


@inlined
def fetch(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    row: int, r: int, hits: int, count: int,
) -> None:  # fmt: skip
    """Load `count` blocks of a request beyond `hits`; `settle` says when they are here."""
    for k in range(hits, hits + count):
        blocks[kept(requests, shared, blocks, buckets, limits, r, k), USERS] += 1
        held[row + 1, k] = 1
    requests[r, REMOTE], requests[r, SWAPPED] = 1, (hits + count) * limits[BLOCK]
    requests[r, STORED] = hits + count
    times[r, LOADED] = FOREVER


@inlined
def replaced(blocks: Table, limits: Table, state: Table, count: int) -> bool:
    """Choose the `count` blocks that are replaced: in `CHUNK` of new stores. False if too many are in use."""
    b, chosen, first = state[STATE_WIDTH + HEAD], 0, limits[USABLE] + limits[HOST] + state[STORES]
    while b >= 0 and chosen < count:
        if blocks[b, USERS] == 0:
            blocks[first + chosen, CHUNK] = b
            chosen += 1
        b = blocks[b, NEXT]
    return chosen == count


@inlined
def offer(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table, r: int,
    tokens: int,
) -> int:  # fmt: skip
    """Store what the first `tokens` tokens of a request fill and host memory lacks; return how many blocks."""
    tokens = min(tokens, requests[r, PROMPT] + (0 if limits[PROMPT_ONLY] == 1 else requests[r, DONE]))
    begin, end, row = requests[r, STORED], tokens // limits[BLOCK], 2 * r
    lacks = 0
    for k in range(begin, end):
        b = kept(requests, shared, blocks, buckets, limits, r, k)
        if b < 0 or blocks[b, USERS] >= 0:
            held[row + 1, k] = 1
        if b < 0:
            lacks += 1
        elif blocks[b, USERS] >= 0:
            blocks[b, USERS] += 1  # it may not be replaced by its neighbours
    room = lacks == 0 or replaced(blocks, limits, state, lacks)
    for k in range(begin, end):
        b = kept(requests, shared, blocks, buckets, limits, r, k)
        if b >= 0 and blocks[b, USERS] > 0:
            blocks[b, USERS] -= 1
    if not room:
        return 0
    first = limits[USABLE] + limits[HOST] + state[STORES]
    for k in range(begin, end):
        content = content_of(requests, shared, limits, r, k, 0) + HOST_SIDE
        if find(blocks, buckets, content) >= 0:
            continue
        b = blocks[first, CHUNK]
        if blocks[b, CONTENT] != NOTHING:
            forget(blocks, buckets, b)
        remember(blocks, buckets, b, content)
        refresh(blocks, state, b)
        blocks[b, USERS] = -1
        blocks[first, OWNER], blocks[first, SOURCE], blocks[first, AT_ONCE] = r, held[row, k], 0
        blocks[first, OPEN] = 1
        first += 1
    state[STORES] += lacks
    requests[r, STORED] = max(begin, end)
    return int(lacks)


@inlined
def written(
    requests: Table, times: Times, held: Table, state: Table, waiting: Table, plan: Table, base: int, planned: int,
    b: int,
) -> bool:  # fmt: skip
    """Whether a step hands out block `b`, new or from the prefix cache."""
    for i in range(planned):
        r = plan[base + i, WHO]
        for k in range(requests[r, OFFERED], requests[r, HELD]):
            if held[2 * r, k] == b:
                return True
    for i in range(state[LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if times[r, LOADED] == FOREVER:
            for k in range(requests[r, HELD]):
                if held[2 * r, k] == b:
                    return True
    return False


@inlined
def leave_host(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table, r: int
) -> None:  # fmt: skip
    """Make all blocks that a request has used the latest, its first block the last."""
    for k in range((requests[r, PROMPT] + requests[r, DONE]) // limits[BLOCK] - 1, -1, -1):
        if held[2 * r + 1, k] == 1:
            b = kept(requests, shared, blocks, buckets, limits, r, k)
            if b >= 0:
                refresh(blocks, state, b)


@inlined
def stash(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    state: Table, clock: Times, waiting: Table, plan: Table, base: int, planned: int,
) -> None:  # fmt: skip
    """Store what a planned step computes, and what is left of requests that have ended since the step before."""
    entries = limits[USABLE] + limits[HOST]
    for i in range(state[STORES]):
        owner = blocks[entries + i, OWNER]
        if requests[owner, STATE] == WAITING or (
            requests[owner, STATE] == FINISHED
            and written(requests, times, held, state, waiting, plan, base, planned, blocks[entries + i, SOURCE])
        ):
            clock[FLUSHED] = max(clock[FLUSHED], clock[CLOCK_WIDTH + blocks[entries + i, CHUNK] - limits[USABLE]])
    for k in range(base, base + planned):
        r = plan[k, WHO]
        offer(requests, shared, blocks, buckets, held, limits, state, r, requests[r, COMPUTED] + plan[k, COUNT])
    r = state[FIRST_LEFT] - 1
    while r >= 0:
        tokens = max(requests[r, PROMPT], requests[r, PROMPT] + requests[r, DONE] - 1)
        count, at_once = offer(requests, shared, blocks, buckets, held, limits, state, r, tokens), 0
        for i in range(state[STORES] - count, state[STORES]):
            source = blocks[entries + i, SOURCE]
            if at_once == 0 and written(requests, times, held, state, waiting, plan, base, planned, source):
                at_once = 1
        for i in range(state[STORES] - count, state[STORES]):
            blocks[entries + i, AT_ONCE] = at_once
        r = requests[r, NEXT_ENDED] - 1
    r = state[FIRST_LEFT] - 1
    while r >= 0:
        leave_host(requests, shared, blocks, buckets, held, limits, state, r)
        r = requests[r, NEXT_ENDED] - 1
    state[FIRST_LEFT] = state[LAST_LEFT] = 0
    for k in range(base, base + planned):
        requests[plan[k, WHO], OFFERED] = requests[plan[k, WHO], HELD]


@inlined
def send(blocks: Table, limits: Table, latency: Times, state: Table, clock: Times, start: float, at_once: int) -> None:
    """Give new stores their time: those of a request go together, from `start` on."""
    first, i = limits[USABLE] + limits[HOST], 0
    while i < state[STORES]:
        j = i
        while (
            j < state[STORES] and blocks[first + j, OPEN] == 1 and blocks[first + j, AT_ONCE] == at_once
            and blocks[first + j, OWNER] == blocks[first + i, OWNER]
        ):  # fmt: skip
            j += 1
        if j > i:
            clock[STORE_STREAM] = max(clock[STORE_STREAM], start) + (j - i) * limits[BLOCK] * latency[SWAP_MS] / 1e3
        for k in range(i, j):
            clock[CLOCK_WIDTH + blocks[first + k, CHUNK] - limits[USABLE]] = clock[STORE_STREAM]
            blocks[first + k, OPEN] = 0
            if at_once == 1:
                clock[FLUSHED] = max(clock[FLUSHED], clock[STORE_STREAM])
        i = max(j, i + 1)


@inlined
def settle(
    requests: Table, times: Times, blocks: Table, limits: Table, latency: Times, state: Table, clock: Times,
    waiting: Table, start: float, planned: int, ms: float,
) -> None:  # fmt: skip
    """Give the transfers of a step their times. It starts at `start`, or once those that it waits for have ended."""
    send(blocks, limits, latency, state, clock, start, 1)
    for i in range(state[LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if times[r, LOADED] == FOREVER:
            tokens = requests[r, SWAPPED] - requests[r, HASHED] * limits[BLOCK]
            begun = max(clock[LOAD_STREAM], clock[FLUSHED], clock[CLOCK])
            times[r, LOADED] = clock[LOAD_STREAM] = begun + tokens * latency[SWAP_MS] / 1e3
    end = max(start, clock[FLUSHED]) + ms / 1e3 if planned > 0 else start
    send(blocks, limits, latency, state, clock, end, 0)


@inlined
def next_stored(blocks: Table, limits: Table, state: Table, clock: Times) -> float:
    """Return when the next store ends; infinity if there is none."""
    first = FOREVER
    for i in range(state[STORES]):
        chunk = blocks[limits[USABLE] + limits[HOST] + i, CHUNK]
        first = min(first, clock[CLOCK_WIDTH + chunk - limits[USABLE]])
    return float(first)
