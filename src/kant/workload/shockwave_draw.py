"""Workloads like those of Shockwave: jobs drawn by its rules, whose batch size changes during training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from kant.model.adaptive import (
    GNS_DOUBLES,
    LARGEST_BATCH,
    SAMPLES,
    AdaptiveJob,
    EpochRun,
    Mode,
    gns_batch,
    in_critical_regime,
    steps_of_epoch,
)
from kant.model.errors import InputError

EPOCH_S: dict[tuple[str, int], dict[int, float]] = {
    ("LM", 1): {5: 89.175, 10: 62.874732, 20: 43.843826, 40: 31.86233, 80: 34.354422},
    ("LM", 2): {5: 95.0, 10: 54.355446, 20: 33.017234, 40: 22.274762, 80: 20.52543},
    ("LM", 4): {5: 60.009972, 10: 34.097143, 20: 20.307299, 40: 12.983912, 80: 10.949083},
    ("Recommendation", 1): {512: 1.359831, 1024: 1.072868, 2048: 0.971468, 4096: 1.148212, 8192: 1.23739},
    ("ResNet-18", 1): {32: 36.358365, 64: 36.450008, 128: 33.173154, 256: 30.90621},
    ("ResNet-18", 2): {64: 20.914922, 128: 17.932785, 256: 16.123246},
    ("ResNet-18", 4): {32: 12.013467, 64: 10.714714, 128: 9.083028, 256: 8.300781},
    ("ResNet-50", 1): {16: 589.775, 32: 529.72, 64: 502.729726, 128: 488.925431},
    ("ResNet-50", 2): {16: 479.9, 32: 448.3884, 64: 263.100808},
    ("Transformer", 1): {16: 71.735, 32: 68.967652, 64: 75.28531, 128: 67.903975},
    ("Transformer", 2): {16: 45.265, 32: 38.787939, 64: 41.575438},
}
"""Seconds of an epoch by model, GPUs and batch size, as measured on V100 GPUs for Shockwave (its artifact, MIT)."""

SIZES, SIZE_SHARES = (1, 2, 4), (0.767, 0.167, 0.066)
SHORTEST_S, STEP_S, STEPS = 720.0, 174.5, 100
"""Run times lie on a grid of 100 values from 12 minutes to 5 hours."""
LOG_MEAN, LOG_DEVIATION = 8.05, 0.74
"""Mean and standard deviation of the logarithm of run times in seconds, as in the trace for 32 GPUs."""
TOO_SHORT_S = 1000.0
"""Jobs shorter than this keep their batch size under Accordion."""
SMALL_PART = 0.3
"""The first part of a job's epochs, in which the small batch size is used even under Accordion."""
MOST_JOBS = 100_000


def draw(jobs: int, interval: float, seed: int) -> list[AdaptiveJob]:
    """Draw `jobs` jobs with arrivals `interval` seconds apart on average. Raises InputError for values out of range.

    Half of them adapt by Accordion, and half by the gradient noise scale. Only models and batch sizes are drawn whose
    speed is known at every batch size that the job may use.
    """
    if not 1 <= jobs <= MOST_JOBS:
        raise InputError("--jobs", f"a whole number from 1 to {MOST_JOBS:,}", jobs)
    if not 0 <= interval <= 1e6:
        raise InputError("--interval", "from 0 to 1,000,000 seconds", interval)
    random = np.random.Generator(np.random.PCG64(seed))
    made, at = [], 0.0
    for i in range(jobs):
        gpus = int(random.choice(SIZES, p=SIZE_SHARES))
        mode: Mode = "accordion" if random.random() < 0.5 else "gns"
        seconds = float(np.exp(random.normal(LOG_MEAN, LOG_DEVIATION)))
        step = min(max(round((seconds - SHORTEST_S) / STEP_S), 0), STEPS - 1)
        declared = float(round(SHORTEST_S + step * STEP_S))
        if mode == "accordion" and declared < TOO_SHORT_S:
            mode = "static"
        known = [(model, first) for (model, g), batches in EPOCH_S.items() if g == gpus for first in batches]
        possible = [(model, first) for model, first in known if _is_known(model, mode, first, gpus)]
        model, first = possible[int(random.integers(len(possible)))]
        epochs = _epochs(model, mode, first, gpus, declared)
        made.append(AdaptiveJob(str(i), round(at), gpus, model, mode, declared, epochs, SAMPLES[model]))
        at += float(random.exponential(interval)) if interval else 0.0
    return made


def _is_known(model: str, mode: Mode, first: int, gpus: int) -> bool:
    measured = EPOCH_S[model, gpus]
    if mode == "accordion" and model != "Transformer":
        return LARGEST_BATCH[model] in measured
    doubles = len(GNS_DOUBLES.get((model, first, gpus), ())) if mode == "gns" else 0
    return all(min(first << times, LARGEST_BATCH[model]) in measured for times in range(doubles + 1))


def _epochs(model: str, mode: Mode, first: int, gpus: int, declared: float) -> tuple[EpochRun, ...]:
    """Return the profile of a job. At the first batch size its epochs fill the declared run time."""
    measured = EPOCH_S[model, gpus]
    steps = int(declared * SAMPLES[model] / first / measured[first])
    count = max(1, math.ceil(steps / steps_of_epoch(SAMPLES[model], first)))
    sizes = _batches(model, mode, first, gpus, count)
    return tuple(EpochRun(batch, measured[batch], len(list(run))) for batch, run in groupby(sizes))


def _batches(model: str, mode: Mode, first: int, gpus: int, count: int) -> Iterator[int]:
    for epoch in range(count):
        if mode == "gns":
            yield gns_batch(model, first, gpus, epoch)
        elif mode == "accordion" and epoch > SMALL_PART * count and not in_critical_regime(model, first, epoch):
            yield LARGEST_BATCH[model]
        else:
            yield first
