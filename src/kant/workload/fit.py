"""Fits a generator to a trace, and measures by quantiles how close a drawn workload is to the trace."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from kant.model.errors import InputError
from kant.model.units import DAY, GPU, HOUR, SECOND, SIZE_CLASSES
from kant.workload.anonymous import MONDAY
from kant.workload.describe import hourly_counts
from kant.workload.fitted import BINS, FORMAT, QUANTILES, FittedRequest, FittedWorkload, SizeClass
from kant.workload.generate.law import Floats
from kant.workload.workload import Ints, Workload

FEWEST = 20
"""The minimum number of jobs for a fit."""
MOST_SHAPES, MOST_USERS, MOST_LIMITS, LONGEST_SESSION = 200, 5000, 20, 1000
WITHIN = 60 * SECOND
"""Equal jobs of one user belong to one submission if each comes at most WITHIN microseconds after the previous."""
DATED = 10**9 * SECOND
"""Times above this (the year 2001) count from 1970. Otherwise time zero is assumed to be a Monday at 00:00."""


def fit(workload: Workload) -> FittedWorkload:
    """Fit the generator of `workload`, without names. Raises InputError for fewer than 20 jobs or less than an hour.

    Jobs of one user and one shape that follow each other within a minute are one submission. Rates by hour of day need
    two days of data, rates by weekday two weeks; with less data they are uniform.
    """
    n = len(workload)
    span = int(workload.submit[-1] - workload.submit[0]) if n else 0
    if n < FEWEST or span < HOUR:
        raise InputError(workload.name, f"at least {FEWEST} jobs over at least an hour", f"{n} jobs")
    shape, shapes = _shapes(workload)
    first = _first_of_session(workload, shape)
    queues, user = _users(workload)
    size = np.array([entry.size for entry in shapes])[shape]
    present = np.unique(size)
    place = np.full(len(SIZE_CLASSES), -1)
    place[present] = np.arange(len(present))
    sizes = [_size_class(workload, size == number, SIZE_CLASSES[number][0], user) for number in present.tolist()]
    starts = workload.submit[first] + workload.origin
    hours, weekdays = _rhythm(starts)
    noise, memory, gap = _bursts(starts, hours, weekdays)
    lengths = np.diff(np.append(np.flatnonzero(first), n))
    inner = np.diff(workload.submit)[~first[1:]] / SECOND
    return FittedWorkload(
        format=FORMAT,
        days=span / DAY,
        per_hour=n / (span / HOUR),
        hours=hours.tolist(),
        weekdays=weekdays.tolist(),
        noise=noise,
        memory=memory,
        gap=gap,
        sessions=np.bincount(np.minimum(lengths, LONGEST_SESSION))[1:].astype(float).tolist(),
        inner=np.quantile(inner if len(inner) else np.zeros(1), QUANTILES).tolist(),
        shapes=[
            FittedRequest(s.gpus, s.pods, s.milli, s.cpu, s.memory, s.weight, int(place[s.size])) for s in shapes
        ],
        sizes=sizes,
        queues=queues,
    )  # fmt: skip


def _shapes(workload: Workload) -> tuple[Ints, list[FittedRequest]]:
    """Return the shape of each job, and all shapes. Rare shapes are replaced by the most common of their size class."""
    class_of = np.searchsorted([largest for _, largest in SIZE_CLASSES], workload.total_gpus)
    keys = list(zip(workload.gpus.tolist(), workload.pods.tolist(), workload.milli.tolist(), class_of.tolist(),
                    strict=True))  # fmt: skip
    counts = Counter(keys)
    kept = [key for key, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    named: dict[tuple[int, int, int, int], int] = {}
    fallback: dict[int, int] = {}
    for key in kept:
        if len(named) < MOST_SHAPES or key[3] not in fallback:
            named[key] = len(named)
            fallback.setdefault(key[3], named[key])
    shape = np.array([named.get(key, fallback[key[3]]) for key in keys], dtype=np.int64)
    total = np.bincount(shape, minlength=len(named))
    found = []
    for key, code in named.items():
        mine = shape == code
        cpu, memory = (int(np.median(column[mine])) for column in (workload.cpu, workload.memory))
        found.append(FittedRequest(key[0], key[1], key[2], cpu, memory, int(total[code]) / len(keys), key[3]))
    return shape, found


def _first_of_session(workload: Workload, shape: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each job begins a submission. Similar jobs that soon follow belong to the same submission."""
    same = (np.diff(workload.submit) <= WITHIN) & (np.diff(workload.user) == 0) & (np.diff(workload.queue) == 0)
    same &= np.diff(shape) == 0
    return np.concatenate(([True], ~same))


def _users(workload: Workload) -> tuple[list[int], Ints]:
    """Return the queue of each user and the user of each job, as numbers in descending order of submissions.

    A user of several queues counts as several. The last number stands for all users beyond MOST_USERS.
    """
    pairs = list(zip(workload.queue.tolist(), workload.user.tolist(), strict=True))
    order = [pair for pair, _ in sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0]))]
    code = {pair: min(number, MOST_USERS - 1) for number, pair in enumerate(order)}
    queues: dict[int, int] = {}
    of_user = [queues.setdefault(queue, len(queues)) for queue, _ in order[:MOST_USERS]]
    return of_user, np.array([code[pair] for pair in pairs], dtype=np.int64)


def _size_class(
    workload: Workload, mine: np.ndarray[tuple[int], np.dtype[np.bool_]], name: str, user: Ints
) -> SizeClass:
    seconds = workload.runtime[mine] / SECOND
    order = np.argsort(seconds, kind="stable")
    limit = workload.limit[mine][order]
    limits: list[list[tuple[float, float]]] = []
    for part in np.array_split(limit, BINS):
        values, counts = np.unique(part if len(part) else limit, return_counts=True)
        most = np.argsort(-counts, kind="stable")[:MOST_LIMITS]
        limits.append([(v / SECOND if v >= 0 else -1.0, float(c)) for v, c in
                       zip(values[most].tolist(), counts[most].tolist(), strict=True)])  # fmt: skip
    users, counts = np.unique(user[mine], return_counts=True)
    return SizeClass(
        name,
        np.quantile(seconds, QUANTILES).tolist(),
        limits,
        [(int(code), float(count)) for code, count in zip(users, counts, strict=True)],
    )


def _clock(starts: Ints) -> tuple[Ints, Ints]:
    """Return the hour of day and the weekday (from Monday) of each time."""
    aligned = starts - MONDAY if int(starts[0]) > DATED else starts
    return aligned // HOUR % 24, aligned // DAY % 7


def _rhythm(starts: Ints) -> tuple[Floats, Floats]:
    """Return the relative rate of each hour of day and weekday; its mean over the hours of the trace is one."""
    span = int(starts[-1] - starts[0])
    every = np.arange(int(starts[0]) // HOUR, int(starts[-1]) // HOUR + 1) * HOUR
    hour, day = _clock(every)
    hours, weekdays = np.ones(24), np.ones(7)
    if span >= 2 * DAY:
        hours = _relative(np.bincount(_clock(starts)[0], minlength=24), np.bincount(hour, minlength=24))
    if span >= 14 * DAY:
        weekdays = _relative(np.bincount(_clock(starts)[1], minlength=7), np.bincount(day, minlength=7))
    return hours, weekdays


def _relative(counts: Ints, seen: Ints) -> Floats:
    rate = counts / np.maximum(seen, 1)
    return np.asarray(rate / rate.mean())


def _bursts(starts: Ints, hours: Floats, weekdays: Floats) -> tuple[float, float, float]:
    """Return the deviation and the hourly correlation of the slow noise, and the Gamma shape of the gaps, from moments.

    The variance of hourly counts with expectation e is e, plus e^2 (exp(noise^2) - 1) from the noise.
    """
    counts = hourly_counts(starts - int(starts[0]) // HOUR * HOUR).astype(float)
    hour, day = _clock((np.arange(len(counts)) + int(starts[0]) // HOUR) * HOUR)
    expected = hours[hour] * weekdays[day]
    expected *= counts.sum() / max(expected.sum(), 1e-12)
    off = counts - expected
    square = float((expected**2).mean())
    noise = math.sqrt(math.log1p(max(float((off**2 - expected).mean()) / square, 0.0)))
    memory = 0.0
    if noise > 0 and len(off) > 2:
        shared = float((off[1:] * off[:-1]).mean()) / float((expected[1:] * expected[:-1]).mean() or square)
        memory = min(max(math.log1p(max(shared, 0.0)) / noise**2, 0.0), 0.99)
    number = starts // HOUR
    inside = np.flatnonzero(np.diff(number) == 0)
    rate = counts[(number[inside] - int(number[0])).astype(np.int64)]
    busy = rate >= 5  # with fewer, a gap within the hour says little
    gaps = np.diff(starts)[inside][busy] / HOUR * rate[busy]
    spread = float(gaps.var() / gaps.mean() ** 2) if len(gaps) >= FEWEST and gaps.mean() > 0 else 1.0
    return noise, memory, min(max(1 / max(spread, 1e-9), 0.05), 5.0)


SHOWN = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


def quality(trace: Workload, drawn: Workload) -> list[dict[str, object]]:
    """Compare a drawn workload with the trace: for each quantity the quantiles of both, and the distance.

    The distance is the largest difference of the two distribution functions (Kolmogorov and Smirnov's statistic): 0 if
    they are equal, 1 if they do not overlap.
    """
    pairs = zip(_quantities(trace), _quantities(drawn), strict=True)
    return [
        {
            "quantity": name,
            "distance": distance(before, after),
            "trace": {f"p{100 * part:g}": float(value) for part, value in _quantiles(before)},
            "generated": {f"p{100 * part:g}": float(value) for part, value in _quantiles(after)},
        }
        for (name, before), (_, after) in pairs
        if len(before) and len(after)
    ]


def _quantiles(values: Floats) -> list[tuple[float, float]]:
    return list(zip(SHOWN, np.quantile(values, SHOWN).tolist(), strict=True))


def distance(a: Floats, b: Floats) -> float:
    """Return the largest difference of the distribution functions of two samples."""
    every = np.concatenate((a, b))
    below = [np.searchsorted(np.sort(values), every, side="right") / len(values) for values in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def _quantities(workload: Workload) -> list[tuple[str, Floats]]:
    seconds = workload.runtime / SECOND
    gpus = workload.total_gpus * (workload.milli / GPU)
    found = [
        ("seconds between submissions", np.diff(workload.submit) / SECOND),
        ("jobs an hour", hourly_counts(workload.submit - int(workload.submit[0])).astype(float)),
        ("GPUs of a job", gpus),
        ("run time, s", seconds),
        ("GPU-hours of a job", gpus * seconds / 3600),
    ]
    low = -1
    for name, largest in SIZE_CLASSES:
        mine = (workload.total_gpus > low) & (workload.total_gpus <= largest)
        low = largest
        found.append((f"run time of {name} GPUs, s", seconds[mine]))
    limited = workload.limit > 0
    found.append(("limit, s", workload.limit[limited] / SECOND))
    found.append(("run time over limit", workload.runtime[limited] / workload.limit[limited]))
    _, jobs = np.unique(workload.queue * (int(workload.user.max()) + 1) + workload.user, return_counts=True)
    found.append(("rank of the user", np.repeat(np.arange(1.0, len(jobs) + 1), np.sort(jobs)[::-1])))
    return found
