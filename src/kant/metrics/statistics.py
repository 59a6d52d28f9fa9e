"""Means, medians and quantiles, over jobs and over time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.model.units import SECOND

Values = NDArray[Any]


def quantiles(ordered: Values, shares: tuple[float, ...], kind: str) -> list[float]:
    """Return quantiles of an ascending array: `linear` interpolation at (n-1)p, or the elements at indices ⌊n p⌋."""
    if kind == "lower":
        return [float(ordered[min(int(len(ordered) * p), len(ordered) - 1)]) for p in shares]
    return [float(found) for found in np.quantile(ordered, shares)]


def spread(times: Values, kind: str = "linear") -> dict[str, float | None]:
    """Return `mean`, `p50`, `p90`, `p99`, `max` and `sum` of microseconds, in seconds; None if there are none."""
    if len(times) == 0:
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), None) | {"sum": 0.0}
    ordered = np.sort(times)
    # The sum of half a million waits of a year, in microseconds, exceeds 64 bits.
    total = int((ordered // SECOND).sum()) * SECOND + int((ordered % SECOND).sum())
    p50, p90, p99 = quantiles(ordered, (0.50, 0.90, 0.99), kind)
    return {
        "mean": total / len(ordered) / SECOND,
        "p50": p50 / SECOND,
        "p90": p90 / SECOND,
        "p99": p99 / SECOND,
        "max": int(ordered[-1]) / SECOND,
        "sum": total / SECOND,
    }


def over_time(ratios: Values, durations: Values) -> dict[str, float | None]:
    """Return the time-weighted `mean` and `median` of a step function."""
    total = durations.sum()
    if total <= 0:
        return {"mean": None, "median": None}
    order = np.argsort(ratios, kind="stable")
    reached = durations[order]
    np.cumsum(reached, out=reached)
    median = ratios[order[np.searchsorted(reached, total / 2)]]
    del order, reached  # a run has a million samples
    shares = durations / total
    shares *= ratios
    return {"mean": float(shares.sum()), "median": float(median)}
