"""The steps of an engine: which requests a step computes, how long it takes, and which tokens it produces.

The rules are those of vLLM V1's scheduler, version 0.32 (vllm/v1/core/sched/scheduler.py, Apache-2.0), with synchronous
scheduling and chunked prefill; `kant serve verify` checks them against recorded runs of it. In short:

- running requests go first, in order of admission, then waiting ones by (priority,) arrival; all within the token
  budget;
- when blocks run out, the last admitted request is preempted, with priorities the worst running one, and waits again; a
  request that preempts itself ends the planning of running ones, and a step that has preempted admits nothing;
- a waiting request is admitted only if all its tokens so far fit in free blocks; the first that does not ends the plan;
- a threshold for long prompts, unchunked prompts, a watermark and admission by a step's tokens are settings.

Features that vLLM lacks are marked: preemption for seats by priority, swapping, and an external limit on admissions.
"""

from __future__ import annotations

from kant.compiled import compiled, inlined
from kant.serving.blocks import give_back, grow, hits_of, idle_among, take_hits
from kant.serving.columns import (
    ADMIT,
    ARRIVAL,
    BLOCK,
    BLOCK_ROW,
    BUSY,
    BY_PRIORITY,
    CACHED,
    CACHING,
    CHUNKED,
    CLOCK,
    COMPUTED,
    CONTEXT,
    DONE,
    END,
    ENDED,
    EXPERTS,
    FINISH,
    FINISHED,
    FIRST,
    FIXED,
    FLOOR,
    FREE,
    GAP,
    HASHED,
    HELD,
    HITS,
    IDLE,
    KV,
    KV_SECONDS,
    LAST,
    LONG,
    LOOKED_UP,
    MAX_SEQS,
    MISSED,
    MOVED,
    OUTPUT,
    OVERHEAD,
    PLANNED,
    PREEMPTED,
    PREEMPTIONS,
    PREEMPTIVE,
    PRIORITY,
    PROMPT,
    RAN,
    REACHED,
    RUNNING,
    RUNS,
    SLOPE,
    STATE,
    STEPS,
    STOPPED,
    STUCK,
    SWAP,
    SWAP_MS,
    SWAPPED,
    TIE,
    TOKENS,
    TOKENS_DONE,
    USABLE,
    WAITING,
    WAITS,
    WATERMARK,
    WHOLE,
    Table,
    Times,
)


@inlined
def before(requests: Table, times: Times, limits: Table, a: int, b: int) -> bool:
    """Whether request `a` is admitted before request `b`."""
    if limits[BY_PRIORITY] == 1 and times[a, PRIORITY] != times[b, PRIORITY]:
        return bool(times[a, PRIORITY] < times[b, PRIORITY])
    if times[a, ARRIVAL] != times[b, ARRIVAL]:
        return bool(times[a, ARRIVAL] < times[b, ARRIVAL])
    return bool(requests[a, TIE] < requests[b, TIE])


@inlined
def wait(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int) -> None:
    """Add request `r` to the heap of waiting requests."""
    i = state[WAITS]
    state[WAITS] += 1
    while i > 0 and before(requests, times, limits, r, waiting[(i - 1) >> 1]):
        waiting[i] = waiting[(i - 1) >> 1]
        i = (i - 1) >> 1
    waiting[i] = r
    requests[r, STATE] = WAITING


@inlined
def sink(requests: Table, times: Times, limits: Table, state: Table, waiting: Table, r: int, i: int) -> None:
    """Put request `r` at position `i` of the heap, or below."""
    size = state[WAITS]
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and before(requests, times, limits, waiting[child + 1], waiting[child]):
            child += 1
        if before(requests, times, limits, r, waiting[child]):
            break
        waiting[i] = waiting[child]
        i = child
    waiting[i] = r


@inlined
def pop(requests: Table, times: Times, limits: Table, state: Table, waiting: Table) -> int:
    """Remove and return the first waiting request."""
    r = waiting[0]
    state[WAITS] -= 1
    if state[WAITS] > 0:
        sink(requests, times, limits, state, waiting, waiting[state[WAITS]], 0)
    return int(r)


@inlined
def victim(times: Times, limits: Table, state: Table, running: Table) -> int:
    """Return the position of the next running request to preempt: the last; by priority the first of the worst."""
    worst = state[RUNS] - 1
    if limits[BY_PRIORITY] == 1:
        worst = 0
        for i in range(1, state[RUNS]):
            a, b = running[i], running[worst]
            if times[a, PRIORITY] > times[b, PRIORITY] or (
                times[a, PRIORITY] == times[b, PRIORITY] and times[a, ARRIVAL] > times[b, ARRIVAL]
            ):
                worst = i
    return int(worst)


@inlined
def preempt(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    running: Table, free_rows: Table, at: int,
) -> int:  # fmt: skip
    """Preempt the running request at position `at`; it waits again. Return the request."""
    r = running[at]
    for i in range(at + 1, state[RUNS]):
        running[i - 1] = running[i]
    state[RUNS] -= 1
    if limits[SWAP] == 1:  # not in vLLM V1
        requests[r, SWAPPED] = requests[r, COMPUTED]
        state[MOVED] += requests[r, COMPUTED]
    give_back(requests, blocks, held, limits, state, r)
    free_rows[limits[MAX_SEQS] - 1 - state[RUNS]] = requests[r, BLOCK_ROW]
    requests[r, BLOCK_ROW] = -1
    requests[r, PREEMPTED] += 1
    state[PREEMPTIONS] += 1
    wait(requests, times, limits, state, waiting, r)
    return int(r)


@inlined
def blocks_for(tokens: int, limits: Table) -> int:
    return int((tokens + limits[BLOCK] - 1) // limits[BLOCK])


@inlined
def make_room(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    running: Table, free_rows: Table, plan: Table,
) -> None:  # fmt: skip
    """Preempt running requests of worse priority than waiting ones that could take their place. Not in vLLM."""
    taken, claimed = 0, 0  # better requests that get a seat, kept in `plan` temporarily, and their blocks
    while state[WAITS] > 0:
        w = waiting[0]
        need = claimed + blocks_for(requests[w, PROMPT] + requests[w, DONE], limits)
        could = state[FREE]
        free_left = limits[MAX_SEQS] - state[RUNS] - taken
        for i in range(state[RUNS]):
            if times[running[i], PRIORITY] > times[w, PRIORITY]:
                could += requests[running[i], HELD]
                free_left += 1
        if min(could, limits[USABLE]) < need or free_left <= 0:  # shared blocks are counted for each holder
            break
        while state[RUNS] + taken >= limits[MAX_SEQS] or state[FREE] < need:
            at = victim(times, limits, state, running)
            if times[running[at], PRIORITY] <= times[w, PRIORITY]:
                break
            preempt(requests, times, blocks, held, limits, state, waiting, running, free_rows, at)
        if state[RUNS] + taken >= limits[MAX_SEQS] or state[FREE] < need:
            break
        plan[taken, 0] = pop(requests, times, limits, state, waiting)
        taken += 1
        claimed = need
    for k in range(taken):
        wait(requests, times, limits, state, waiting, plan[k, 0])


@inlined
def unplan(plan: Table, planned: int, r: int) -> int:
    """Remove request `r` from the plan; return its tokens."""
    k = 0
    while plan[k, 0] != r:
        k += 1
    tokens = plan[k, 1]
    for j in range(k + 1, planned):
        plan[j - 1, 0], plan[j - 1, 1] = plan[j, 0], plan[j, 1]
    return int(tokens)


@inlined
def schedule(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    state: Table, waiting: Table, running: Table, free_rows: Table, plan: Table,
) -> None:  # fmt: skip
    """Plan a step: rows of `plan` are (request, tokens), `state[PLANNED]` of them."""
    budget = limits[TOKENS]
    planned = 0
    state[MOVED] = 0
    if limits[PREEMPTIVE] == 1 and state[WAITS] > 0:
        make_room(requests, times, blocks, held, limits, state, waiting, running, free_rows, plan)
    most = limits[LONG] if state[RUNS] + state[WAITS] > 1 and limits[LONG] > 0 else limits[TOKENS]
    i, preempted = 0, False
    size, caching = limits[BLOCK], limits[CACHING] == 1
    while i < state[RUNS] and budget > 0:
        r = running[i]
        count = min(requests[r, PROMPT] + requests[r, DONE] - requests[r, COMPUTED], most, budget)
        tokens = requests[r, COMPUTED] + count
        room = requests[r, HELD] * size
        lost = False
        if tokens > room:  # most steps need no block: skip the division and the call
            wanted = blocks_for(tokens, limits) - requests[r, HELD]
            while wanted > state[FREE]:
                at = victim(times, limits, state, running)
                v = preempt(requests, times, blocks, held, limits, state, waiting, running, free_rows, at)
                preempted = True
                if at < i:  # it was already planned
                    i -= 1
                    budget += unplan(plan, planned, v)
                    planned -= 1
                if v == r:
                    lost = True
                    break
        if lost:
            break
        if tokens > room or (caching and tokens >= (requests[r, HASHED] + 1) * size):
            grow(requests, shared, blocks, buckets, held, limits, state, r, tokens)
        plan[planned, 0], plan[planned, 1] = r, count
        planned += 1
        budget -= count
        i += 1

    while not preempted and budget > 0 and state[WAITS] > 0 and state[RUNS] < limits[MAX_SEQS] and state[ADMIT] != 0:
        r = waiting[0]
        known = requests[r, PROMPT] + requests[r, DONE]
        hits, idle = 0, 0  # blocks found in the cache, and how many of them are unused
        swapped = requests[r, SWAPPED]
        if limits[CACHING] == 1 and swapped == 0:
            hits = hits_of(requests, shared, blocks, buckets, limits, r)
            idle = idle_among(requests, shared, blocks, buckets, r, hits)
        computed = min(swapped, known - 1) if swapped > 0 else hits * size
        count = min(known - computed, most)
        if limits[CHUNKED] == 0 and count > budget:
            break
        count = min(count, budget)
        fits = known if limits[WHOLE] == 1 else computed + count
        left = state[FREE] - (limits[WATERMARK] if state[RUNS] > 0 else 0)
        if blocks_for(fits, limits) - hits + idle > left:
            break
        pop(requests, times, limits, state, waiting)
        requests[r, BLOCK_ROW] = free_rows[limits[MAX_SEQS] - 1 - state[RUNS]]
        running[state[RUNS]] = r
        state[RUNS] += 1
        state[ADMIT] -= 1
        requests[r, STATE] = RUNNING
        if limits[CACHING] == 1:
            state[LOOKED_UP] += known
            state[HITS] += hits * size
        if requests[r, CACHED] < 0:
            requests[r, CACHED] = hits * size
        if swapped > 0:
            state[MOVED] += computed
            requests[r, SWAPPED] = 0
        if hits > 0:
            take_hits(requests, shared, blocks, buckets, held, state, r, hits)
        requests[r, COMPUTED] = computed
        grow(requests, shared, blocks, buckets, held, limits, state, r, computed + count)
        plan[planned, 0], plan[planned, 1] = r, count
        planned += 1
        budget -= count
    state[PLANNED] = planned


@inlined
def begin(requests: Table, times: Times, latency: Times, state: Table, clock: Times, plan: Table) -> None:
    """Count the planned tokens as computed, and set when the step ends: the arithmetic of the recorded runs."""
    tokens, decode, chunks = 0, 0, 0.0
    for k in range(state[PLANNED]):
        r, count = plan[k, 0], plan[k, 1]
        requests[r, COMPUTED] += count
        tokens += count
        if count == 1 and requests[r, DONE] > 0:
            decode += requests[r, COMPUTED]
        else:
            chunks += count * ((requests[r, COMPUTED] - count) + count / 2)
    floor = latency[FLOOR]
    if latency[EXPERTS] > 0:
        floor += latency[EXPERTS] * (1 - latency[MISSED] ** tokens)
    ms = max(floor, latency[SLOPE] * tokens + latency[FIXED]) + decode * latency[KV]
    ms = ms + chunks * latency[CONTEXT] + latency[OVERHEAD]
    if state[MOVED] > 0:
        ms += state[MOVED] * latency[SWAP_MS]
    clock[END] = clock[CLOCK] + ms / 1e3


@inlined
def complete(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, clock: Times,
    running: Table, free_rows: Table, plan: Table, ended: Table,
) -> None:  # fmt: skip
    """End the current step: produce tokens, and remove requests that have finished."""
    now = clock[END]
    took = now - clock[CLOCK]
    clock[BUSY] += took
    clock[KV_SECONDS] += took * (limits[USABLE] - state[FREE])
    clock[CLOCK] = now
    left = 0
    for k in range(state[PLANNED]):
        r = plan[k, 0]
        state[TOKENS_DONE] += plan[k, 1]
        if requests[r, COMPUTED] < requests[r, PROMPT] + requests[r, DONE]:
            continue
        requests[r, DONE] += 1
        if requests[r, DONE] == 1:
            times[r, FIRST] = now
        else:
            times[r, GAP] = max(times[r, GAP], now - times[r, LAST])
        times[r, LAST] = now
        if requests[r, DONE] == requests[r, OUTPUT]:
            times[r, FINISH] = now
            give_back(requests, blocks, held, limits, state, r)
            requests[r, STATE] = FINISHED
            ended[state[ENDED]] = r
            state[ENDED] += 1
            left += 1
    if left > 0:
        kept = 0
        for i in range(state[RUNS]):
            r = running[i]
            if requests[r, STATE] == FINISHED:
                free_rows[limits[MAX_SEQS] - state[RUNS] + i - kept] = requests[r, BLOCK_ROW]
                requests[r, BLOCK_ROW] = -1
            else:
                running[kept] = r
                kept += 1
        state[RUNS] = kept
    state[RAN] = state[PLANNED]
    state[PLANNED] = 0
    state[STEPS] += 1


@compiled
def run(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    latency: Times, state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table,
    ended: Table, until: float, steps: int, stop_at_finish: bool,
) -> int:  # fmt: skip
    """Run an engine: end steps that end by `until`, and begin steps before it, but at most `steps`.

    Returns REACHED; IDLE if no request waits or runs; STOPPED after `steps` steps or, if asked, at a step in which a
    request finished; STUCK if the waiting requests can never be admitted. Finished requests are in `ended`.
    """
    begun = 0
    while True:
        if state[PLANNED] > 0:
            if clock[END] > until:
                return REACHED
            had = state[ENDED]
            complete(requests, times, blocks, held, limits, state, clock, running, free_rows, plan, ended)
            if stop_at_finish and state[ENDED] > had:
                return STOPPED
        if state[RUNS] + state[WAITS] == 0:
            return IDLE
        if clock[CLOCK] >= until:
            return REACHED
        if begun == steps:
            return STOPPED
        preemptions = state[PREEMPTIONS]
        schedule(
            requests, times, shared, blocks, buckets, held, limits, state, waiting, running, free_rows, plan
        )  # fmt: skip
        if state[PLANNED] > 0:
            begin(requests, times, latency, state, clock, plan)
            begun += 1
        elif state[PREEMPTIONS] == preemptions:
            return STUCK
