"""The plan of a step: which requests it computes, and how many tokens of each. `kernel.py` has the rules."""

from __future__ import annotations

from kant.compiled import merged
from kant.serving import columns as c
from kant.serving.blocks import give_back, grow, hits_of, idle_among, know, slide, take_hits
from kant.serving.columns import Table, Times
from kant.serving.eviction import blocks_for, make_room, preempt, reserved_for, unplan, victim
from kant.serving.loading import left_of_prefills, put, take
from kant.serving.offload import fetch, found, land, stash
from kant.serving.waiting import pop, wait


@merged
def schedule(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table, base: int,
    ahead: bool, drafts: bool, windows: bool, connected: bool,
) -> int:  # fmt: skip
    """Plan a step: write its requests and their tokens to rows of `plan` from `base` on. Returns the number of rows."""
    budget = limits[c.TOKENS]
    planned = 0
    state[c.MOVED] = 0
    if connected and limits[c.HOST] > 0:
        land(requests, times, shared, blocks, buckets, limits, state, clock, waiting)
    if limits[c.PREEMPTIVE] == 1 and state[c.WAITS] > 0:
        make_room(requests, times, blocks, held, limits, state, waiting, running, free_rows, plan, base)
    alone = state[c.RUNS] + state[c.WAITS] + (state[c.LOADS] if connected else 0) == 1
    most = limits[c.LONG] if not alone and limits[c.LONG] > 0 else limits[c.TOKENS]
    i, preempted, prefills = 0, False, False
    size, caching = limits[c.BLOCK], limits[c.CACHING] == 1
    while i < state[c.RUNS] and budget > 0:
        r = running[i]
        known = requests[r, c.PROMPT] + requests[r, c.DONE]
        if ahead:
            sure = requests[r, c.COMPUTED] + 2 - requests[r, c.AHEAD]
            if requests[r, c.AHEAD] > 0 and sure >= requests[r, c.PROMPT] + requests[r, c.MOST]:
                i += 1  # the current step outputs its last token
                continue
            known += requests[r, c.AHEAD]
        if drafts:
            known += requests[r, c.DRAFTS]
        count = min(known - requests[r, c.COMPUTED], most, budget)
        tokens = requests[r, c.COMPUTED] + count
        slots = tokens + (limits[c.LOOKAHEAD] if drafts else 0)
        room = requests[r, c.HELD] * size
        lost = False
        if windows:
            slide(requests, blocks, held, limits, state, r)
        if slots > room:  # most steps need no block: skip the division and the call
            wanted = blocks_for(slots, limits) - requests[r, c.HELD] * limits[c.GROUPS]
            while wanted > state[c.FREE]:
                at = victim(times, limits, state, running)
                if ahead and connected and limits[c.SENDS] == 0 and requests[running[at], c.FLYING] > 0:
                    lost = True  # the current step, or a transfer, may write to the victim's blocks
                    break
                v = preempt(requests, times, blocks, held, limits, state, waiting, running, free_rows, at)
                preempted = True
                if at < i:  # request `v` is in this plan, or ends with the current step
                    i -= 1
                    freed = unplan(plan, base, planned, v)
                    budget += freed
                    planned -= freed > 0
                if v == r:
                    lost = True
                    break
        if lost:
            break
        if slots > room or (caching and tokens >= (requests[r, c.HASHED] + 1) * size):
            grow(requests, shared, blocks, buckets, held, limits, state, r, tokens, slots)
        if drafts and requests[r, c.DRAFTS] == 0:
            prefills = True
        plan[base + planned, c.WHO], plan[base + planned, c.COUNT] = r, count
        planned += 1
        budget -= count
        i += 1

    decodes, blocked = planned, False
    if connected and not preempted:
        i = 0
        while i < state[c.LOADS] and budget > 0 and state[c.RUNS] < limits[c.MAX_SEQS]:
            r = waiting[len(waiting) - 1 - i]
            if times[r, c.LOADED] > clock[c.CLOCK]:
                i += 1
                continue
            known = requests[r, c.PROMPT] + requests[r, c.DONE]
            if requests[r, c.REMOTE] > 0:
                if requests[r, c.SWAPPED] == 0:
                    give_back(requests, blocks, held, limits, state, r)
                elif limits[c.CACHING] == 1:
                    know(requests, shared, blocks, buckets, held, limits, r, requests[r, c.SWAPPED])
                requests[r, c.COMPUTED] = min(requests[r, c.SWAPPED], known - 1)
                requests[r, c.REMOTE] = requests[r, c.SWAPPED] = 0
            hits, idle = 0, 0
            # if none of the KV has arrived, the request is treated as new
            if limits[c.CACHING] == 1 and requests[r, c.HELD] == 0:
                hits = hits_of(requests, shared, blocks, buckets, limits, r)
                idle = idle_among(requests, shared, blocks, buckets, limits, r, hits)
            computed = requests[r, c.COMPUTED] + hits * size
            count = known - computed
            if drafts and count == 1 and not prefills and (decodes > 0 or computed > 0):
                count += limits[c.SPECULATIVE]  # padded, as below
                if count > budget:
                    blocked = True
                    break
            count = min(count, most)
            if limits[c.CHUNKED] == 0 and count > budget:
                blocked = True
                break
            count = min(count, budget)
            tokens = computed + count
            slots = tokens + (limits[c.LOOKAHEAD] if drafts else 0)
            wanted = max(blocks_for(slots, limits), blocks_for(known, limits) if limits[c.WHOLE] == 1 else 0)
            wanted += idle - max(requests[r, c.HELD], hits)
            if wanted > state[c.FREE] - (limits[c.WATERMARK] if state[c.RUNS] > 0 else 0):
                blocked = True
                break
            take(waiting, state, i)
            running[state[c.RUNS]] = r
            state[c.RUNS] += 1
            requests[r, c.STATE] = c.RUNNING
            if requests[r, c.CACHED] < 0:
                requests[r, c.CACHED] = computed
            if hits > 0:
                take_hits(requests, shared, blocks, buckets, held, limits, state, r, hits)
            requests[r, c.COMPUTED] = computed
            grow(requests, shared, blocks, buckets, held, limits, state, r, tokens, slots)
            plan[base + planned, c.WHO], plan[base + planned, c.COUNT] = r, count
            planned += 1
            budget -= count
    blocked = blocked or preempted
    last, skipped, row, fresh = state[c.WAITS] - 1, 0, base + planned, state[c.RUNS]
    while (
        not blocked and budget > 0 and state[c.WAITS] > 0 and state[c.RUNS] < limits[c.MAX_SEQS] and state[c.ADMIT] != 0
    ):
        r = waiting[0]
        if ahead and requests[r, c.AHEAD] < 0:
            break  # a token of this request is under way; never so in vLLM, which admits nothing after a preemption
        known = requests[r, c.PROMPT] + requests[r, c.DONE]
        hits, idle = 0, 0  # blocks found in the cache, and how many of them are unused
        swapped = requests[r, c.SWAPPED]
        if limits[c.CACHING] == 1 and swapped == 0:
            hits = hits_of(requests, shared, blocks, buckets, limits, r)
            idle = idle_among(requests, shared, blocks, buckets, limits, r, hits)
        computed = min(swapped, known - 1) if swapped > 0 else hits * size
        loads, slots = connected and requests[r, c.REMOTE] == 1, known
        if connected and limits[c.HOST] > 0:
            more = found(requests, shared, blocks, buckets, limits, state, r, hits)
            if more < 0:  # not known yet: the request is set aside, and the next one tried
                waiting[last - skipped] = pop(requests, times, limits, state, waiting)
                skipped += 1
                continue
            loads, slots = more > 0, (hits + more) * size
        count = known - computed
        if not loads:
            if drafts and count == 1 and not prefills and (decodes > 0 or computed > 0):
                count += limits[c.SPECULATIVE]  # padded, so that all decode the same number of tokens
                if count > budget:
                    break
            count = min(count, most)
            if limits[c.CHUNKED] == 0 and count > budget:
                break
            count = min(count, budget)
            slots = computed + count + (limits[c.LOOKAHEAD] if drafts else 0)
        wanted = blocks_for(slots, limits) - hits * limits[c.GROUPS]
        if loads:
            wanted += left_of_prefills(requests, limits, state, running, waiting, plan, row, fresh)
        if limits[c.WHOLE] == 1:
            wanted = max(wanted, reserved_for(known, hits, limits))
        if wanted + idle > state[c.FREE] - (limits[c.WATERMARK] if state[c.RUNS] > 0 else 0):
            break
        pop(requests, times, limits, state, waiting)
        if loads:
            requests[r, c.BLOCK_ROW], requests[r, c.STATE] = 2 * r, c.LOADING
            if hits > 0:
                take_hits(requests, shared, blocks, buckets, held, limits, state, r, hits)
            grow(requests, shared, blocks, buckets, held, limits, state, r, 0, slots)
            if limits[c.HOST] > 0:
                state[c.LOOKED_UP] += known
                state[c.HITS] += hits * size
                state[c.HOST_HITS] += slots - hits * size
                fetch(requests, times, shared, blocks, buckets, held, limits, 2 * r, r, hits, slots // size - hits)
            else:
                times[r, c.LOADED] += clock[c.CLOCK]
                requests[r, c.SWAPPED] = known
                if requests[r, c.COMES] < known:
                    requests[r, c.SWAPPED] = max(requests[r, c.COMES] // size, hits) * size
            put(requests, times, limits, waiting, state, r)
            continue
        requests[r, c.BLOCK_ROW] = 2 * r if connected else free_rows[limits[c.MAX_SEQS] - 1 - state[c.RUNS]]
        running[state[c.RUNS]] = r
        state[c.RUNS] += 1
        state[c.ADMIT] -= 1
        requests[r, c.STATE] = c.RUNNING
        if limits[c.CACHING] == 1:
            state[c.LOOKED_UP] += known
            state[c.HITS] += hits * size
        if requests[r, c.CACHED] < 0:
            requests[r, c.CACHED] = hits * size
        if swapped > 0:
            state[c.MOVED] += computed
            requests[r, c.SWAPPED] = 0
        if hits > 0:
            take_hits(requests, shared, blocks, buckets, held, limits, state, r, hits)
        requests[r, c.COMPUTED] = computed
        grow(requests, shared, blocks, buckets, held, limits, state, r, computed + count, slots)
        plan[base + planned, c.WHO], plan[base + planned, c.COUNT] = r, count
        planned += 1
        budget -= count
    for i in range(skipped - 1, -1, -1):
        wait(requests, times, limits, state, waiting, waiting[last - i])
    if connected and limits[c.HOST] > 0:
        stash(
            requests, times, shared, blocks, buckets, held, limits, state, clock, waiting, plan, base, planned
        )  # fmt: skip
    return int(planned)
