"""The paged KV cache of an engine: its free blocks in order of eviction, and the prefix cache over its full blocks.

As in vLLM V1 (vllm/v1/core/block_pool.py, 0.32): a full block is identified by its content and all content before it.
Unused blocks stay in the cache until they are needed; the least recently used one is reused first. Of blocks with equal
contents the oldest one is found. Without the prefix cache, blocks are interchangeable and only counted.

A model whose layers differ in attention has KV groups (kv_cache_coordinator.py, single_type_kv_cache_manager.py): each
has its own blocks for the same tokens, all from one pool. A block that a group's sliding window has passed is freed
while its request runs. A prefix is found as far as every group has all blocks that the next token attends to.
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving import columns as c
from kant.serving.columns import Table


@inlined
def content_of(requests: Table, shared: Table, limits: Table, r: int, k: int, group: int) -> int:
    """Return the content of the `k`-th full block of request `r` in a KV group."""
    if k < requests[r, c.SHARED]:
        return int(shared[requests[r, c.SHARED_FROM] + k] * limits[c.GROUPS] + group)
    return int((requests[r, c.OWN] - k) * limits[c.GROUPS] + group)


@inlined
def bucket_of(buckets: Table, content: int) -> int:
    """Return the hash bucket of a content."""
    mixed = (content & 0xFFFFFFFF) * 1103515245 + (content >> 32) * 40503
    return int((mixed ^ (mixed >> 15)) & (buckets.shape[0] - 1))


@inlined
def find(blocks: Table, buckets: Table, content: int) -> int:
    """Return the block that has held this content the longest; -1 if there is none."""
    b = buckets[bucket_of(buckets, content), 0]
    while b >= 0 and blocks[b, c.CONTENT] != content:
        b = blocks[b, c.NEXT_SAME]
    return int(b)


@inlined
def remember(blocks: Table, buckets: Table, b: int, content: int) -> None:
    """Add the content of block `b` to the prefix cache."""
    chain = bucket_of(buckets, content)
    last = buckets[chain, 1]
    blocks[b, c.CONTENT] = content
    blocks[b, c.NEXT_SAME] = -1
    blocks[b, c.BEFORE_SAME] = last
    if last >= 0:
        blocks[last, c.NEXT_SAME] = b
    else:
        buckets[chain, 0] = b
    buckets[chain, 1] = b


@inlined
def forget(blocks: Table, buckets: Table, b: int) -> None:
    """Remove the content of block `b` from the prefix cache."""
    chain = bucket_of(buckets, blocks[b, c.CONTENT])
    before, after = blocks[b, c.BEFORE_SAME], blocks[b, c.NEXT_SAME]
    if before >= 0:
        blocks[before, c.NEXT_SAME] = after
    else:
        buckets[chain, 0] = after
    if after >= 0:
        blocks[after, c.BEFORE_SAME] = before
    else:
        buckets[chain, 1] = before
    blocks[b, c.CONTENT] = c.NOTHING


@inlined
def unlink(blocks: Table, state: Table, b: int) -> None:
    """Remove block `b` from the free list."""
    before, after = blocks[b, c.BEFORE], blocks[b, c.NEXT]
    if before >= 0:
        blocks[before, c.NEXT] = after
    else:
        state[c.HEAD] = after
    if after >= 0:
        blocks[after, c.BEFORE] = before
    else:
        state[c.TAIL] = before
    state[c.FREE] -= 1


@inlined
def beyond(limits: Table, group: int, tokens: int) -> int:
    """Return how many leading blocks the token after the first `tokens` no longer attends to in a KV group."""
    window = limits[c.WINDOW + 2 * group]
    return int((tokens - window + 1) // limits[c.BLOCK]) if 0 < window <= tokens else 0


@inlined
def cached(
    requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, r: int, k: int, window: int
) -> bool:  # fmt: skip
    """Whether the cache has the `k`-th block of a request in every KV group with this window."""
    for group in range(limits[c.GROUPS]):
        if limits[c.WINDOW + 2 * group] != window:
            continue
        if find(blocks, buckets, content_of(requests, shared, limits, r, k, group)) < 0:
            return False
    return True


@inlined
def hits_of(requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, r: int) -> int:
    """Return how many leading blocks of a waiting request are in the cache. Its last token is always computed.

    A group of full attention needs all these blocks. A group with a window needs only the last ones, which the window
    covers. With drafts from hidden states, each window is tried one block further, and that block is then left out.
    """
    known, size, dropped = requests[r, c.PROMPT] + requests[r, c.DONE], limits[c.BLOCK], limits[c.DROPPED]
    most = known // size if dropped == 1 and limits[c.GROUPS] > 1 else (known - 1) // size
    hits, full = most, False
    for group in range(limits[c.GROUPS]):
        full = full or limits[c.WINDOW + 2 * group] == 0
    if full:
        hits = 0
        while hits < most and cached(requests, shared, blocks, buckets, limits, r, hits, 0):
            hits += 1
        hits = max(hits - dropped, 0)
    if limits[c.SLIDING] == 0:
        return int(hits)
    before, tried = hits + 1, 0  # a bit for each group whose further block has been tried
    while hits < before:
        before = hits
        for group in range(limits[c.GROUPS]):
            window, bit = limits[c.WINDOW + 2 * group], 1 << group
            if window == 0 or (group > 0 and limits[c.WINDOW + 2 * group - 2] == window):
                continue
            further = dropped if tried & bit == 0 else 0
            needed, k, found = (window + size - 2) // size + further, min(hits + further, most), 0
            while k > 0 and found < needed:
                k -= 1
                found = found + 1 if cached(requests, shared, blocks, buckets, limits, r, k, window) else 0
            if further == 1:
                tried |= bit
            elif k + found < hits:
                tried = 0
            hits = max(k + found - further, 0)
    return int(hits)


@inlined
def idle_among(requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, r: int, hits: int) -> int:
    """Return how many of the cached blocks of a waiting request are held by no other request."""
    idle = 0
    for group in range(limits[c.GROUPS]):
        for k in range(beyond(limits, group, hits * limits[c.BLOCK]), hits):
            if blocks[find(blocks, buckets, content_of(requests, shared, limits, r, k, group)), c.USERS] == 0:
                idle += 1
    return idle


@inlined
def take_hits(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table, r: int,
    hits: int,
) -> None:  # fmt: skip
    """Assign to request `r` the first `hits` blocks of its content from the cache."""
    for group in range(limits[c.GROUPS]):
        row = requests[r, c.BLOCK_ROW] * limits[c.GROUPS] + group
        requests[r, c.GONE + group] = beyond(limits, group, hits * limits[c.BLOCK])
        for k in range(requests[r, c.GONE + group], hits):
            b = find(blocks, buckets, content_of(requests, shared, limits, r, k, group))
            if blocks[b, c.USERS] == 0:
                unlink(blocks, state, b)
            blocks[b, c.USERS] += 1
            held[row, k] = b
    requests[r, c.HELD] = hits
    requests[r, c.HASHED] = hits


@inlined
def know(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, r: int, tokens: int
) -> None:  # fmt: skip
    """Add to the prefix cache the blocks that are filled by the first `tokens` tokens of request `r`."""
    full = tokens // limits[c.BLOCK]
    for group in range(limits[c.GROUPS]):
        row = requests[r, c.BLOCK_ROW] * limits[c.GROUPS] + group
        for k in range(max(requests[r, c.HASHED], requests[r, c.GONE + group]), full):
            remember(blocks, buckets, held[row, k], content_of(requests, shared, limits, r, k, group))
    requests[r, c.HASHED] = max(full, requests[r, c.HASHED])


@inlined
def grow(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table,
    r: int, tokens: int, slots: int,
) -> None:  # fmt: skip
    """Allocate blocks to request `r` for `slots` tokens (`tokens`, plus drafts). The caller checks that they are free.

    As in vLLM, the blocks that this step fills are in the cache at once, before the step has run. Blocks with a token
    that is still to be generated follow later.
    """
    wanted = (slots + limits[c.BLOCK] - 1) // limits[c.BLOCK]
    if limits[c.CACHING] == 0:
        if wanted > requests[r, c.HELD]:
            state[c.FREE] -= (wanted - requests[r, c.HELD]) * limits[c.GROUPS]
            requests[r, c.HELD] = wanted
    else:
        for group in range(limits[c.GROUPS]):
            row = requests[r, c.BLOCK_ROW] * limits[c.GROUPS] + group
            for k in range(requests[r, c.HELD], wanted):
                b = state[c.HEAD]
                unlink(blocks, state, b)
                if blocks[b, c.CONTENT] != c.NOTHING:
                    forget(blocks, buckets, b)
                blocks[b, c.USERS] = 1
                held[row, k] = b
        requests[r, c.HELD] = max(wanted, requests[r, c.HELD])
        certain = min(tokens, requests[r, c.PROMPT] + requests[r, c.DONE])
        know(requests, shared, blocks, buckets, held, limits, r, certain)
    state[c.MOST_HELD] = max(state[c.MOST_HELD], limits[c.USABLE] - state[c.FREE])


@inlined
def release(
    requests: Table, blocks: Table, held: Table, limits: Table, state: Table, r: int, group: int, end: int
) -> None:
    """Free the blocks of request `r` in a KV group before the `end`-th one: cached blocks go to the end of the free
    list, others to its front."""
    first = requests[r, c.GONE + group]
    requests[r, c.GONE + group] = end
    if limits[c.CACHING] == 0:
        state[c.FREE] += end - first
        return
    row = requests[r, c.BLOCK_ROW] * limits[c.GROUPS] + group
    after, last = state[c.HEAD], -1  # uncached blocks go before `after`, in their order
    for k in range(end - 1, first - 1, -1):
        b = held[row, k]
        blocks[b, c.USERS] -= 1
        if blocks[b, c.USERS] > 0:
            continue
        state[c.FREE] += 1
        if blocks[b, c.CONTENT] == c.NOTHING:
            blocks[b, c.BEFORE], blocks[b, c.NEXT] = last, after
            if last >= 0:
                blocks[last, c.NEXT] = b
            else:
                state[c.HEAD] = b
            if after >= 0:
                blocks[after, c.BEFORE] = b
            else:
                state[c.TAIL] = b
            last = b
        else:
            before = state[c.TAIL]
            blocks[b, c.BEFORE], blocks[b, c.NEXT] = before, -1
            if before >= 0:
                blocks[before, c.NEXT] = b
            else:
                state[c.HEAD] = b
            state[c.TAIL] = b
            if after < 0:
                after = b  # nothing was free: uncached blocks still go before this one


@inlined
def give_back(requests: Table, blocks: Table, held: Table, limits: Table, state: Table, r: int) -> None:
    """Free all blocks of request `r`."""
    for group in range(limits[c.GROUPS]):
        release(requests, blocks, held, limits, state, r, group, requests[r, c.HELD])
        requests[r, c.GONE + group] = 0
    requests[r, c.HELD] = 0
    requests[r, c.HASHED] = 0
    requests[r, c.COMPUTED] = 0


@inlined
def slide(requests: Table, blocks: Table, held: Table, limits: Table, state: Table, r: int) -> None:
    """Free the blocks of a running request that its sliding windows have passed, as far as completed steps allow."""
    for group in range(limits[c.GROUPS]):
        end = min(beyond(limits, group, requests[r, c.COMPUTED] - requests[r, c.FLYING]), requests[r, c.HELD])
        if end > requests[r, c.GONE + group]:
            release(requests, blocks, held, limits, state, r, group, end)
