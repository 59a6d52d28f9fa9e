"""FSMoE's own plan: a degree by closed forms, and gradients into the gaps, as if streams did not slow each other down.

Pan et al., FSMoE, ASPLOS 2025 (arXiv 2501.10714), algorithm 1 and section 5. Where the paper searches degrees by SLSQP
and left-over gradients by differential evolution, the same objectives are minimised exactly here: over the degrees
that exist, and over buckets.
"""

from __future__ import annotations

import numpy as np

from kant.placement.perf.gaps import spread, whole_buckets
from kant.placement.perf.layer import DEGREES, Cost, Half
from kant.placement.perf.streams import Floats


def closed_form(half: Half, degree: int, gradient: float) -> float:
    """Seconds of the experts' half by algorithm 1, while gradients take `gradient` seconds between nodes."""
    return _case(half, degree, gradient)[0]


def gap(half: Half, degree: int) -> float:
    """Seconds in which the experts' half leaves the network between nodes idle, by the same case without gradients."""
    return _case(half, degree, 0.0)[1]


def _case(half: Half, degree: int, gradient: float) -> tuple[float, float]:
    """(seconds, seconds between nodes that are idle), by which of the streams is the last."""
    dispatch, gather, compute, scatter = half.at(degree)
    inside = gather + scatter
    if dispatch > gather:
        hidden = 2 * (degree - 1) * dispatch
        idle = inside if degree * compute <= hidden else degree * compute - hidden + inside
    else:
        hidden = 2 * (degree - 1) * dispatch
        experts = degree * compute > (degree - 1) * inside
        idle = degree * (compute if experts else inside) - hidden + (inside if experts else 0.0)
    if gradient > idle:
        return 2 * degree * dispatch + gradient, idle
    return 2 * degree * dispatch + idle, idle


def best_degree(half: Half, gradient: float) -> int:
    """The degree that algorithm 1 takes: of those that exist the one whose closed form is least."""
    return min(DEGREES, key=lambda degree: (closed_form(half, degree, gradient), degree))


def fill_gaps(
    experts: list[Half], attention: list[float], arrivals: list[float], all_reduce: Cost, buckets: int
) -> tuple[list[float], list[float]]:
    """The units of gradients that each layer sums in its experts' half and in its attention half.

    Layers are in the order of the backward pass; `attention` is how long their attention half takes without gradients.
    `arrivals` are the units that are ready before each layer, and after the last. What finds no gap is shared out
    over the experts' halves, in so many `buckets`; what is ready only after the last layer is left over.
    """
    in_experts, in_attention = [0.0] * len(experts), [0.0] * len(experts)
    ready: list[list[float]] = []  # [layer before which it was ready, units]; the latest is summed first
    for i, half in enumerate(experts):
        ready.append([i, arrivals[i]])
        idle = gap(half, best_degree(half, 0.0))
        for seconds, sums in ((attention[i], in_attention), (idle, in_experts)):
            room = max(seconds - all_reduce.alpha, 0.0) / all_reduce.beta
            while room > 0 and ready:
                taken = min(room, ready[-1][1])
                sums[i] += taken
                room -= taken
                ready[-1][1] -= taken
                if ready[-1][1] > 0:
                    break
                ready.pop()
    left = sum(units for _, units in ready)
    if left <= 0.0:
        return in_experts, in_attention
    unit = left / buckets
    late = [sum(units for before, units in ready if before == i) for i in range(len(experts))]
    counts = np.append(whole_buckets(late, unit, buckets), 0)
    alike: dict[tuple[Half, float], list[float]] = {}
    for half, done in zip(experts, in_experts, strict=True):
        if (half, done) not in alike:
            sums = [all_reduce.of(done + k * unit) for k in range(buckets + 1)]
            alike[half, done] = [min(closed_form(half, degree, each) for degree in DEGREES) for each in sums]
    table: Floats = np.array([alike[pair] for pair in zip(experts, in_experts, strict=True)])
    tail = np.array([all_reduce.of(k * unit) for k in range(buckets + 1)])
    _, taken_by = spread(table, np.arange(len(experts)), counts, tail)
    return [done + k * unit for done, k in zip(in_experts, taken_by, strict=True)], in_attention
