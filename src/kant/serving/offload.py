"""Blocks of KV that are also kept in host memory: vLLM's OffloadingConnector with one group of full attention.

As in vLLM 0.32 (kv_connector/v1/offloading/scheduler.py, kv_offload/cpu/manager.py and policies/lru.py): a step stores
the blocks that it fills, and loads those that a waiting request finds beyond the prefix cache. During the load that
request holds blocks, but no seat (`loading`). A request waits until the blocks that it finds are stored and no other
request loads them. The least recently used block is replaced; of a prompt, the last block first. A store that finds no
room is tried again with the next step. All stores share one stream, and all loads another. A store begins when its step
is computed. A step waits for stores of blocks that it overwrites, if their request was preempted or has ended.

Rows of the table of blocks: first those of the GPU, then those of the host, then the blocks that are being stored.
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving import columns as c
from kant.serving.blocks import content_of, find, forget, remember, unlink
from kant.serving.columns import FOREVER, Table, Times

HOST_SIDE = 1 << 61
"""Added to the content number of a block in host memory."""

CHUNK, OWNER, SOURCE, AT_ONCE, OPEN = range(5)
"""Columns of a block that is being stored: its row; its request; its block on the GPU; 1 if the step that ends the
request writes to that block; 1 until the time of the store is known."""


@inlined
def kept(requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, r: int, k: int) -> int:
    """Return the row of the `k`-th block of a request in host memory, -1 if it is not there."""
    return find(blocks, buckets, content_of(requests, shared, limits, r, k, 0) + HOST_SIDE)


@inlined
def refresh(blocks: Table, state: Table, b: int) -> None:
    """Make a block the most recently used one."""
    own = state[c.STATE_WIDTH :]
    unlink(blocks, own, b)
    last = own[c.TAIL]
    blocks[b, c.BEFORE], blocks[b, c.NEXT] = last, -1
    if last >= 0:
        blocks[last, c.NEXT] = b
    else:
        own[c.HEAD] = b
    own[c.TAIL] = b


@inlined
def land(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, limits: Table, state: Table,
    clock: Times, waiting: Table,
) -> None:  # fmt: skip
    """End the transfers that are over by now."""
    first, left = limits[c.USABLE] + limits[c.HOST], 0
    for i in range(state[c.STORES]):
        chunk = blocks[first + i, CHUNK]
        if clock[c.CLOCK_WIDTH + chunk - limits[c.USABLE]] <= clock[c.CLOCK]:
            blocks[chunk, c.USERS] = 0
        else:
            blocks[first + left] = blocks[first + i]
            left += 1
    state[c.STORES] = left
    for i in range(state[c.LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if requests[r, c.REMOTE] == 1 and times[r, c.LOADED] <= clock[c.CLOCK]:
            requests[r, c.REMOTE] = 2
            for k in range(requests[r, c.HASHED], requests[r, c.SWAPPED] // limits[c.BLOCK]):
                blocks[kept(requests, shared, blocks, buckets, limits, r, k), c.USERS] -= 1


@inlined
def found(
    requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, state: Table, r: int, hits: int
) -> int:  # fmt: skip
    """Return how many blocks of a waiting request beyond `hits` are in host memory; -1 if unknown yet: ask again."""
    requests[r, c.OFFERED] = 0
    first = limits[c.USABLE] + limits[c.HOST]
    for i in range(state[c.STORES]):
        if blocks[first + i, OWNER] == r:
            return -1
    k, busy = hits, False
    while k < (requests[r, c.PROMPT] + requests[r, c.DONE]) // limits[c.BLOCK]:
        b = kept(requests, shared, blocks, buckets, limits, r, k)
        if b < 0:
            break
        busy = busy or blocks[b, c.USERS] != 0
        k += 1
    return -1 if busy else k - hits


@inlined
def fetch(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    row: int, r: int, hits: int, count: int,
) -> None:  # fmt: skip
    """Load `count` blocks of a request beyond `hits`. `settle` sets the time when they have arrived."""
    for k in range(hits, hits + count):
        blocks[kept(requests, shared, blocks, buckets, limits, r, k), c.USERS] += 1
        held[row + 1, k] = 1
    requests[r, c.REMOTE], requests[r, c.SWAPPED] = 1, (hits + count) * limits[c.BLOCK]
    requests[r, c.STORED] = hits + count
    times[r, c.LOADED] = FOREVER


@inlined
def replaced(blocks: Table, limits: Table, state: Table, count: int) -> bool:
    """Choose `count` blocks of host memory to replace, as `CHUNK` of new stores. False if too many are in use."""
    b, chosen, first = state[c.STATE_WIDTH + c.HEAD], 0, limits[c.USABLE] + limits[c.HOST] + state[c.STORES]
    while b >= 0 and chosen < count:
        if blocks[b, c.USERS] == 0:
            blocks[first + chosen, CHUNK] = b
            chosen += 1
        b = blocks[b, c.NEXT]
    return chosen == count


@inlined
def offer(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table, r: int,
    tokens: int,
) -> int:  # fmt: skip
    """Store the blocks that a request's first `tokens` tokens fill and host memory lacks. Returns their number."""
    tokens = min(tokens, requests[r, c.PROMPT] + (0 if limits[c.PROMPT_ONLY] == 1 else requests[r, c.DONE]))
    begin, end, row = requests[r, c.STORED], tokens // limits[c.BLOCK], 2 * r
    lacks = 0
    for k in range(begin, end):
        b = kept(requests, shared, blocks, buckets, limits, r, k)
        if b < 0 or blocks[b, c.USERS] >= 0:
            held[row + 1, k] = 1
        if b < 0:
            lacks += 1
        elif blocks[b, c.USERS] >= 0:
            blocks[b, c.USERS] += 1  # so that no other block of this request replaces it
    room = lacks == 0 or replaced(blocks, limits, state, lacks)
    for k in range(begin, end):
        b = kept(requests, shared, blocks, buckets, limits, r, k)
        if b >= 0 and blocks[b, c.USERS] > 0:
            blocks[b, c.USERS] -= 1
    if not room:
        return 0
    first = limits[c.USABLE] + limits[c.HOST] + state[c.STORES]
    for k in range(begin, end):
        content = content_of(requests, shared, limits, r, k, 0) + HOST_SIDE
        if find(blocks, buckets, content) >= 0:
            continue
        b = blocks[first, CHUNK]
        if blocks[b, c.CONTENT] != c.NOTHING:
            forget(blocks, buckets, b)
        remember(blocks, buckets, b, content)
        refresh(blocks, state, b)
        blocks[b, c.USERS] = -1
        blocks[first, OWNER], blocks[first, SOURCE], blocks[first, AT_ONCE] = r, held[row, k], 0
        blocks[first, OPEN] = 1
        first += 1
    state[c.STORES] += lacks
    requests[r, c.STORED] = max(begin, end)
    return int(lacks)


@inlined
def written(
    requests: Table, times: Times, held: Table, state: Table, waiting: Table, plan: Table, base: int, planned: int,
    b: int,
) -> bool:  # fmt: skip
    """Whether a step assigns block `b` to a request, as a new block or from the prefix cache."""
    for i in range(planned):
        r = plan[base + i, c.WHO]
        for k in range(requests[r, c.OFFERED], requests[r, c.HELD]):
            if held[2 * r, k] == b:
                return True
    for i in range(state[c.LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if times[r, c.LOADED] == FOREVER:
            for k in range(requests[r, c.HELD]):
                if held[2 * r, k] == b:
                    return True
    return False


@inlined
def leave_host(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table, r: int
) -> None:  # fmt: skip
    """Make all blocks of a request the most recently used ones, and its first block the most recent."""
    for k in range((requests[r, c.PROMPT] + requests[r, c.DONE]) // limits[c.BLOCK] - 1, -1, -1):
        if held[2 * r + 1, k] == 1:
            b = kept(requests, shared, blocks, buckets, limits, r, k)
            if b >= 0:
                refresh(blocks, state, b)


@inlined
def stash(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    state: Table, clock: Times, waiting: Table, plan: Table, base: int, planned: int,
) -> None:  # fmt: skip
    """Store the blocks that a planned step computes, and those left of requests that have ended since the last step."""
    entries = limits[c.USABLE] + limits[c.HOST]
    for i in range(state[c.STORES]):
        owner = blocks[entries + i, OWNER]
        if requests[owner, c.STATE] == c.WAITING or (
            requests[owner, c.STATE] == c.FINISHED
            and written(requests, times, held, state, waiting, plan, base, planned, blocks[entries + i, SOURCE])
        ):
            chunk = blocks[entries + i, CHUNK]
            clock[c.FLUSHED] = max(clock[c.FLUSHED], clock[c.CLOCK_WIDTH + chunk - limits[c.USABLE]])
    for k in range(base, base + planned):
        r = plan[k, c.WHO]
        offer(requests, shared, blocks, buckets, held, limits, state, r, requests[r, c.COMPUTED] + plan[k, c.COUNT])
    r = state[c.FIRST_LEFT] - 1
    while r >= 0:
        tokens = max(requests[r, c.PROMPT], requests[r, c.PROMPT] + requests[r, c.DONE] - 1)
        count, at_once = offer(requests, shared, blocks, buckets, held, limits, state, r, tokens), 0
        for i in range(state[c.STORES] - count, state[c.STORES]):
            source = blocks[entries + i, SOURCE]
            if at_once == 0 and written(requests, times, held, state, waiting, plan, base, planned, source):
                at_once = 1
        for i in range(state[c.STORES] - count, state[c.STORES]):
            blocks[entries + i, AT_ONCE] = at_once
        r = requests[r, c.NEXT_ENDED] - 1
    r = state[c.FIRST_LEFT] - 1
    while r >= 0:
        leave_host(requests, shared, blocks, buckets, held, limits, state, r)
        r = requests[r, c.NEXT_ENDED] - 1
    state[c.FIRST_LEFT] = state[c.LAST_LEFT] = 0
    for k in range(base, base + planned):
        requests[plan[k, c.WHO], c.OFFERED] = requests[plan[k, c.WHO], c.HELD]


@inlined
def send(blocks: Table, limits: Table, latency: Times, state: Table, clock: Times, start: float, at_once: int) -> None:
    """Schedule new stores, from `start` on. Those of a request go together."""
    first, i = limits[c.USABLE] + limits[c.HOST], 0
    while i < state[c.STORES]:
        j = i
        while (
            j < state[c.STORES] and blocks[first + j, OPEN] == 1 and blocks[first + j, AT_ONCE] == at_once
            and blocks[first + j, OWNER] == blocks[first + i, OWNER]
        ):  # fmt: skip
            j += 1
        if j > i:
            begun = max(clock[c.STORE_STREAM], start)
            clock[c.STORE_STREAM] = begun + (j - i) * limits[c.BLOCK] * latency[c.SWAP_MS] / 1e3
        for k in range(i, j):
            clock[c.CLOCK_WIDTH + blocks[first + k, CHUNK] - limits[c.USABLE]] = clock[c.STORE_STREAM]
            blocks[first + k, OPEN] = 0
            if at_once == 1:
                clock[c.FLUSHED] = max(clock[c.FLUSHED], clock[c.STORE_STREAM])
        i = max(j, i + 1)


@inlined
def settle(
    requests: Table, times: Times, blocks: Table, limits: Table, latency: Times, state: Table, clock: Times,
    waiting: Table, start: float, planned: int, ms: float,
) -> None:  # fmt: skip
    """Schedule the transfers of a step. The step starts at `start`, or when the transfers for which it waits have
    ended.
    """
    send(blocks, limits, latency, state, clock, start, 1)
    for i in range(state[c.LOADS]):
        r = waiting[len(waiting) - 1 - i]
        if times[r, c.LOADED] == FOREVER:
            tokens = requests[r, c.SWAPPED] - requests[r, c.HASHED] * limits[c.BLOCK]
            begun = max(clock[c.LOAD_STREAM], clock[c.FLUSHED], clock[c.CLOCK])
            times[r, c.LOADED] = clock[c.LOAD_STREAM] = begun + tokens * latency[c.SWAP_MS] / 1e3
    end = max(start, clock[c.FLUSHED]) + ms / 1e3 if planned > 0 else start
    send(blocks, limits, latency, state, clock, end, 0)


@inlined
def next_stored(blocks: Table, limits: Table, state: Table, clock: Times) -> float:
    """Return when the next store ends; infinity if none is under way."""
    first = FOREVER
    for i in range(state[c.STORES]):
        chunk = blocks[limits[c.USABLE] + limits[c.HOST] + i, CHUNK]
        first = min(first, clock[c.CLOCK_WIDTH + chunk - limits[c.USABLE]])
    return float(first)
