"""The cluster over time, thinned to equal buckets that all runs share. Each value is a mean over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kant.metrics.result import RunResult, Series
from kant.report.pack import Blob, pack

BUCKETS = 2000
PPM = 1_000_000
MISSING = -1
"""The value stored where a run has none: before its beginning, after its end, or while nothing is in service."""

Floats = NDArray[np.float64]


def span(runs: Sequence[RunResult]) -> tuple[int, int]:
    """Return the first and the last microsecond of all runs."""
    begin = min((int(run.series.time[0]) for run in runs if len(run.series.time)), default=0)
    return begin, max([begin, *(last_moment(run) for run in runs)])


def last_moment(run: RunResult) -> int:
    """Return the end of a run, or the time of its last record if that is later."""
    return max([run.end, *(int(run.series.time[-1]) for _ in range(min(1, len(run.series.time))))])


def bucket_edges(begin: int, end: int) -> Floats:
    """Return the edges of the buckets in microseconds; empty if the span has no length."""
    return np.linspace(begin, end, BUCKETS + 1) if end > begin else np.zeros(0)


def pack_series(run: RunResult, edges: Floats) -> dict[str, Blob]:
    """Return GAR, running SOR and GFR in millionths, waiting jobs in thousandths, and waiting GPUs in milli-GPUs."""
    series, end = run.series, last_moment(run)
    gar = _ratio(series.allocated, series.in_service)
    gfr = _ratio(series.fragmented, series.nodes)
    return {
        "gar": pack(_stored(bucket_means(series, gar, end, edges) * PPM), delta=True),
        "sor": pack(_stored(running_sor(series, end, edges) * PPM), delta=True),
        "gfr": pack(_stored(bucket_means(series, gfr, end, edges) * PPM), delta=True),
        "waiting_jobs": pack(
            _stored(bucket_means(series, series.waiting_jobs.astype(np.float64), end, edges) * 1000),
            delta=True,
        ),
        "waiting_gpus": pack(
            _stored(bucket_means(series, series.waiting_gpus.astype(np.float64), end, edges)), delta=True
        ),
    }


def bucket_means(series: Series, value: Floats, end: int, edges: Floats) -> Floats:
    """Return the mean of `value` over the time of each bucket, without times at which it is NaN."""
    known = np.isfinite(value)
    total = np.diff(_integral(series, np.where(known, value, 0.0), end, edges))
    weight = np.diff(_integral(series, known.astype(np.float64), end, edges))
    return _divided(total, weight, weight > 0)


def running_sor(series: Series, end: int, edges: Floats) -> Floats:
    """Return GPU-seconds allocated / GPU-seconds in service, from the start of the run to the end of each bucket."""
    allocated = _integral(series, series.allocated.astype(np.float64), end, edges)[1:]
    in_service = _integral(series, series.in_service.astype(np.float64), end, edges)[1:]
    known = (in_service > 0) & (edges[:-1] < end)
    return _divided(allocated, in_service, known)


def _integral(series: Series, value: Floats, end: int, at: Floats) -> Floats:
    """Return the integral of the step function `value` from its first row to each time in `at`."""
    if not len(value) or not len(at):
        return np.zeros(len(at))
    knots = np.append(series.time, end).astype(np.float64)
    area = np.concatenate(([0.0], np.cumsum(value * np.diff(knots))))
    return np.interp(at, knots, area)


def _ratio(part: NDArray[np.int64], whole: NDArray[np.int64]) -> Floats:
    return _divided(part.astype(np.float64), whole.astype(np.float64), whole > 0)


def _divided(part: Floats, whole: Floats, known: NDArray[np.bool_]) -> Floats:
    quotient = np.full(len(part), np.nan)
    np.divide(part, whole, out=quotient, where=known)
    return quotient


def _stored(value: Floats) -> NDArray[np.int64]:
    return np.where(np.isfinite(value), np.rint(np.nan_to_num(value)), MISSING).astype(np.int64)
