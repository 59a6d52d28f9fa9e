"""The compiled steps of an engine: which requests a step computes, how long it takes, which tokens it produces.

The rules are those of vLLM V1's scheduler, version 0.32 (vllm/v1/core/sched/scheduler.py, Apache-2.0), and of its
engine core's queue of batches; `kant serve verify` checks them against recorded runs of both. In short:

- running requests go first, in order of admission, then waiting ones by (priority,) arrival; all within the token
  budget;
- when blocks run out, the last admitted request is preempted, with priorities the worst running one, and waits again; a
  request that preempts itself ends the planning of running ones, and a step that has preempted admits nothing;
- a waiting request is admitted only if all its tokens so far fit in free blocks; if they do not, the plan ends;
- a threshold for long prompts, unchunked prompts, a watermark and admission by a step's tokens are settings;
- with asynchronous scheduling, vLLM's default, a step is planned when the one before it begins: a request goes on
  before its last token is known, and keeps seat and blocks for a step after its end; one that is preempted meanwhile
  still gets the token that is under way, and may end while it waits;
- with speculation a request's step also verifies drafts: it outputs those accepted and one more;
- in a KV group with a sliding window a running request frees the blocks that the window has passed (`blocks.slide`).

Features that vLLM lacks are marked: preemption for seats by priority, swapping, and an external limit on admissions.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.compiled import compiled_at_once, inlined, merged
from kant.serving import columns as c
from kant.serving.blocks import give_back, know
from kant.serving.columns import FOREVER, Table, Times
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
        r, count = plan[k, c.WHO], plan[k, c.COUNT]
        requests[r, c.COMPUTED] += count
        tokens += count
        output = requests[r, c.DONE]
        if ahead:
            output += requests[r, c.AHEAD]
            if windows or connected:
                requests[r, c.FLYING] += count
        if ahead or drafts:
            samples = max(requests[r, c.COMPUTED] + 1 - requests[r, c.PROMPT] - output, 0)
            plan[k, c.SAMPLES] = samples
            if ahead:
                requests[r, c.AHEAD] += samples
            if drafts and samples > 0:
                count -= samples - 1
                if requests[r, c.DRAFTS] == 0 and samples > 1:
                    plan[k, c.SAMPLES] += c.PADDED
                requests[r, c.DRAFTS] = limits[c.SPECULATIVE]
        if count == 1 and output > 0:
            decode += requests[r, c.COMPUTED]
        else:
            count = plan[k, c.COUNT]
            chunks += count * ((requests[r, c.COMPUTED] - count) + count / 2)
    floor = latency[c.FLOOR]
    if latency[c.EXPERTS] > 0:
        floor += latency[c.EXPERTS] * (1 - latency[c.MISSED] ** tokens)
    ms = max(floor, latency[c.SLOPE] * tokens + latency[c.FIXED]) + decode * latency[c.KV]
    ms = ms + chunks * latency[c.CONTEXT] + latency[c.OVERHEAD]
    if state[c.MOVED] > 0:
        ms += state[c.MOVED] * latency[c.SWAP_MS]
    return float(ms)


@inlined
def verified(requests: Table, limits: Table, r: int, samples: int) -> int:
    """Return how many of the planned `samples` tokens a request outputs: one, plus the drafts that are accepted."""
    count = 1
    while count < samples and samples < c.PADDED:
        mixed = (requests[r, c.SEED] * 2654435761 + (requests[r, c.DONE] + count) * 40503) & 0xFFFFFFFF
        mixed = ((mixed ^ (mixed >> 15)) * 2246822519) & 0xFFFFFFFF
        if ((mixed ^ (mixed >> 13)) & 0xFFFF) >= limits[c.ACCEPTED]:
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
    now = clock[c.END]
    took = now - clock[c.CLOCK]
    clock[c.BUSY] += took
    clock[c.KV_SECONDS] += took * (limits[c.USABLE] - state[c.FREE])
    clock[c.CLOCK] = now
    left = 0
    if ahead and connected and limits[c.SENDS] == 0:  # requests that ended before this step began free their blocks now
        for k in range(base, base + state[c.PLANNED]):
            r = plan[k, c.WHO]
            if requests[r, c.STATE] == c.FINISHED and requests[r, c.HELD] > 0:
                requests[r, c.BLOCK_ROW] = 2 * r
                give_back(requests, blocks, held, limits, state, r)
    for k in range(base, base + state[c.PLANNED]):
        r = plan[k, c.WHO]
        state[c.TOKENS_DONE] += plan[k, c.COUNT]
        tokens = 1
        if ahead and (windows or connected):
            requests[r, c.FLYING] -= plan[k, c.COUNT]
        if ahead or drafts:
            if requests[r, c.STATE] >= c.FINISHED:
                plan[k, c.SAMPLES] = -1
            if connected and limits[c.SENDS] == 1 and requests[r, c.STATE] == c.WAITING:
                plan[k, c.SAMPLES] = -1  # it was preempted: its KV could not be sent if it ended
                requests[r, c.AHEAD] = 0
            if plan[k, c.SAMPLES] <= 0:
                continue
            if drafts:
                tokens = verified(requests, limits, r, plan[k, c.SAMPLES])
        elif requests[r, c.COMPUTED] < requests[r, c.PROMPT] + requests[r, c.DONE]:
            continue
        first = requests[r, c.DONE] == 0
        samples = 1
        if drafts:
            samples = plan[k, c.SAMPLES] & (c.PADDED - 1)
            if requests[r, c.STATE] == c.RUNNING:
                requests[r, c.COMPUTED] -= samples - tokens
            beyond = max(tokens - (requests[r, c.OUTPUT] - requests[r, c.DONE]), 0)  # after a stop token
            samples, tokens = samples - beyond, tokens - beyond
        requests[r, c.DONE] += tokens
        if ahead:
            runs = requests[r, c.STATE] == c.RUNNING  # otherwise it was preempted in the meantime
            requests[r, c.AHEAD] -= samples if runs else -samples
            if runs and limits[c.CACHING] == 1:
                known = requests[r, c.COMPUTED] - requests[r, c.AHEAD]
                if known >= (requests[r, c.HASHED] + 1) * limits[c.BLOCK]:
                    know(requests, shared, blocks, buckets, held, limits, r, known)
        if first:
            times[r, c.FIRST] = now
        else:
            times[r, c.GAP] = max(times[r, c.GAP], now - times[r, c.LAST])
        times[r, c.LAST] = now
        if requests[r, c.DONE] == requests[r, c.OUTPUT]:
            times[r, c.FINISH] = now
            if requests[r, c.STATE] == c.RUNNING:
                if connected and requests[r, c.REMOTE] == 3:
                    times[r, c.LOADED] += now
                elif not (ahead and connected and limits[c.SENDS] == 0 and requests[r, c.FLYING] > 0):
                    give_back(requests, blocks, held, limits, state, r)
                left += 1
            else:
                leave(requests, times, limits, state, waiting, r)
            requests[r, c.STATE] = c.FINISHED
            if connected and (limits[c.HOST] > 0 or limits[c.SENDS] == 1):
                if state[c.LAST_LEFT] > 0:
                    requests[state[c.LAST_LEFT] - 1, c.NEXT_ENDED] = r + 1
                else:
                    state[c.FIRST_LEFT] = r + 1
                state[c.LAST_LEFT] = r + 1
            ended[state[c.ENDED]] = r
            state[c.ENDED] += 1
    if left > 0:
        kept = 0
        for i in range(state[c.RUNS]):
            r = running[i]
            if requests[r, c.STATE] == c.FINISHED:
                free_rows[limits[c.MAX_SEQS] - state[c.RUNS] + i - kept] = requests[r, c.BLOCK_ROW]
                requests[r, c.BLOCK_ROW] = -1
            else:
                running[kept] = r
                kept += 1
        state[c.RUNS] = kept
    state[c.RAN] = state[c.PLANNED]
    state[c.PLANNED] = 0
    state[c.STEPS] += 1


@inlined
def left_over(state: Table, connected: bool) -> int:
    """Return how many requests a step that is planned now would consider."""
    return int(state[c.RUNS] + state[c.WAITS] + (state[c.LOADS] + state[c.FIRST_LEFT] if connected else 0))


@inlined
def begins(clock: Times, now: float, connected: bool) -> float:
    """Return when a step that could begin at `now` begins. A connector may delay it."""
    return float(max(now, clock[c.FLUSHED]) if connected else now)


@merged
def drive(
    requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
    latency: Times, state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table,
    ended: Table, until: float, steps: int, stop_at_finish: bool, ahead: bool, drafts: bool,
    windows: bool, connected: bool,
) -> int:  # fmt: skip
    """Run an engine: end steps that end by `until`, and begin steps before `until`, but at most `steps` of them.

    Returns REACHED; IDLE if no request waits or runs; STOPPED after `steps` steps or, if asked, at a step in which a
    request finished; STUCK if the waiting requests can never be admitted. Finished requests are in `ended`.

    With asynchronous scheduling, another step is begun in the other half of `plan` as soon as one is being computed.
    """
    begun = 0
    while True:
        if state[c.PLANNED] > 0 and (not ahead or state[c.LOOKED] == 1):
            if clock[c.END] > until:
                return c.REACHED
            had = state[c.ENDED]
            complete(
                requests, times, shared, blocks, buckets, held, limits, state, clock, waiting, running, free_rows,
                plan, state[c.TURN] if ahead else 0, ended, ahead, drafts, windows, connected,
            )  # fmt: skip
            if ahead:
                state[c.LOOKED] = 0
                state[c.TURN] = limits[c.MAX_SEQS] - state[c.TURN]
                if state[c.NEXT_PLANNED] > 0:
                    state[c.PLANNED], state[c.NEXT_PLANNED] = state[c.NEXT_PLANNED], 0
                    clock[c.END] = begins(clock, clock[c.CLOCK], connected) + clock[c.NEXT_MS] / 1e3
            if stop_at_finish and state[c.ENDED] > had:
                return c.STOPPED
        sent = FOREVER
        if connected and limits[c.SENDS] == 1:
            sent = send(requests, times, blocks, held, limits, state, clock[c.CLOCK])
        if connected and limits[c.FAILS] == 1:
            fail(requests, times, blocks, held, limits, state, waiting, ended, clock[c.CLOCK])
        if state[c.PLANNED] == 0 and left_over(state, connected) == 0:
            return c.IDLE
        if clock[c.CLOCK] >= until:
            return c.REACHED
        if connected and state[c.PLANNED] == 0 and clock[c.BLOCKED] > clock[c.CLOCK]:
            clock[c.CLOCK] = min(clock[c.BLOCKED], until)
            continue
        if begun == steps:
            return c.STOPPED
        preemptions = state[c.PREEMPTIONS]
        base = 0
        if ahead:
            base = state[c.TURN] if state[c.PLANNED] == 0 else limits[c.MAX_SEQS] - state[c.TURN]
        planned = schedule(
            requests, times, shared, blocks, buckets, held, limits, state, clock, waiting, running, free_rows, plan,
            base, ahead, drafts, windows, connected,
        )  # fmt: skip
        ms = 0.0
        if planned > 0:
            ms = begin(requests, limits, latency, state, plan, base, planned, ahead, drafts, windows, connected)
        if connected and limits[c.HOST] > 0:
            start = clock[c.END] if ahead and state[c.PLANNED] > 0 else clock[c.CLOCK]
            settle(requests, times, blocks, limits, latency, state, clock, waiting, start, planned, ms)
        if ahead and state[c.PLANNED] > 0:
            state[c.NEXT_PLANNED], clock[c.NEXT_MS], state[c.LOOKED] = planned, ms, 1
            begun += 1
        elif planned > 0:
            state[c.PLANNED], clock[c.END] = planned, begins(clock, clock[c.CLOCK], connected) + ms / 1e3
            begun += 1
        elif state[c.PREEMPTIONS] == preemptions and left_over(state, connected) > 0:
            first = first_loaded(requests, times, waiting, state, clock[c.CLOCK]) if connected else FOREVER
            if connected and limits[c.HOST] > 0:
                first = min(first, next_stored(blocks, limits, state, clock))
            first = min(first, sent)
            if first == FOREVER and not (connected and limits[c.SENDS] * state[c.FIRST_LEFT] > 0):
                return c.STUCK
            clock[c.BLOCKED] = first


def _entry(ahead: bool, features: bool) -> Callable[..., int]:
    """Compile `drive` as a function of its own. Without `features`, speculation, sliding windows and a connector cost
    no time. With `features`, the limits also choose between synchronous and asynchronous scheduling.
    """

    @compiled_at_once
    def run(
        requests: Table, times: Times, shared: Table, blocks: Table, buckets: Table, held: Table, limits: Table,
        latency: Times, state: Table, clock: Times, waiting: Table, running: Table, free_rows: Table, plan: Table,
        ended: Table, until: float, steps: int, stop_at_finish: bool,
    ) -> int:  # fmt: skip
        return drive(
            requests, times, shared, blocks, buckets, held, limits, latency, state, clock, waiting, running, free_rows,
            plan, ended, until, steps, stop_at_finish, ahead or (features and limits[c.ASYNC] == 1),
            features and limits[c.SPECULATIVE] > 0, features and limits[c.SLIDING] == 1,
            features and limits[c.CONNECTED] == 1,
        )  # fmt: skip

    return run


run, run_ahead, run_any = _entry(False, False), _entry(True, False), _entry(False, True)
