"""The statistics of one cluster that a generator follows, as data with their source."""

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
    """One cluster of `gpus` GPUs, in which `per_hour` jobs arrived per hour.

    `durations` has, for each class of sizes, its maximum number of GPUs and the distribution of its durations. `shares`
    are the thousandths of a GPU that one-GPU jobs request, with weights. The rate is multiplied by `hours`, `weekdays`
    (from Monday) and noise exp(x); x is normal with deviation `noise` and hourly correlation `memory`. Gaps between
    sessions are Gamma of shape `gap`. `sessions[i]` is the weight of sessions of i + 1 identical jobs.
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
