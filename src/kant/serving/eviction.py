"""Who loses seat and blocks to others: the rules of preemption, vLLM's and one that it lacks."""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving.blocks import give_back
from kant.serving.columns import (
    AHEAD,
    ARRIVAL,
    BLOCK,
    BLOCK_ROW,
    BY_PRIORITY,
    CAP,
    COMPUTED,
    CONNECTED,
    COUNT,
    DONE,
    DRAFTS,
    FREE,
    GONE,
    GROUPS,
    HELD,
    MAX_SEQS,
    MOVED,
    PREEMPTED,
    PREEMPTIONS,
    PRIORITY,
    PROMPT,
    RUNS,
    SWAP,
    SWAPPED,
    USABLE,
    WAITS,
    WHO,
    Table,
    Times,
)
from kant.serving.waiting import pop, wait


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
    requests[r, AHEAD] *= -1
    requests[r, DRAFTS] = 0
    requests[r, PREEMPTED] += 1
    state[PREEMPTIONS] += 1
    if limits[CONNECTED] == 1 and limits[BY_PRIORITY] == 0:
        times[r, PRIORITY] = -state[PREEMPTIONS]  # before all others, who may have come earlier
    wait(requests, times, limits, state, waiting, r)
    return int(r)


@inlined
def unplan(plan: Table, base: int, planned: int, r: int) -> int:
    """Remove request `r` from the plan; return its tokens, 0 if it is not there."""
    k = base
    while k < base + planned and plan[k, WHO] != r:
        k += 1
    if k == base + planned:
        return 0
    tokens = plan[k, COUNT]
    for j in range(k + 1, base + planned):
        plan[j - 1, WHO], plan[j - 1, COUNT] = plan[j, WHO], plan[j, COUNT]
    return int(tokens)


@inlined
def blocks_for(tokens: int, limits: Table) -> int:
    """Return the blocks of so many tokens, in all KV groups together."""
    return int((tokens + limits[BLOCK] - 1) // limits[BLOCK] * limits[GROUPS])


@inlined
def reserved_for(tokens: int, hits: int, limits: Table) -> int:
    """Return the blocks that the admission of a request with so many tokens reserves, beyond `hits` in each KV group.

    As in vLLM, a group with a sliding window counts only what a request may hold there at once.
    """
    wanted, found = (tokens + limits[BLOCK] - 1) // limits[BLOCK], 0
    for group in range(limits[GROUPS]):
        found += max(min(wanted, limits[CAP + 2 * group]) - hits, 0)
    return int(found)


@inlined
def make_room(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    running: Table, free_rows: Table, plan: Table, base: int,
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
                could += requests[running[i], HELD] * limits[GROUPS]
                for group in range(limits[GROUPS]):
                    could -= requests[running[i], GONE + group]
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
        plan[base + taken, WHO] = pop(requests, times, limits, state, waiting)
        taken += 1
        claimed = need
    for k in range(taken):
        wait(requests, times, limits, state, waiting, plan[base + k, WHO])
