"""The plan of a training step: the degree of each layer, and where gradients are summed.

A degree is the number of chunks into which the experts of a layer are cut (`layer.py`). All degrees are tried on the
streams; gradients are assigned by dynamic programming over buckets (`gaps.py`). FSMoE's own plan (`published.py`) runs
on the same streams, and the faster of the two plans is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.placement.perf.gaps import split_halves, spread, whole_buckets
from kant.placement.perf.layer import (
    DEGREES,
    Half,
    OperationCosts,
    Volumes,
    attention_half,
    experts_half,
    half_run,
    half_seconds,
)
from kant.placement.perf.published import best_degree, fill_gaps
from kant.placement.perf.streams import Floats, StreamTimes

BUCKETS = 256
"""Maximum number of gradient buckets in a backward pass."""
BUCKETS_OF_LAYER = 20
"""Maximum number of gradient buckets of one layer."""


class Halves(NamedTuple):
    """The halves of one layer: its experts and its attention, forward and backward."""

    experts: Half
    attention: Half
    experts_back: Half
    attention_back: Half


class LayerPlan(NamedTuple):
    """A layer's degrees in both passes, and the gradients (in units) that each half sums during the backward pass."""

    forward_degree: int
    backward_degree: int
    in_experts: float
    in_attention: float


class Stack(NamedTuple):
    """Layers in forward order, and the costs of their operations under the job's placement.

    A `steady` stack is the middle layers of a longer stack. When its backward pass begins, as many gradients are
    ready as its first layer has; those of its first layer are left to the layers before it.
    """

    layers: tuple[Volumes, ...]
    costs: OperationCosts
    steady: bool = False

    @property
    def arrivals(self) -> list[float]:
        """Return the gradient volume that is ready before each layer of the backward pass, and after its last layer."""
        ready = [layer.gradient for layer in reversed(self.layers)]
        return [ready[-1], *ready[:-1], 0.0] if self.steady else [0.0, *ready]

    def halves(self, layer: Volumes) -> Halves:
        """Return the costs of a layer's halves."""
        costs = self.costs
        return Halves(
            experts_half(layer, costs, False),
            attention_half(layer, costs, False),
            experts_half(layer, costs, True),
            attention_half(layer, costs, True),
        )


class StepPlan(NamedTuple):
    """A plan, and the seconds of its forward and backward pass; `tail` units are summed after the backward pass."""

    layers: tuple[LayerPlan, ...]
    tail: float
    forward: float
    backward: float
    exposed: float
    """Seconds of the backward pass after its last layer, for gradients that fit in no gap."""

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward


def best_plan(stack: Stack) -> StepPlan:
    """Return the fastest known plan: ours, or FSMoE's if that is faster on the same streams."""
    ours, theirs = our_plan(stack), published_plan(stack)
    return theirs if theirs.seconds < ours.seconds else ours


class _Kind(NamedTuple):
    """Equal layers. Backward, one that sums k buckets takes `seconds[k]`; its experts' half sums `first[k]` of them."""

    forward_degree: int
    seconds: Floats
    first: Table
    degrees: tuple[int, ...]


def our_plan(stack: Stack, apart: bool = True) -> StepPlan:
    """Try all degrees on the streams, and assign gradients to the gaps in whole buckets.

    With `apart` False, messages inside nodes alternate with those between nodes: this is FSMoE without its second idea.
    """
    layers, costs, arrivals = stack.layers, stack.costs, stack.arrivals
    total = sum(arrivals)
    count = min(BUCKETS_OF_LAYER * len(layers), max(BUCKETS, len(layers))) if total > 0 else 0
    unit = total / count if count else 0.0
    sums: Floats = np.array([costs.all_reduce.of(k * unit) for k in range(count + 1)])
    alike = sorted(set(layers), key=layers.index)
    kinds = [_kind(stack.halves(layer), sums, costs.contention, apart) for layer in alike]
    which = [alike.index(layer) for layer in reversed(layers)]
    seconds: Floats = np.array([kind.seconds for kind in kinds])
    _, taken = spread(seconds, np.array(which, dtype=np.int64), whole_buckets(arrivals, unit, count), sums)
    plans = []
    for kind, k in zip((kinds[i] for i in which), taken, strict=True):
        first = int(kind.first[k])
        plans.append(LayerPlan(kind.forward_degree, kind.degrees[first], first * unit, (k - first) * unit))
    return timed(stack, tuple(reversed(plans)), apart)


def _kind(halves: Halves, sums: Floats, contention: float, apart: bool) -> _Kind:
    ahead = half_seconds(halves.experts, DEGREES, np.zeros(1), contention, apart)[:, 0]
    experts = half_seconds(halves.experts_back, DEGREES, sums, contention, apart)
    attention = half_seconds(halves.attention_back, (1,), sums, contention, apart)[0]
    both, first = np.zeros(len(sums)), np.zeros(len(sums), dtype=np.int64)
    split_halves(experts.min(axis=0), attention, both, first)
    degrees = tuple(DEGREES[i] for i in np.argmin(experts, axis=0).tolist())
    return _Kind(DEGREES[int(np.argmin(ahead))], both, first, degrees)


def published_plan(stack: Stack) -> StepPlan:
    """Return FSMoE's plan, timed on our streams."""
    costs = stack.costs
    halves = [stack.halves(layer) for layer in stack.layers]
    back = halves[::-1]
    arrivals = stack.arrivals
    in_experts, in_attention = [0.0] * len(back), [0.0] * len(back)
    if sum(arrivals) > 0 and costs.all_reduce.beta > 0:
        lengths = [sum(each.attention_back.at(1)) for each in back]
        experts = [each.experts_back for each in back]
        in_experts, in_attention = fill_gaps(experts, lengths, arrivals, costs.all_reduce, min(BUCKETS, 20 * len(back)))
    plans = [
        LayerPlan(
            best_degree(each.experts, 0.0), best_degree(each.experts_back, costs.all_reduce.of(first)), first, second
        )
        for each, first, second in zip(back, in_experts, in_attention, strict=True)
    ]
    return timed(stack, tuple(reversed(plans)))


def timed(stack: Stack, plans: Sequence[LayerPlan], apart: bool = True) -> StepPlan:
    """Run a plan on the streams. Gradients that no layer has reduced are reduced at the end."""
    costs = stack.costs
    forward = backward = 0.0
    known: dict[tuple[Volumes, LayerPlan], tuple[float, float]] = {}
    for layer, plan in zip(stack.layers, plans, strict=True):
        if (layer, plan) not in known:
            ahead, back = _parts(stack.halves(layer), plan, costs)
            known[layer, plan] = _seconds(ahead, costs, apart), _seconds(back, costs, apart)
        forward += known[layer, plan][0]
        backward += known[layer, plan][1]
    tail = max(sum(stack.arrivals) - sum(plan.in_experts + plan.in_attention for plan in plans), 0.0)
    tail = 0.0 if tail < 1e-9 * sum(stack.arrivals) else tail
    exposed = costs.all_reduce.of(tail)
    return StepPlan(tuple(plans), tail, forward, backward + exposed, exposed)


def runs(
    stack: Stack, layer: int, plan: LayerPlan, apart: bool = True
) -> tuple[StreamTimes, StreamTimes, StreamTimes, StreamTimes]:
    """Run the streams of one layer: attention and experts forward, experts and attention backward."""
    ahead, back = _parts(stack.halves(stack.layers[layer]), plan, stack.costs)
    found = [half_run(half, degree, sums, stack.costs.contention, apart) for half, degree, sums in (*ahead, *back)]
    return found[0], found[1], found[2], found[3]


Part = tuple[Half, int, float]


def _parts(halves: Halves, plan: LayerPlan, costs: OperationCosts) -> tuple[tuple[Part, Part], tuple[Part, Part]]:
    """Return (half, degree, seconds of gradients) of the forward and of the backward pass, in order."""
    ahead = (halves.attention, 1, 0.0), (halves.experts, plan.forward_degree, 0.0)
    back = (
        (halves.experts_back, plan.backward_degree, costs.all_reduce.of(plan.in_experts)),
        (halves.attention_back, 1, costs.all_reduce.of(plan.in_attention)),
    )
    return ahead, back


def _seconds(parts: tuple[Part, Part], costs: OperationCosts, apart: bool) -> float:
    return sum(
        float(half_seconds(half, (degree,), np.array([sums]), costs.contention, apart)[0, 0])
        for half, degree, sums in parts
    )
