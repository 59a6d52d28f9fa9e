"""Preemption between two layers of a step (QLLM, arXiv 2503.09304): an urgent prompt need not wait for the step's end.

The step stops at the next layer boundary, the prompt runs alone through all layers, and then the step resumes. Its
requests keep what they have computed.
"""

from __future__ import annotations

import math

from kant.serving import columns as c
from kant.serving import eviction, waiting
from kant.serving.blocks import grow
from kant.serving.engine import Engine


def interrupt(engine: Engine, r: int, now: float, layers: int) -> bool:
    """Compute the prompt of waiting request `r` between two of the `layers` of the current step.

    If seats or blocks are missing, the worst requests leave the step and are preempted. Returns False if the request
    must wait until the step ends: because a request of the step has the same or a better priority, another request
    waits in front, the step is in its last layer, or no request would be left in the step.
    """
    state, clock, limits, times = engine.state, engine.clock, engine.limits, engine.times
    planned = engine.plan[: state[c.PLANNED], 0]
    layer = float(clock[c.END] - clock[c.CLOCK]) / layers
    boundary = float(clock[c.CLOCK]) + math.ceil((now - float(clock[c.CLOCK])) / layer) * layer
    prompt, output = int(engine.requests[r, c.PROMPT]), int(engine.requests[r, c.OUTPUT])
    if engine.waiting[0] != r or (times[planned, c.PRIORITY] <= times[r, c.PRIORITY]).any():
        return False
    if boundary + layer >= clock[c.END] or prompt > limits[c.TOKENS]:
        return False
    waiting.pop(engine.requests, times, limits, state, engine.waiting)
    while state[c.RUNS] >= limits[c.MAX_SEQS] or state[c.FREE] < eviction.blocks_for(prompt, limits):
        at = eviction.victim(times, limits, state, engine.running)
        if state[c.PLANNED] == 1 or times[engine.running[at], c.PRIORITY] <= times[r, c.PRIORITY]:
            waiting.wait(engine.requests, times, limits, state, engine.waiting, r)
            return False
        _leave(engine, at)
    took = engine.settings.latency.step_ms(prompt, 0, prompt * (prompt / 2)) / 1e3
    clock[c.END] += took
    row = engine.requests[r]
    times[r, c.FIRST] = times[r, c.LAST] = boundary + took
    row[c.DONE], row[c.CACHED] = 1, 0
    state[c.TOKENS_DONE] += prompt
    if output == 1:
        times[r, c.FINISH] = boundary + took
        row[c.STATE] = c.FINISHED
        engine.ended[state[c.ENDED]] = r
        state[c.ENDED] += 1
        return True
    row[c.BLOCK_ROW] = engine.free_rows[limits[c.MAX_SEQS] - 1 - state[c.RUNS]]
    row[c.STATE], row[c.COMPUTED] = c.RUNNING, prompt
    engine.running[state[c.RUNS]] = r
    state[c.RUNS] += 1
    grow(engine.requests, engine.shared, engine.blocks, engine.buckets, engine.held, limits, state, r, prompt, prompt)
    return True


def _leave(engine: Engine, at: int) -> None:
    """Preempt the running request at position `at` in the middle of the step."""
    v = int(engine.running[at])
    if v in engine.plan[: engine.state[c.PLANNED], 0]:
        engine.requests[v, c.COMPUTED] -= eviction.unplan(engine.plan, 0, int(engine.state[c.PLANNED]), v)
        engine.state[c.PLANNED] -= 1
    eviction.preempt(
        engine.requests, engine.times, engine.blocks, engine.held, engine.limits, engine.state, engine.waiting,
        engine.running, engine.free_rows, at,
    )  # fmt: skip
