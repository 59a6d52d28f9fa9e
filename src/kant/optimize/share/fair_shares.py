"""Shares of time with lower limits (floors): the common part of several policies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.optimize.share.interior import Floats, inside
from kant.optimize.share.training import TrainingProgress


def best_shares(
    value: Floats, gpus_each: Floats, gpus: int, floors: Floats | None = None, speeds: Floats | None = None
) -> list[float]:
    """Shares x from 0 to 1 with gpus_each·x <= gpus and x >= `floors` that maximise value·x, inside the set of optima.

    `speeds` scale the constraints on floors, as published programs count steps per second; this only changes which
    optimum is found. If the solver fails, the shares are the floors, and the rest goes to the most valuable jobs first.
    """
    n = len(value)
    one = np.eye(n)
    rows, limits = [-one, gpus_each[None, :], one], [np.zeros(n), np.array([float(gpus)]), np.ones(n)]
    if floors is not None:
        unit = np.ones(n) if speeds is None else speeds
        rows.append(-np.diag(unit))
        limits.append(-floors * unit)
    try:
        found = inside(-value, np.vstack(rows), np.concatenate(limits))
    except ArithmeticError:
        found = _greedy(value, gpus_each, gpus, np.zeros(n) if floors is None else np.clip(floors, 0.0, 1.0))
    return [float(share) for share in np.clip(found, 0.0, 1.0)]


def _greedy(value: Floats, gpus_each: Floats, gpus: int, floors: Floats) -> Floats:
    shares, left = floors.copy(), gpus - float(floors @ gpus_each)
    for i in np.argsort(-value / gpus_each, kind="stable").tolist():
        more = min(1.0 - shares[i], max(left, 0.0) / gpus_each[i])
        shares[i] += more
        left -= more * gpus_each[i]
    return shares


def gangs(jobs: Sequence[TrainingProgress]) -> Floats:
    """The GPUs of each job."""
    return np.array([job.gpus for job in jobs], dtype=np.float64)
