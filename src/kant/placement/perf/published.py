"""FSMoE's own plan: a degree from closed forms, and gradients in gaps, assuming that streams do not slow each other.

Pan et al., FSMoE, ASPLOS 2025 (arXiv 2501.10714), algorithm 1 and section 5. The paper searches degrees by SLSQP, and
places for left-over gradients by differential evolution. Kant minimises the same objectives exactly: over the existing
degrees, and over buckets.
"""

from __future__ import annotations

import numpy as np

from kant.placement.perf.gaps import spread, whole_buckets
from kant.placement.perf.layer import DEGREES, Cost, Half
from kant.placement.perf.streams import Floats


def closed_form(half: Half, degree: int, gradient: float) -> float:
    """Return the seconds of the experts' half by algorithm 1, while gradients take `gradient` seconds between nodes.

    Its four cases reduce to one: the dispatches and combines, plus the gradients or the idle time of the network
    between nodes, whichever is longer.
    """
    dispatch = half.at(degree)[0]
    return 2 * degree * dispatch + max(gradient, _idle(half, degree))


def gap(half: Half, degree: int) -> float:
    """Return the seconds in which the experts' half leaves the network between nodes idle, without gradients."""
    return max(_idle(half, degree), 0.0)


def _idle(half: Half, degree: int) -> float:
    dispatch, gather, compute, scatter = half.at(degree)
    inside = gather + scatter
    hidden = 2 * (degree - 1) * dispatch
    if dispatch > gather:
        return inside if degree * compute <= hidden else degree * compute - hidden + inside
    if degree * compute > (degree - 1) * inside:
        return degree * compute - hidden + inside
    return degree * inside - hidden


def _closed_forms(half: Half, gradients: Floats) -> Floats:
    """Return the least closed form over all degrees, for each gradient time."""
    forms = [2 * degree * half.at(degree)[0] + np.maximum(gradients, _idle(half, degree)) for degree in DEGREES]
    found: Floats = np.min(forms, axis=0)
    return found


def _all_of(cost: Cost, units: Floats) -> Floats:
    found: Floats = np.where(units > 0, cost.alpha + units * cost.beta, 0.0)
    return found


def best_degree(half: Half, gradient: float) -> int:
    """Return the degree that algorithm 1 selects: the one of DEGREES with the least `closed_form`."""
    return min(DEGREES, key=lambda degree: (closed_form(half, degree, gradient), degree))


def fill_gaps(
    experts: list[Half], attention: list[float], arrivals: list[float], all_reduce: Cost, buckets: int
) -> tuple[list[float], list[float]]:
    """Return the units of gradients that each layer sums in its experts' half and in its attention half.

    Layers are in the order of the backward pass; `attention` has the time of their attention half without gradients.
    `arrivals` are the units that are ready before each layer, and after the last. Gradients that fit in no gap are
    divided over the experts' halves, in `buckets` buckets; those ready after the last layer are left over.
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
    units: Floats = np.arange(buckets + 1, dtype=np.float64) * unit
    table: Floats = np.array(
        [_closed_forms(half, _all_of(all_reduce, done + units)) for half, done in zip(experts, in_experts, strict=True)]
    )
    tail = _all_of(all_reduce, units)
    _, taken_by = spread(table, np.arange(len(experts)), counts, tail)
    return [done + k * unit for done, k in zip(in_experts, taken_by, strict=True)], in_attention
