"""Statistics of a workload: sizes, run times, arrivals and tenants, as a plain dictionary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.model.mig import usual_milli
from kant.model.units import GPU, HOUR, SECOND, SIZE_CLASSES
from kant.workload.workload import Workload

Floats = NDArray[np.float64]


def describe(workload: Workload) -> dict[str, object]:
    """Return statistics of a workload. Times are seconds. Half a GPU counts as half, except in the size classes.

    A MIG instance counts as its share of the GPU on the first geometry that has the profile. `size_mix` has a row for
    each size class with its share of the jobs and of the GPU-time. In `arrivals`, `dispersion` is the variance of the
    hourly counts over their mean (1 for a Poisson process) and `lag1` their autocorrelation after an hour (0 for a
    Poisson process); whole hours from time zero on are counted. An empty workload gives zeros.
    """
    parts = np.array([usual_milli(name) if name else GPU for name in workload.profiles])
    gpus = workload.total_gpus * (np.minimum(workload.milli, parts[workload.mig]) / GPU)
    hours = gpus * (workload.runtime / HOUR)
    n = len(workload)
    span = int(workload.submit[-1] - workload.submit[0]) if n else 0
    return {
        "name": workload.name,
        "jobs": n,
        "origin_s": workload.origin / SECOND,
        "span_s": span / SECOND,
        "gpus_requested": float(gpus.sum()),
        "gpus_max": float(gpus.max(initial=0.0)),
        "gpu_hours": float(hours.sum()),
        "gpus_busy_mean": float(hours.sum() / (span / HOUR)) if span else 0.0,
        "runtime_s": _spread(workload.runtime / SECOND),
        "size_mix": _size_mix(workload, hours),
        "cpu_only_jobs": int(np.count_nonzero(workload.gpus == 0)),
        "shared_gpu_jobs": int(np.count_nonzero((workload.gpus > 0) & (workload.milli < GPU))),
        "mig_jobs": {
            name: int(np.count_nonzero(workload.mig == code)) for code, name in enumerate(workload.profiles) if name
        },
        "jobs_with_limit": int(np.count_nonzero(workload.limit >= 0)),
        "arrivals": _arrivals(workload.submit),
        "queues": len(np.unique(workload.queue)),
        "users": len(np.unique(workload.user)),
        "notes": list(workload.notes),
    }


def _spread(values: Floats) -> dict[str, float]:
    """Return the mean, percentiles (linear between ranks) and the maximum."""
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 0.0)
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def _size_mix(workload: Workload, hours: Floats) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    totals, low = workload.total_gpus, -1
    for name, largest in SIZE_CLASSES:
        mask = (totals > low) & (totals <= largest)
        low = largest
        jobs, spent = int(np.count_nonzero(mask)), float(hours[mask].sum())
        rows.append(
            {
                "gpus": name,
                "jobs": jobs,
                "job_share": jobs / max(len(workload), 1),
                "gpu_hours": spent,
                "gpu_hour_share": spent / float(hours.sum()) if spent else 0.0,
            }
        )
    return rows


def hourly_counts(submit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of submissions in each whole hour from time zero to the last submission."""
    if not len(submit):
        return np.zeros(0, dtype=np.int64)
    hours, counts = np.unique(submit // HOUR, return_counts=True)
    first, last = min(0, int(hours[0])), int(hours[-1])
    if last - first > 10_000_000:
        return np.asarray(counts, dtype=np.int64)
    every = np.zeros(last - first + 1, dtype=np.int64)
    every[hours - first] = counts
    return every


def _arrivals(submit: NDArray[np.int64]) -> dict[str, float]:
    counts = hourly_counts(submit).astype(float)
    if len(counts) < 3 or counts.std() == 0:
        mean = float(counts.mean()) if len(counts) else 0.0
        return {
            "per_hour": mean,
            "peak_per_hour": float(counts.max(initial=0)),
            "dispersion": 0.0,
            "lag1": 0.0,
        }
    off = counts - counts.mean()
    return {
        "per_hour": float(counts.mean()),
        "peak_per_hour": float(counts.max()),
        "dispersion": float(counts.var() / counts.mean()),
        "lag1": float((off[1:] * off[:-1]).sum() / (off * off).sum()),
    }
