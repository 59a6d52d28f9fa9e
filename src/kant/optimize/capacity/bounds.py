"""Lower bounds of the peaks: the work that must be done in a span of time, whenever tasks start."""

from __future__ import annotations

from kant.compiled import compiled
from kant.optimize.capacity.arrays import Numbers, Tasks


@compiled
def energy_bounds(s: Tasks, horizon: int, begins: Numbers, steps: Numbers, bounds: Numbers) -> None:
    """Fill `bounds` by resource: the maximum over all spans of the work that must be done inside, over their length.

    A task that may start from `earliest` to `latest` spends at least max(0, min(m, b - max(a, latest))) ticks in the
    span [a, b), where m is what remains of it after a if it starts as early as possible (energetic reasoning: P.
    Baptiste, C. Le Pape, W. Nuijten, Annals of OR 92, 1999). In spans of one tick these are the compulsory parts. Spans
    begin at `begins`. `steps` [horizon + 2] is scratch.
    """
    for r in range(bounds.shape[0]):
        bounds[r] = 0
        for i in range(s.duration.shape[0]):
            bounds[r] = max(bounds[r], s.demand[i, r])
        for x in range(begins.shape[0]):
            a = begins[x]
            steps[:] = 0
            for i in range(s.duration.shape[0]):
                rest = min(s.duration[i], s.earliest[i] + s.duration[i] - a)
                if rest > 0 and s.demand[i, r] > 0:
                    begin = max(a, s.latest[i])
                    steps[begin] += s.demand[i, r]
                    steps[begin + rest] -= s.demand[i, r]
            slope, work = 0, 0
            for b in range(a + 1, horizon + 1):
                slope += steps[b - 1]
                work += slope
                bounds[r] = max(bounds[r], (work + b - a - 1) // (b - a))
