"""The statistics of one cluster that a generator follows, as data with its source."""

from __future__ import annotations

from dataclasses import dataclass

from kant.workload.generate.law import Mixture


@dataclass(frozen=True, slots=True)
class Size:
    """Jobs of `gpus` GPUs: their share of all jobs and of all GPU-time, both in percent."""

    gpus: int
    jobs: float
    gpu_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatistics:
    """One cluster of `gpus` GPUs that saw `per_hour` jobs an hour.

    `durations` has, for each class of sizes, its most GPUs and the distribution of its durations. `shares` are the
    thousandths of a GPU that one-GPU jobs ask for, with weights. `hours` and `weekdays` (from Monday) multiply the
    rate, as does noise exp(x) with x normal of deviation `noise` and correlation `memory` from hour to hour; gaps
    between sessions are Gamma of shape `gap`; `sessions[i]` is the weight of i + 1 identical jobs at once.
    """

    name: str
    source: str
    gpus: int
    per_hour: float
    sizes: tuple[Size, ...]
    durations: tuple[tuple[int, Mixture], ...]
    shares: tuple[tuple[int, float], ...] = ((1000, 1.0),)
    hours: tuple[float, ...]
    weekdays: tuple[float, ...]
    noise: float
    memory: float
    gap: float
    sessions: tuple[float, ...]
    queues: int = 12
    users_per_queue: int = 20
