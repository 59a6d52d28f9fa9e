"""Plans of training steps: all layers of FSMoE's table 5, beside the same search in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from benchmarks.measure import Figure, cpu_seconds
from benchmarks.studies.step_time import table_5
from benchmarks.studies.testbeds import TESTBEDS, layers
from kant.placement.perf.layer import DEGREES, Half, lay_out
from kant.placement.perf.plan import Stack, best_plan, our_plan
from kant.placement.perf.streams import play

FEW = 30
"""Layers that the rival plans."""


def measure() -> Iterator[Figure]:
    """Seconds for the 2,916 layers of both testbeds under four schedules, and of the plan of a layer."""
    stacks = [Stack((layer,), testbed.costs, steady=True) for testbed in TESTBEDS.values() for layer in layers(testbed)]
    best_plan(stacks[0])  # compiled
    took, _ = cpu_seconds(lambda: [table_5(name) for name in TESTBEDS])
    few = list(islice(stacks, 0, None, len(stacks) // FEW))
    ours, plans = cpu_seconds(lambda: [our_plan(stack).seconds for stack in few], 3)
    theirs, seconds = cpu_seconds(lambda: [in_python(stack) for stack in few])
    assert np.allclose(plans, seconds), "both search the same plans"
    yield Figure("step-plans", took, "s of CPU", theirs / ours, "the search in plain Python", "the streams, run by run")


def in_python(stack: Stack) -> float:
    """Seconds of the best plan of one layer: every degree and every split of its gradients into twentieths."""
    (layer,) = stack.layers
    halves, reduce = stack.halves(layer), stack.costs.all_reduce
    sums = [reduce.of(layer.gradient * k / 20) for k in range(21)]
    ahead = min(seconds(halves.experts, degree, 0.0, stack) for degree in DEGREES)
    experts = [min(seconds(halves.experts_back, degree, each, stack) for degree in DEGREES) for each in sums]
    attention = [seconds(halves.attention_back, 1, each, stack) for each in sums]
    back = min(
        experts[i] + attention[j] + sums[20 - i - j] for i in range(21) for j in range(21 - i)
    )  # what is in neither half is summed at the end
    return ahead + seconds(halves.attention, 1, 0.0, stack) + back


def seconds(half: Half, degree: int, gradient: float, stack: Stack) -> float:
    """Seconds of a half of a layer, by the kernels as they are written."""
    work, start, end = np.zeros(48), np.zeros(48), np.zeros(48)
    stream, after, kind = np.zeros(48, np.int64), np.zeros(48, np.int64), np.zeros(48, np.int64)
    count = lay_out(np.array(half), degree, gradient, True, work, stream, after, kind)
    return play(work, stream, after, count, stack.costs.contention, start, end)
