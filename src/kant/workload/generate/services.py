"""Inference services next to training: base jobs that run to the end, and replicas whose number depends on the hour.

The numbers are Kant's own, because no trace distinguishes base jobs from replicas. Services use few GPUs each and never
end. Their load in the afternoon is three times their load at night.
"""

from __future__ import annotations

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from kant.model.units import HOUR, SECOND
from kant.workload.generate.row import ClusterStatistics
from kant.workload.generate.tenants import draw_tenants
from kant.workload.workload import Ints, Workload, make_workload

CORE_SIZES, CORE_WEIGHTS = (1, 2, 4, 8), (0.35, 0.25, 0.2, 0.2)
BASE_PRIORITY, REPLICA_PRIORITY = 100, 50
CORE_PART = 0.7
"""The base jobs' share of the services' GPU-time. The burst replicas use the rest."""
REPLICA_HOURS = (0.5, 4.0)
DAY_SHAPE = np.array([1 + np.cos(2 * np.pi * (hour - 15) / 24) / 2 for hour in range(24)])
"""The rate of burst replicas by hour of day: highest at 15:00, and a third of that at 3:00."""


def services(row: ClusterStatistics, gpus: float, days: float, seed: int) -> Workload:
    """Return services that use `gpus` GPUs on average over `days` days, with the tenants of `row`.

    Base jobs arrive within the first twentieth of the span and end with it. They are not preemptible and have priority
    100. Burst replicas have the size, the queue and the name of their base job, priority 50, and are preemptible.
    """
    draw = Generator(PCG64(SeedSequence([seed, 0x5E])))
    span = days * 24.0
    sizes: list[int] = []
    begins: list[float] = []
    held = 0.0
    while held < CORE_PART * gpus * span:
        sizes.append(int(draw.choice(CORE_SIZES, p=CORE_WEIGHTS)))
        begins.append(draw.random() * span / 20)
        held += sizes[-1] * (span - begins[-1])
    queue, user = draw_tenants(draw, row, len(sizes))
    bases = np.array(sorted(range(len(sizes)), key=begins.__getitem__), dtype=np.int64)
    size, begin = np.array(sizes)[bases], np.array(begins)[bases]
    hours = np.arange(int(span))
    rate = DAY_SHAPE[hours % 24] / DAY_SHAPE[hours % 24].sum() if len(hours) else np.zeros(0)
    owners: list[int] = []
    starts: list[float] = []
    lasts: list[float] = []
    left = (1 - CORE_PART) * gpus * span
    while left > 0 and len(hours) and len(bases):
        base = int(draw.integers(len(bases)))
        start = float(draw.choice(hours, p=rate)) + draw.random()
        last = float(draw.uniform(*REPLICA_HOURS))
        if begin[base] < start < span:
            owners.append(base)
            starts.append(start)
            lasts.append(last)
            left -= int(size[base]) * last
    owner = np.array(owners, dtype=np.int64)
    is_base = np.arange(len(bases) + len(owner)) < len(bases)
    whose: Ints = np.concatenate([np.arange(len(bases)), owner])
    jobs = make_workload(
        "services",
        _time(np.concatenate([begin, starts])),
        _time(np.concatenate([np.maximum(span - begin, 0.01), lasts])),
        size[whose].astype(np.int64),
        pods=np.ones(len(whose), dtype=np.int64),
        queue=queue[bases][whose],
        user=user[bases][whose],
        base_job=np.where(is_base, -1, whose),
        priority=np.where(is_base, BASE_PRIORITY, REPLICA_PRIORITY),
        preemptible=np.where(is_base, 0, 1),
        title=whose,
        titles=tuple(f"service{i}" for i in range(len(bases))) or ("",),
        ids=[f"service{i}" for i in range(len(bases))] + [f"service{c}-burst{i}" for i, c in enumerate(owners)],
        origin=0,
    )
    return jobs.take(np.argsort(jobs.submit, kind="stable"))


def _time(hours: np.ndarray) -> Ints:
    """Return hours as microseconds, rounded to whole seconds."""
    whole: Ints = np.rint(np.asarray(hours) * (HOUR // SECOND)).astype(np.int64) * SECOND
    return whole


def mixed(training: Workload, serving: Workload) -> Workload:
    """Merge both workloads, in order of submission. Both must have the queues and users of the same cluster."""
    columns = {
        name: np.concatenate([getattr(training, name), getattr(serving, name)])
        for name in ("submit", "runtime", "gpus", "pods", "milli", "cpu", "memory", "limit", "priority", "overhead",
                     "queue", "user", "models", "preemptible")
    }  # fmt: skip
    shifted = np.where(serving.base_job >= 0, serving.base_job + len(training), -1)
    both = make_workload(
        training.name,
        columns.pop("submit"),
        columns.pop("runtime"),
        columns.pop("gpus"),
        **columns,
        base_job=np.concatenate([training.base_job, shifted]),
        title=np.concatenate([training.title, serving.title + len(training.titles)]),
        titles=(*training.titles, *serving.titles),
        ids=[*training.ids, *serving.ids],
        queues=training.queues,
        users=training.users,
        origin=0,
        notes=training.notes,
    )
    return both.take(np.argsort(both.submit, kind="stable"))
