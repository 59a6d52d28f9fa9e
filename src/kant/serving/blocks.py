"""The paged KV of an engine: free blocks in order of eviction, and the prefix cache over full blocks.

As in vLLM V1 (vllm/v1/core/block_pool.py, 0.32): a full block is identified by its content and all content before it;
unused blocks stay in the cache until they are needed, the least recently used first; of blocks with equal contents the
oldest is found. Without the prefix cache blocks are interchangeable, and only counted.
"""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving.columns import (
    BEFORE,
    BEFORE_SAME,
    BLOCK,
    BLOCK_ROW,
    CACHING,
    COMPUTED,
    CONTENT,
    DONE,
    FREE,
    HASHED,
    HEAD,
    HELD,
    MOST_HELD,
    NEXT,
    NEXT_SAME,
    NOTHING,
    OWN,
    PROMPT,
    SHARED,
    SHARED_FROM,
    TAIL,
    USABLE,
    USERS,
    Table,
)


@inlined
def content_of(requests: Table, shared: Table, r: int, k: int) -> int:
    """Return the content of the `k`-th full block of request `r`."""
    if k < requests[r, SHARED]:
        return int(shared[requests[r, SHARED_FROM] + k])
    return int(requests[r, OWN] - k)


@inlined
def bucket_of(buckets: Table, content: int) -> int:
    """Return the hash bucket of a content."""
    mixed = (content & 0xFFFFFFFF) * 1103515245 + (content >> 32) * 40503
    return int((mixed ^ (mixed >> 15)) & (buckets.shape[0] - 1))


@inlined
def find(blocks: Table, buckets: Table, content: int) -> int:
    """Return the block that has held a content the longest, -1 if there is none."""
    b = buckets[bucket_of(buckets, content), 0]
    while b >= 0 and blocks[b, CONTENT] != content:
        b = blocks[b, NEXT_SAME]
    return int(b)


@inlined
def remember(blocks: Table, buckets: Table, b: int, content: int) -> None:
    """Add the content of block `b` to the prefix cache."""
    chain = bucket_of(buckets, content)
    last = buckets[chain, 1]
    blocks[b, CONTENT] = content
    blocks[b, NEXT_SAME] = -1
    blocks[b, BEFORE_SAME] = last
    if last >= 0:
        blocks[last, NEXT_SAME] = b
    else:
        buckets[chain, 0] = b
    buckets[chain, 1] = b


@inlined
def forget(blocks: Table, buckets: Table, b: int) -> None:
    """Remove the content of block `b` from the prefix cache."""
    chain = bucket_of(buckets, blocks[b, CONTENT])
    before, after = blocks[b, BEFORE_SAME], blocks[b, NEXT_SAME]
    if before >= 0:
        blocks[before, NEXT_SAME] = after
    else:
        buckets[chain, 0] = after
    if after >= 0:
        blocks[after, BEFORE_SAME] = before
    else:
        buckets[chain, 1] = before
    blocks[b, CONTENT] = NOTHING


@inlined
def unlink(blocks: Table, state: Table, b: int) -> None:
    """Remove block `b` from the free list."""
    before, after = blocks[b, BEFORE], blocks[b, NEXT]
    if before >= 0:
        blocks[before, NEXT] = after
    else:
        state[HEAD] = after
    if after >= 0:
        blocks[after, BEFORE] = before
    else:
        state[TAIL] = before
    state[FREE] -= 1


@inlined
def hits_of(requests: Table, shared: Table, blocks: Table, buckets: Table, limits: Table, r: int) -> int:
    """Return the number of leading blocks of a waiting request in the cache; its last token is always computed."""
    most = (requests[r, PROMPT] + requests[r, DONE] - 1) // limits[BLOCK]
    k = 0
    while k < most and find(blocks, buckets, content_of(requests, shared, r, k)) >= 0:
        k += 1
    return int(k)


@inlined
def idle_among(requests: Table, shared: Table, blocks: Table, buckets: Table, r: int, hits: int) -> int:
    """Return how many of a waiting request's `hits` cached blocks no request holds."""
    idle = 0
    for k in range(hits):
        if blocks[find(blocks, buckets, content_of(requests, shared, r, k)), USERS] == 0:
            idle += 1
    return idle


@inlined
def take_hits(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, state: Table, r: int, hits: int
) -> None:
    """Assign to request `r` the first `hits` blocks of its content from the cache."""
    row = requests[r, BLOCK_ROW]
    for k in range(hits):
        b = find(blocks, buckets, content_of(requests, shared, r, k))
        if blocks[b, USERS] == 0:
            unlink(blocks, state, b)
        blocks[b, USERS] += 1
        held[row, k] = b
    requests[r, HELD] = hits
    requests[r, HASHED] = hits


@inlined
def know(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, r: int, tokens: int
) -> None:  # fmt: skip
    """Add the blocks that the first `tokens` tokens of request `r` fill to the prefix cache."""
    row = requests[r, BLOCK_ROW]
    full = tokens // limits[BLOCK]
    for k in range(requests[r, HASHED], full):
        remember(blocks, buckets, held[row, k], content_of(requests, shared, r, k))
    requests[r, HASHED] = max(full, requests[r, HASHED])


@inlined
def grow(
    requests: Table, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table, state: Table,
    r: int, tokens: int, slots: int,
) -> None:  # fmt: skip
    """Allocate blocks to request `r` for `slots` tokens, `tokens` without drafts; the caller has checked that they fit.

    As in vLLM, blocks that this step fills are in the cache from now on, before the step has run; where a token of
    theirs is still to be output, only once it is.
    """
    wanted = (slots + limits[BLOCK] - 1) // limits[BLOCK]
    if limits[CACHING] == 0:
        if wanted > requests[r, HELD]:
            state[FREE] -= wanted - requests[r, HELD]
            requests[r, HELD] = wanted
    else:
        row = requests[r, BLOCK_ROW]
        for k in range(requests[r, HELD], wanted):
            b = state[HEAD]
            unlink(blocks, state, b)
            if blocks[b, CONTENT] != NOTHING:
                forget(blocks, buckets, b)
            blocks[b, USERS] = 1
            held[row, k] = b
        requests[r, HELD] = max(wanted, requests[r, HELD])
        know(requests, shared, blocks, buckets, held, limits, r, min(tokens, requests[r, PROMPT] + requests[r, DONE]))
    state[MOST_HELD] = max(state[MOST_HELD], limits[USABLE] - state[FREE])


@inlined
def give_back(requests: Table, blocks: Table, held: Table, limits: Table, state: Table, r: int) -> None:
    """Free all blocks of request `r`: cached ones go to the end of the free list, others to the front."""
    if limits[CACHING] == 0:
        state[FREE] += requests[r, HELD]
    else:
        row = requests[r, BLOCK_ROW]
        after, last = state[HEAD], -1  # uncached blocks go before `after`, in their order
        for k in range(requests[r, HELD] - 1, -1, -1):
            b = held[row, k]
            blocks[b, USERS] -= 1
            if blocks[b, USERS] > 0:
                continue
            state[FREE] += 1
            if blocks[b, CONTENT] == NOTHING:
                blocks[b, BEFORE], blocks[b, NEXT] = last, after
                if last >= 0:
                    blocks[last, NEXT] = b
                else:
                    state[HEAD] = b
                if after >= 0:
                    blocks[after, BEFORE] = b
                else:
                    state[TAIL] = b
                last = b
            else:
                before = state[TAIL]
                blocks[b, BEFORE], blocks[b, NEXT] = before, -1
                if before >= 0:
                    blocks[before, NEXT] = b
                else:
                    state[HEAD] = b
                state[TAIL] = b
                if after < 0:
                    after = b  # nothing was free: uncached blocks still go before this one
    requests[r, HELD] = 0
    requests[r, HASHED] = 0
    requests[r, COMPUTED] = 0
