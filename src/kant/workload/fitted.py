"""A generator fitted to a trace: its arrivals, requests, run times, users and limits as a small file without names.

Arrivals are those of `generate/arrivals.py`: a Gamma renewal process of submissions under a rate of hour of day x
weekday x slow noise. Each submission has a user and a request (a *shape*), and contains one or more equal jobs. Run
times follow the quantiles of the trace's jobs of the same size class; limits follow the limits of its jobs with similar
run times.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.random import PCG64, Generator, SeedSequence

from kant.files import open_bytes, write_bytes
from kant.model.errors import InputError
from kant.model.units import GPU, SECOND
from kant.workload.generate.arrivals import session_sizes, session_starts
from kant.workload.generate.law import Floats
from kant.workload.generate.row import ClusterStatistics
from kant.workload.workload import Ints, Workload, make_workload

FORMAT = "kant-fit-1"
DAY_S = 86400.0
MOST_JOBS = 5_000_000

QUANTILES: Floats = np.unique(np.concatenate((np.linspace(0, 1, 51), [0.002, 0.005, 0.01, 0.99, 0.995, 0.998, 0.999])))
"""The ranks at which run times are stored. Between them run times are assumed to be log-uniform."""
BINS = 10
"""The number of equal parts of a size class's run times; each part has its own limits."""


class FittedRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a job, and the share of jobs that have it; `size` is the index of their size class."""

    gpus: int
    pods: int
    milli: int
    cpu: int
    memory: int
    weight: float
    size: int


class SizeClass(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs of one size class: run times (seconds at QUANTILES), limits, and users.

    `limits[b]` has pairs of a limit in seconds (-1: none) and its weight for the b-th tenth of the run times. `users`
    has pairs of a user and that user's weight.
    """

    name: str
    run_times: list[float]
    limits: list[list[tuple[float, float]]]
    users: list[tuple[int, float]]


class FittedWorkload(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole generator. `queues[u]` is the queue of user u; users and queues are only numbers.

    `sessions[i]` is the weight of submissions of i + 1 jobs, `inner` the seconds between the jobs of one submission, at
    QUANTILES. The other fields are those of `generate.row.ClusterStatistics`.
    """

    format: str
    days: float
    per_hour: float
    hours: list[float]
    weekdays: list[float]
    noise: float
    memory: float
    gap: float
    sessions: list[float]
    inner: list[float]
    shapes: list[FittedRequest]
    sizes: list[SizeClass]
    queues: list[int]

    @property
    def arrivals(self) -> ClusterStatistics:
        """Return the parameters of the arrivals, in the form that `generate/arrivals.py` needs."""
        return ClusterStatistics(
            name="fitted", source="a fit", gpus=0, per_hour=self.per_hour, sizes=(), durations=(),
            hours=tuple(self.hours), weekdays=tuple(self.weekdays), noise=self.noise, memory=self.memory, gap=self.gap,
            sessions=tuple(self.sessions),
        )  # fmt: skip


def draw(fit: FittedWorkload, *, days: float | None = None, jobs: int | None = None, seed: int = 0) -> Workload:
    """Draw a workload of `days` days (None: as many as the trace had) from a fit. It is the same for the same seed.

    It has `jobs` jobs (None: as many as arrive in these days at the trace's rate). Time zero is a Monday at 00:00.
    Raises InputError for values out of range.
    """
    days = fit.days if days is None else days
    if not 1 / 24 <= days <= 3660:
        raise InputError("days", "a number from 1/24 to 3660", days)
    count = max(1, round(fit.per_hour * days * 24)) if jobs is None else jobs
    if not 1 <= count <= MOST_JOBS:
        raise InputError("jobs", f"a number from 1 to {MOST_JOBS}", count)
    if not 0 <= seed < 1 << 63:
        raise InputError("seed", "a whole number from 0 to 2^63 - 1", seed)
    arrivals, bodies, who = (Generator(PCG64(part)) for part in SeedSequence(seed).spawn(3))
    sessions = session_sizes(bodies, fit.arrivals, count)
    starts = (session_starts(arrivals, fit.arrivals, len(sessions), days * DAY_S) * SECOND).astype(np.int64)
    chosen = _choose(bodies, np.array([shape.weight for shape in fit.shapes]), len(sessions))
    columns = np.array([(s.gpus, s.pods, s.milli, s.cpu, s.memory, s.size) for s in fit.shapes], dtype=np.int64)[chosen]
    user = np.zeros(len(sessions), dtype=np.int64)
    each = np.repeat(columns, sessions, axis=0)
    runtime, limit = np.zeros(count, dtype=np.int64), np.full(count, -1, dtype=np.int64)
    for number, size in enumerate(fit.sizes):
        mine = columns[:, 5] == number
        users = np.array([code for code, _ in size.users])
        user[mine] = users[_choose(who, np.array([weight for _, weight in size.users]), int(mine.sum()))]
        jobs_of = each[:, 5] == number
        runtime[jobs_of], limit[jobs_of] = _runs(bodies, size, int(jobs_of.sum()))
    users_of = np.repeat(user, sessions)
    queue = np.array(fit.queues, dtype=np.int64)[users_of]
    submit = np.repeat(starts, sessions) + _since_start(arrivals, fit, sessions)
    order = np.argsort(submit, kind="stable")
    each, runtime, limit, queue, users_of = (column[order] for column in (each, runtime, limit, queue, users_of))
    return make_workload(
        f"fitted-{seed}",
        submit[order],
        runtime,
        each[:, 0],
        pods=each[:, 1],
        milli=each[:, 2],
        cpu=each[:, 3],
        memory=each[:, 4],
        limit=limit,
        queue=queue,
        queues=tuple(f"queue-{number + 1}" for number in range(max(fit.queues) + 1)),
        user=users_of,
        users=tuple(f"user-{number + 1}" for number in range(len(fit.queues))),
        origin=0,
    )


def _since_start(rng: Generator, fit: FittedWorkload, sessions: Ints) -> Ints:
    """Return how long after the first job of its submission each job arrives, in microseconds."""
    gaps = np.rint(np.interp(rng.random(int(sessions.sum())), QUANTILES, fit.inner) * SECOND).astype(np.int64)
    firsts = np.cumsum(sessions) - sessions
    gaps[firsts] = 0
    passed = np.cumsum(gaps)
    since: Ints = passed - np.repeat(passed[firsts], sessions)
    return since


def _choose(rng: Generator, weights: Floats, count: int) -> Ints:
    return rng.choice(len(weights), size=count, p=weights / weights.sum()).astype(np.int64)


def _runs(rng: Generator, size: SizeClass, count: int) -> tuple[Ints, Ints]:
    """Return run times and limits of `count` jobs in microseconds. No job runs longer than its limit."""
    part = rng.random(count)
    seconds = np.exp(np.interp(part, QUANTILES, np.log(np.maximum(size.run_times, 1e-6))))
    runtime = np.maximum(np.rint(seconds), 1).astype(np.int64) * SECOND
    limit = np.full(count, -1, dtype=np.int64)
    tenth = np.minimum((part * BINS).astype(np.int64), BINS - 1)
    for number, pairs in enumerate(size.limits):
        mine = np.flatnonzero(tenth == number)
        values = np.array([round(value * SECOND) if value >= 0 else -1 for value, _ in pairs], dtype=np.int64)
        limit[mine] = values[_choose(rng, np.array([weight for _, weight in pairs]), len(mine))]
    return np.where(limit > 0, np.minimum(runtime, limit), runtime), limit


def write_fit(fit: FittedWorkload, path: Path) -> None:
    """Write a fit as JSON. Raises InputError if the file cannot be written."""
    try:
        write_bytes(path, msgspec.json.format(msgspec.json.encode(fit), indent=1) + b"\n")
    except (OSError, ValueError) as error:
        raise InputError(str(path), "a file that can be written", str(error)) from None


def read_fit(path: Path) -> FittedWorkload:
    """Read the fit in a file. Raises InputError for an invalid file."""
    with open_bytes(path) as stream:
        content = stream.read()
    try:
        fit = msgspec.json.decode(content, type=FittedWorkload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(str(path), f"a fit that `kant trace fit` has written ({error})") from None
    for what, good in (
        ("format", fit.format == FORMAT),
        ("per_hour, days, gap", min(fit.per_hour, fit.days, fit.gap) > 0),
        ("noise, memory", fit.noise >= 0 and 0 <= fit.memory < 1),
        ("hours", len(fit.hours) == 24 and min(fit.hours) >= 0 < max(fit.hours)),
        ("weekdays", len(fit.weekdays) == 7 and min(fit.weekdays) >= 0 < max(fit.weekdays)),
        ("sessions", _weights(fit.sessions)),
        ("inner", _is_rising(fit.inner)),
        ("shapes", _weights([shape.weight for shape in fit.shapes]) and all(_is_shape(fit, s) for s in fit.shapes)),
        ("sizes", bool(fit.sizes) and all(_is_size(fit, size) for size in fit.sizes)),
        ("queues", all(0 <= queue < 10**6 for queue in fit.queues)),
    ):
        if not good:
            raise InputError(f"{path}, field {what}", "the output of `kant trace fit`")
    return fit


def _weights(values: list[float]) -> bool:
    return bool(values) and min(values) >= 0 and 0 < sum(values) < float("inf")


def _is_shape(fit: FittedWorkload, shape: FittedRequest) -> bool:
    sane = 0 <= shape.size < len(fit.sizes) and 1 <= shape.milli <= GPU
    return sane and min(shape.gpus, shape.pods, shape.cpu, shape.memory) >= 0


def _is_rising(values: list[float]) -> bool:
    return len(values) == len(QUANTILES) and values == sorted(values) and values[0] >= 0 and values[-1] < 1e11


def _is_size(fit: FittedWorkload, size: SizeClass) -> bool:
    limits = len(size.limits) == BINS and all(
        _weights([weight for _, weight in pairs]) and all(-1 <= value < 1e11 for value, _ in pairs)
        for pairs in size.limits
    )
    users = _weights([weight for _, weight in size.users])
    return (
        _is_rising(size.run_times) and limits and users and all(0 <= user < len(fit.queues) for user, _ in size.users)
    )
