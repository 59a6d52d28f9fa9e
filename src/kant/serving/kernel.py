"""The steps of an engine: which requests a step computes, how long it takes, and which tokens it produces.

The rules are those of vLLM V1's scheduler, version 0.32 (vllm/v1/core/sched/scheduler.py, Apache-2.0), and of its
engine core's queue of batches; `kant serve verify` checks them against recorded runs of both. In short:

- running requests go first, in order of admission, then waiting ones by (priority,) arrival; all within the token
  budget;
- when blocks run out, the last admitted request is preempted, with priorities the worst running one, and waits again; a
  request that preempts itself ends the planning of running ones, and a step that has preempted admits nothing;
- a waiting request is admitted only if all its tokens so far fit in free blocks; the first that does not ends the plan;
- a threshold for long prompts, unchunked prompts, a watermark and admission by a step's tokens are settings;
- with asynchronous scheduling, vLLM's default, a step is planned when the one before it begins: a request goes on
  before its last token is known, and keeps seat and blocks for a step after its end; one that is preempted meanwhile
  still gets the token that is under way, and may end while it waits;
- with speculation a request's step also verifies drafts: it outputs those accepted and one more;
- in a KV group with a sliding window a running request gives back what the window has left behind (`blocks.slide`).

Features that vLLM lacks are marked: preemption for seats by priority, swapping, and an external limit on admissions.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.compiled import compiled_at_once, inlined, merged
from kant.serving.blocks import give_back, know
from kant.serving.columns import (
    ACCEPTED,
    AHEAD,
    ASYNC,
    BLOCK,
    BLOCK_ROW,
    BLOCKED,
    BUSY,
    CACHING,
    CLOCK,
    COMPUTED,
    CONNECTED,
    CONTEXT,
    COUNT,
    DONE,
    DRAFTS,
    END,
    ENDED,
    EXPERTS,
    FAILS,
    FINISH,
    FINISHED,
    FIRST,
    FIRST_LEFT,
    FIXED,
    FLOOR,
    FLUSHED,
    FLYING,
    FOREVER,
    FREE,
    GAP,
    HASHED,
    HELD,
    HOST,
    IDLE,
    KV,
    KV_SECONDS,
    LAST,
    LAST_LEFT,
    LOADED,
    LOADS,
    LOOKED,
    MAX_SEQS,
    MISSED,
    MOVED,
    NEXT_ENDED,
    NEXT_MS,
    NEXT_PLANNED,
    OUTPUT,
    OVERHEAD,
    PADDED,
    PLANNED,
    PREEMPTIONS,
    PROMPT,
    RAN,
    REACHED,
    REMOTE,
    RUNNING,
    RUNS,
    SAMPLES,
    SEED,
    SENDS,
    SLIDING,
    SLOPE,
    SPECULATIVE,
    STATE,
    STEPS,
    STOPPED,
    STUCK,
    SWAP_MS,
    TOKENS_DONE,
    TURN,
    USABLE,
    WAITING,
    WAITS,
    WHO,
    Table,
    Times,
)
from kant.serving.loading import fail, first_loaded, send
from kant.serving.offload import next_stored, settle
from kant.serving.planning import schedule
from kant.serving.waiting import leave


@merged
def begin(
    requests: Table, limits: Table, latency: Times, state: Table, plan: Table, base: int, planned: int, ahead: bool,
    drafts: bool, windows: bool, connected: bool,
) -> float:  # fmt: skip
    """Count the planned tokens as computed; return the step's ms, by the arithmetic of the recorded runs."""
    tokens, decode, chunks = 0, 0, 0.0
    for k in range(base, base + planned):
        r, count = plan[k, WHO], plan[k, COUNT]
        requests[r, COMPUTED] += count
        tokens += count
        output = requests[r, DONE]
        if ahead:
            output += requests[r, AHEAD]
            if windows or connected:
                requests[r, FLYING] += count
        if ahead or drafts:
            samples = max(requests[r, COMPUTED] + 1 - requests[r, PROMPT] - output, 0)
            plan[k, SAMPLES] = samples
            if ahead:
                requests[r, AHEAD] += samples
            if drafts and samples > 0:
                count -= samples - 1
                if requests[r, DRAFTS] == 0 and samples > 1:
                    plan[k, SAMPLES] += PADDED
                requests[r, DRAFTS] = limits[SPECULATIVE]
        if count == 1 and output > 0:
            decode += requests[r, COMPUTED]
        else:
            count = plan[k, COUNT]
            chunks += count * ((requests[r, COMPUTED] - count) + count / 2)
    floor = latency[FLOOR]
    if latency[EXPERTS] > 0:
        floor += latency[EXPERTS] * (1 - latency[MISSED] ** tokens)
    ms = max(floor, latency[SLOPE] * tokens + latency[FIXED]) + decode * latency[KV]
    ms = ms + chunks * latency[CONTEXT] + latency[OVERHEAD]
    if state[MOVED] > 0:
        ms += state[MOVED] * latency[SWAP_MS]
    return float(ms)


@inlined
def verified(requests: Table, limits: Table, r: int, samples: int) -> int:
    """Return the tokens that a request outputs, of the `samples` of its plan: one and the drafts that are accepted."""
    count = 1
    while count < samples and samples < PADDED:
        mixed = (requests[r, SEED] * 2654435761 + (requests[r, DONE] + count) * 40503) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
        if ((mixed ^ (mixed >> 13)) & 0xFFFF) >= limits[ACCEPTED]:
            break
        count += 1
    return count


@merged
def complete(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table, base: int,
    ended: Table, ahead: bool, drafts: bool, windows: bool, connected: bool,
) -> None:  # fmt: skip
    """End the current step: produce tokens, and remove requests that have finished."""
    now = clock[END]
    took = now - clock[CLOCK]
    clock[BUSY] += took
    clock[KV_SECONDS] += took * (limits[USABLE] - state[FREE])
    clock[CLOCK] = now
    left = 0
    if ahead and connected and limits[SENDS] == 0:  # what had ended before this step began frees its blocks now
        for k in range(base, base + state[PLANNED]):
            r = plan[k, WHO]
            if requests[r, STATE] == FINISHED and requests[r, HELD] > 0:
                requests[r, BLOCK_ROW] = 2 * r
                give_back(requests, blocks, held, limits, state, r)
    for k in range(base, base + state[PLANNED]):
        r = plan[k, WHO]
        state[TOKENS_DONE] += plan[k, COUNT]
        tokens = 1
        if ahead and (windows or connected):
            requests[r, FLYING] -= plan[k, COUNT]
        if ahead or drafts:
            if requests[r, STATE] >= FINISHED:
                plan[k, SAMPLES] = -1
            if connected and limits[SENDS] == 1 and requests[r, STATE] == WAITING:
                plan[k, SAMPLES], requests[r, AHEAD] = -1, 0  # it was preempted: its KV could not be sent if it ended
            if plan[k, SAMPLES] <= 0:
                continue
            if drafts:
                tokens = verified(requests, limits, r, plan[k, SAMPLES])
        elif requests[r, COMPUTED] < requests[r, PROMPT] + requests[r, DONE]:
            continue
        first = requests[r, DONE] == 0
        samples = 1
        if drafts:
            samples = plan[k, SAMPLES] & (PADDED - 1)
            if requests[r, STATE] == RUNNING:
                requests[r, COMPUTED] -= samples - tokens
            beyond = max(tokens - (requests[r, OUTPUT] - requests[r, DONE]), 0)  # after a stop token
            samples, tokens = samples - beyond, tokens - beyond
        requests[r, DONE] += tokens
        if ahead:
            runs = requests[r, STATE] == RUNNING  # else it was preempted meanwhile
            requests[r, AHEAD] -= samples if runs else -samples
            if runs and limits[CACHING] == 1:
                known = requests[r, COMPUTED] - requests[r, AHEAD]
                if known >= (requests[r, HASHED] + 1) * limits[BLOCK]:
                    know(requests, shared, blocks, buckets, held, limits, r, known)
        if first:
            times[r, FIRST] = now
        else:
            times[r, GAP] = max(times[r, GAP], now - times[r, LAST])
        times[r, LAST] = now
        if requests[r, DONE] == requests[r, OUTPUT]:
            times[r, FINISH] = now
            if requests[r, STATE] == RUNNING:
                if connected and requests[r, REMOTE] == 3:
                    times[r, LOADED] += now
                elif not (ahead and connected and limits[SENDS] == 0 and requests[r, FLYING] > 0):
                    give_back(requests, blocks, held, limits, state, r)
                left += 1
            else:
                leave(requests, times, limits, state, waiting, r)
            requests[r, STATE] = FINISHED
            if connected and (limits[HOST] > 0 or limits[SENDS] == 1):
                if state[LAST_LEFT] > 0:
                    requests[state[LAST_LEFT] - 1, NEXT_ENDED] = r + 1
                else:
                    state[FIRST_LEFT] = r + 1
                state[LAST_LEFT] = r + 1
            ended[state[ENDED]] = r
            state[ENDED] += 1
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


@inlined
def left_over(state: Table, connected: bool) -> int:
    """Return how many requests a step that is planned now would look at."""
    return int(state[RUNS] + state[WAITS] + (state[LOADS] + state[FIRST_LEFT] if connected else 0))


@inlined
def begins(clock: Times, now: float, connected: bool) -> float:
    """Return when a step begins that could begin now."""
    return float(max(now, clock[FLUSHED]) if connected else now)


@merged
def drive(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    latency: Times, state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table,
    ended: Table, until: float, steps: int, stop_at_finish: bool, ahead: bool, drafts: bool,
    windows: bool, connected: bool,
) -> int:  # fmt: skip
    """Run an engine: end steps that end by `until`, and begin steps before it, but at most `steps`.

    Returns REACHED; IDLE if no request waits or runs; STOPPED after `steps` steps or, if asked, at a step in which a
    request finished; STUCK if the waiting requests can never be admitted. Finished requests are in `ended`.

    With asynchronous scheduling a second step is begun, in the other half of `plan`, as soon as one is computed.
    """
    begun = 0
    while True:
        if state[PLANNED] > 0 and (not ahead or state[LOOKED] == 1):
            if clock[END] > until:
                return REACHED
            had = state[ENDED]
            complete(
                requests, times, shared, blocks, buckets, held, limits, state, clock, waiting, running, free_rows,
                plan, state[TURN] if ahead else 0, ended, ahead, drafts, windows, connected,
            )  # fmt: skip
            if ahead:
                state[LOOKED] = 0
                state[TURN] = limits[MAX_SEQS] - state[TURN]
                if state[NEXT_PLANNED] > 0:
                    state[PLANNED], state[NEXT_PLANNED] = state[NEXT_PLANNED], 0
                    clock[END] = begins(clock, clock[CLOCK], connected) + clock[NEXT_MS] / 1e3
            if stop_at_finish and state[ENDED] > had:
                return STOPPED
        sent = FOREVER
        if connected and limits[SENDS] == 1:
            sent = send(requests, times, blocks, held, limits, state, clock[CLOCK])
        if connected and limits[FAILS] == 1:
            fail(requests, times, blocks, held, limits, state, waiting, ended, clock[CLOCK])
        if state[PLANNED] == 0 and left_over(state, connected) == 0:
            return IDLE
        if clock[CLOCK] >= until:
            return REACHED
        if connected and state[PLANNED] == 0 and clock[BLOCKED] > clock[CLOCK]:
            clock[CLOCK] = min(clock[BLOCKED], until)
            continue
        if begun == steps:
            return STOPPED
        preemptions = state[PREEMPTIONS]
        base = 0
        if ahead:
            base = state[TURN] if state[PLANNED] == 0 else limits[MAX_SEQS] - state[TURN]
        planned = schedule(
            requests, times, shared, blocks, buckets, held, limits, state, clock, waiting, running, free_rows, plan,
            base, ahead, drafts, windows, connected,
        )  # fmt: skip
        ms = 0.0
        if planned > 0:
            ms = begin(requests, limits, latency, state, plan, base, planned, ahead, drafts, windows, connected)
        if connected and limits[HOST] > 0:
            start = clock[END] if ahead and state[PLANNED] > 0 else clock[CLOCK]
            settle(requests, times, blocks, limits, latency, state, clock, waiting, start, planned, ms)
        if ahead and state[PLANNED] > 0:
            state[NEXT_PLANNED], clock[NEXT_MS], state[LOOKED] = planned, ms, 1
            begun += 1
        elif planned > 0:
            state[PLANNED], clock[END] = planned, begins(clock, clock[CLOCK], connected) + ms / 1e3
            begun += 1
        elif state[PREEMPTIONS] == preemptions and left_over(state, connected) > 0:
            first = first_loaded(requests, times, waiting, state, clock[CLOCK]) if connected else FOREVER
            if connected and limits[HOST] > 0:
                first = min(first, next_stored(blocks, limits, state, clock))
            first = min(first, sent)
            if first == FOREVER and not (connected and limits[SENDS] * state[FIRST_LEFT] > 0):
                return STUCK
            clock[BLOCKED] = first


def _entry(ahead: bool, features: bool) -> Callable[..., int]:
    """Return `drive` as a kernel of its own: without `features`, speculation, windows and a connector cost nothing.

    With them either scheduling is chosen by the limits.
    """

    @compiled_at_once
    def run(
        requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
        latency: Times, state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table,
        ended: Table, until: float, steps: int, stop_at_finish: bool,
    ) -> int:  # fmt: skip
        return drive(
            requests, times, shared, blocks, buckets, held, limits, latency, state, clock, waiting, running, free_rows,
            plan, ended, until, steps, stop_at_finish, ahead or (features and limits[ASYNC] == 1),
            features and limits[SPECULATIVE] > 0, features and limits[SLIDING] == 1,
            features and limits[CONNECTED] == 1,
        )  # fmt: skip

    return run


run, run_ahead, run_any = _entry(False, False), _entry(True, False), _entry(False, True)
