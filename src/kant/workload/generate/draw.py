"""Draws a workload by the statistics of a cluster: sizes and run times, then arrivals, then submitters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence

from kant.model.errors import InputError
from kant.model.units import GPU, SECOND
from kant.workload.generate.arrivals import session_sizes, session_starts
from kant.workload.generate.couple import Coupling, couple
from kant.workload.generate.law import Floats
from kant.workload.generate.row import ClusterStatistics
from kant.workload.generate.rows import ROWS
from kant.workload.generate.services import mixed
from kant.workload.generate.services import services as draw_services
from kant.workload.generate.tenants import draw_tenants, tenant_names
from kant.workload.workload import Ints, Workload, make_workload

MOST_JOBS = 5_000_000
DAY_S = 86400.0


def generate(
    row: str,
    *,
    jobs: int | None = None,
    days: float = 30,
    gpus: int | None = None,
    load: float | None = None,
    services: float = 0.0,
    tenants: int | None = None,
    seed: int = 0,
) -> Workload:
    """Draw a workload of `days` days that follows the row of this name (see ROWS). It is the same for the same seed.

    The number of jobs is exactly `jobs`; or, with `gpus` and `load`, as many as keep `load` times `gpus` GPUs busy on
    average (their GPU-time is within one job of that); or as many as the row's cluster had. With `gpus`, larger jobs
    are left out. `services` is the part of that load that inference services request instead (`generate/services.py`).
    `tenants` is the number of queues (None: as in the row). Raises InputError for values out of range or that
    contradict each other.
    """
    chosen = row_named(row)
    _check(jobs, days, gpus, load, seed)
    if tenants is not None:
        if not 1 <= tenants <= 10_000:
            raise InputError("tenants", "a number from 1 to 10000", tenants)
        chosen = replace(chosen, queues=tenants)
    if not 0 <= services < 1:
        raise InputError("services", "a share of the load from 0 to less than 1", services)
    if services and (gpus is None or load is None):
        raise InputError("services", "gpus and load too, as it is a share of that load")
    if gpus is not None:
        chosen = _up_to(chosen, gpus)
    streams = [Generator(PCG64(part)) for part in SeedSequence(seed).spawn(3)]
    span = days * DAY_S
    if gpus is not None and load is not None:
        bodies = _bodies_for(chosen, streams[0].bit_generator, (1 - services) * load * gpus * span)
    else:
        count = jobs if jobs is not None else max(1, round(chosen.per_hour * days * 24))
        bodies = _bodies(chosen, streams[0], _bounded(count))
    starts = session_starts(streams[1], chosen, len(bodies.sessions), span) * SECOND
    queue, user = draw_tenants(streams[2], chosen, len(bodies.sessions))
    queues, users = tenant_names(chosen)
    training = make_workload(
        f"{row}-{seed}",
        np.repeat(starts.astype(np.int64), bodies.sessions),
        bodies.seconds * SECOND,
        bodies.gpus,
        pods=np.where(bodies.milli < GPU, 1, 0),
        milli=bodies.milli,
        queue=np.repeat(queue, bodies.sessions),
        user=np.repeat(user, bodies.sessions),
        queues=queues,
        users=users,
        origin=0,
        notes=(f"generated after {row}: {chosen.source}",),
    )
    if not services or gpus is None or load is None:
        return training
    return mixed(training, draw_services(chosen, services * load * gpus, days, seed))


def row_named(name: str) -> ClusterStatistics:
    """Return the row of this name. Raises InputError, which lists the existing rows."""
    if name not in ROWS:
        raise InputError("generator", f"one of {', '.join(ROWS)}", name)
    return ROWS[name]


def _check(jobs: int | None, days: float, gpus: int | None, load: float | None, seed: int) -> None:
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise InputError("jobs", f"a number from 1 to {MOST_JOBS}", jobs)
    if not 1 / 24 <= days <= 3660:
        raise InputError("days", "a number from 1/24 to 3660", days)
    if gpus is not None and not 1 <= gpus <= 10_000_000:
        raise InputError("gpus", "a number from 1 to 10000000", gpus)
    if load is not None and not 0 < load <= 100:
        raise InputError("load", "a number above 0 and at most 100", load)
    if load is not None and gpus is None:
        raise InputError("load", "gpus too, as the load is a share of their time")
    if load is not None and jobs is not None:
        raise InputError("jobs", "either jobs or a load, not both", jobs)
    if not 0 <= seed < 1 << 63:
        raise InputError("seed", "a whole number from 0 to 2^63 - 1", seed)


def _bounded(jobs: int) -> int:
    if jobs > MOST_JOBS:
        raise InputError("workload", f"a load and a span of at most {MOST_JOBS} jobs", jobs)
    return jobs


@lru_cache(maxsize=64)
def _up_to(row: ClusterStatistics, gpus: int) -> ClusterStatistics:
    return replace(row, sizes=tuple(size for size in row.sizes if size.gpus <= gpus))


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The requests and run times of jobs, in the order of sessions."""

    sessions: Ints
    gpus: Ints
    milli: Ints
    seconds: Ints


def _bodies(row: ClusterStatistics, rng: Generator, jobs: int) -> _Bodies:
    sessions = session_sizes(rng, row, jobs)
    parts = np.array([size.jobs for size in row.sizes])
    size = rng.choice(len(parts), size=len(sessions), p=parts / parts.sum())
    milli = np.full(len(sessions), GPU, dtype=np.int64)
    single = np.array([s.gpus for s in row.sizes])[size] == 1
    shares, weights = np.array(row.shares).T
    milli[single] = rng.choice(shares, size=int(single.sum()), p=weights / weights.sum()).astype(np.int64)
    size, milli = np.repeat(size, sessions), np.repeat(milli, sessions)
    seconds = np.zeros(jobs)
    for members, coupling in couplings(row):
        mask = (size >= members.start) & (size < members.stop)
        seconds[mask] = coupling.draw(rng, size[mask] - members.start)
    gpus = np.array([s.gpus for s in row.sizes], dtype=np.int64)[size]
    return _Bodies(sessions, gpus, milli, np.maximum(np.rint(seconds), 1).astype(np.int64))


def _bodies_for(row: ClusterStatistics, bits: object, gpu_seconds: float) -> _Bodies:
    """Return as many jobs as use `gpu_seconds` together, up to the job with which their sum is closest."""
    expected = gpu_seconds / gpu_seconds_per_job(row)
    state = bits.state  # type: ignore[attr-defined]
    tries = _bounded(math.ceil(expected * 1.2) + 20)
    while True:
        rng = Generator(PCG64())
        rng.bit_generator.state = state
        drawn = _bodies(row, rng, tries)
        used = np.cumsum(drawn.gpus * (drawn.milli / GPU) * drawn.seconds)
        if used[-1] >= gpu_seconds:
            break
        tries = _bounded(tries * 2)
    last = int(np.searchsorted(used, gpu_seconds))
    if last and gpu_seconds - used[last - 1] < used[last] - gpu_seconds:
        last -= 1
    keep = last + 1
    passed = np.cumsum(drawn.sessions)
    count = int(np.searchsorted(passed, keep)) + 1
    sessions = drawn.sessions[:count].copy()
    sessions[-1] -= passed[count - 1] - keep
    return _Bodies(sessions, drawn.gpus[:keep], drawn.milli[:keep], drawn.seconds[:keep])


@lru_cache(maxsize=64)
def couplings(row: ClusterStatistics) -> tuple[tuple[range, Coupling], ...]:
    """Return for each class of sizes with one distribution of durations: its indices in `row.sizes`, its coupling."""
    share = sum(milli * weight for milli, weight in row.shares) / sum(w for _, w in row.shares) / GPU
    made, start = [], 0
    for largest, law in row.durations:
        stop = start + sum(1 for size in row.sizes[start:] if size.gpus <= largest)
        if stop > start:
            members = row.sizes[start:stop]
            gpus: Floats = np.array([share if s.gpus == 1 else float(s.gpus) for s in members])
            jobs, time = np.array([s.jobs for s in members]), np.array([s.gpu_time for s in members])
            made.append((range(start, stop), couple(law, jobs, time, gpus)))
        start = stop
    return tuple(made)


def gpu_seconds_per_job(row: ClusterStatistics) -> float:
    """Return the expected GPU-seconds of one job."""
    share = sum(milli * weight for milli, weight in row.shares) / sum(w for _, w in row.shares) / GPU
    total = 0.0
    for members, coupling in couplings(row):
        for i, mean in zip(members, coupling.means.tolist(), strict=True):
            size = row.sizes[i]
            total += size.jobs * (share if size.gpus == 1 else size.gpus) * mean
    return total / sum(size.jobs for size in row.sizes)
