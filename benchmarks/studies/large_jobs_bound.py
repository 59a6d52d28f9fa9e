"""How soon large jobs could start at best, if small ones are to wait no longer than before.

A linear program that knows all run times, cuts GPUs and jobs at will, and has time in slots. Small jobs run at once,
but for waits that add up to what is allowed. No schedule of whole gangs on whole nodes can do better. Needs OR-Tools.
"""

from __future__ import annotations

import numpy as np
from ortools.linear_solver import pywraplp

from benchmarks.studies.large_jobs import LARGE, SMALL, Scene
from kant.model.units import HOUR

SLOT_H, SLOTS = 4.0, 600


def least_p99(scene: Scene, small_wait_h: float) -> float:
    """Hours below which the P99 wait of large jobs cannot be while small ones wait `small_wait_h` in the mean.

    Only the longest wait is bounded, which is one of the two that the 99th percentile of up to 100 waits lies between.
    """
    jobs = scene.jobs
    gpus, submit, runtime = jobs.total_gpus, jobs.submit / HOUR, jobs.runtime / HOUR
    small, large = gpus <= SMALL, np.flatnonzero(gpus > LARGE)
    edges = np.arange(SLOTS) * SLOT_H
    spans = zip(submit[small], (submit + runtime)[small], gpus[small], strict=True)
    used = sum(count * np.clip(np.minimum(end, edges + SLOT_H) - np.maximum(begin, edges), 0, None)
               for begin, end, count in spans)  # fmt: skip
    delay = small_wait_h * int(small.sum()) * SMALL  # GPU-hours, if the widest of the small ones wait
    low, high = 0.0, SLOTS * SLOT_H
    while high - low > 2:
        middle = (low + high) / 2
        fits = _fits(gpus[large], submit[large], runtime[large], middle, 8 * scene.nodes * SLOT_H - used, used, delay)
        low, high = (low, middle) if fits else (middle, high)
    return low * (0.99 * (len(large) - 1) % 1)


def _fits(
    gpus: np.ndarray, submit: np.ndarray, runtime: np.ndarray, wait: float, free: np.ndarray, used: np.ndarray,
    delay: float,
) -> bool:  # fmt: skip
    """Whether all large jobs could wait at most so many hours; `free`, `used` and `delay` are GPU-hours."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    objective = solver.Objective()
    objective.SetMaximization()
    allowed = solver.Constraint(0, delay)
    slots = []
    for slot, room in enumerate(free):
        slots.append(solver.Constraint(-solver.infinity(), float(room)))
        later = solver.NumVar(0, float(used[slot]), "")  # what small jobs leave to large ones
        slots[-1].SetCoefficient(later, -1)
        allowed.SetCoefficient(later, 1)
    for width, begin, length in zip(gpus, submit, runtime, strict=True):
        whole = solver.Constraint(0, float(width * length))
        for slot in range(int(begin // SLOT_H), SLOTS):
            span = min(begin + length + wait, (slot + 1) * SLOT_H) - max(begin, slot * SLOT_H)
            if span <= 0:
                break
            part = solver.NumVar(0, float(width * span), "")
            whole.SetCoefficient(part, 1)
            slots[slot].SetCoefficient(part, 1)
            objective.SetCoefficient(part, 1)
    return solver.Solve() == 0 and objective.Value() >= (1 - 1e-6) * float((gpus * runtime).sum())
