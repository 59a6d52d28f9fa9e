"""Which requests lose their seat and blocks to others: vLLM's rules of preemption, and one rule of ours."""

from __future__ import annotations

from kant.compiled import inlined
from kant.serving import columns as c
from kant.serving.blocks import give_back
from kant.serving.columns import Table, Times
from kant.serving.waiting import pop, wait


@inlined
def victim(times: Times, limits: Table, state: Table, running: Table) -> int:
    """Return the position of the next running request to preempt: the last one; with priorities, the worst one."""
    worst = state[c.RUNS] - 1
    if limits[c.BY_PRIORITY] == 1:
        worst = 0
        for i in range(1, state[c.RUNS]):
            a, b = running[i], running[worst]
            if times[a, c.PRIORITY] > times[b, c.PRIORITY] or (
                times[a, c.PRIORITY] == times[b, c.PRIORITY] and times[a, c.ARRIVAL] > times[b, c.ARRIVAL]
            ):
                worst = i
    return int(worst)


@inlined
def preempt(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    running: Table, free_rows: Table, at: int,
) -> int:  # fmt: skip
    """Preempt the running request at position `at`, so that it waits again. Returns the request."""
    r = running[at]
    for i in range(at + 1, state[c.RUNS]):
        running[i - 1] = running[i]
    state[c.RUNS] -= 1
    if limits[c.SWAP] == 1:  # not in vLLM V1
        requests[r, c.SWAPPED] = requests[r, c.COMPUTED]
        state[c.MOVED] += requests[r, c.COMPUTED]
    give_back(requests, blocks, held, limits, state, r)
    free_rows[limits[c.MAX_SEQS] - 1 - state[c.RUNS]] = requests[r, c.BLOCK_ROW]
    requests[r, c.BLOCK_ROW] = -1
    requests[r, c.AHEAD] *= -1
    requests[r, c.DRAFTS] = 0
    requests[r, c.PREEMPTED] += 1
    state[c.PREEMPTIONS] += 1
    if limits[c.CONNECTED] == 1 and limits[c.BY_PRIORITY] == 0:
        times[r, c.PRIORITY] = -state[c.PREEMPTIONS]  # before all others, even those that arrived earlier
    wait(requests, times, limits, state, waiting, r)
    return int(r)


@inlined
def unplan(plan: Table, base: int, planned: int, r: int) -> int:
    """Remove request `r` from the plan. Returns its planned tokens; 0 if it is not in the plan."""
    k = base
    while k < base + planned and plan[k, c.WHO] != r:
        k += 1
    if k == base + planned:
        return 0
    tokens = plan[k, c.COUNT]
    for j in range(k + 1, base + planned):
        plan[j - 1, c.WHO], plan[j - 1, c.COUNT] = plan[j, c.WHO], plan[j, c.COUNT]
    return int(tokens)


@inlined
def blocks_for(tokens: int, limits: Table) -> int:
    """Return the number of blocks of this many tokens, in all KV groups together."""
    return int((tokens + limits[c.BLOCK] - 1) // limits[c.BLOCK] * limits[c.GROUPS])


@inlined
def reserved_for(tokens: int, hits: int, limits: Table) -> int:
    """Return how many blocks are reserved when a request with this many tokens is admitted, beyond `hits` per KV group.

    As in vLLM, a group with a sliding window counts only the blocks that a request may hold there at once.
    """
    wanted, found = (tokens + limits[c.BLOCK] - 1) // limits[c.BLOCK], 0
    for group in range(limits[c.GROUPS]):
        found += max(min(wanted, limits[c.CAP + 2 * group]) - hits, 0)
    return int(found)


@inlined
def make_room(
    requests: Table, times: Times, blocks: Table, held: Table, limits: Table, state: Table, waiting: Table,
    running: Table, free_rows: Table, plan: Table, base: int,
) -> None:  # fmt: skip
    """Preempt running requests of worse priority than waiting ones that could take their place. This is not in vLLM."""
    taken, claimed = 0, 0  # better requests that get a seat, kept in `plan` temporarily, and their blocks
    while state[c.WAITS] > 0:
        w = waiting[0]
        need = claimed + blocks_for(requests[w, c.PROMPT] + requests[w, c.DONE], limits)
        could = state[c.FREE]
        free_left = limits[c.MAX_SEQS] - state[c.RUNS] - taken
        for i in range(state[c.RUNS]):
            if times[running[i], c.PRIORITY] > times[w, c.PRIORITY]:
                could += requests[running[i], c.HELD] * limits[c.GROUPS]
                for group in range(limits[c.GROUPS]):
                    could -= requests[running[i], c.GONE + group]
                free_left += 1
        if min(could, limits[c.USABLE]) < need or free_left <= 0:  # shared blocks are counted for each holder
            break
        while state[c.RUNS] + taken >= limits[c.MAX_SEQS] or state[c.FREE] < need:
            at = victim(times, limits, state, running)
            if times[running[at], c.PRIORITY] <= times[w, c.PRIORITY]:
                break
            preempt(requests, times, blocks, held, limits, state, waiting, running, free_rows, at)
        if state[c.RUNS] + taken >= limits[c.MAX_SEQS] or state[c.FREE] < need:
            break
        plan[base + taken, c.WHO] = pop(requests, times, limits, state, waiting)
        taken += 1
        claimed = need
    for k in range(taken):
        wait(requests, times, limits, state, waiting, plan[base + k, c.WHO])
