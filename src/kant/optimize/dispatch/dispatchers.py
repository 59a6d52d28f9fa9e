"""The compared schedulers of short tasks, by name, and the results of a run under one of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kant.model.choice import ALPHA
from kant.model.errors import InputError
from kant.model.taxonomy import Tags
from kant.optimize.dispatch import kernel
from kant.optimize.dispatch.kernel import BLIND, CACHE, END, FEWER, LATE, POOL, PROBE, SCORE
from kant.optimize.dispatch.tasks import TaskStream, machines

DISPATCHES: Tags = {
    "level": ("cluster",),
    "architecture": ("decentralised",),
    "unit": ("task",),
    "timing": ("online",),
    "knowledge": ("estimated",),
    "objective": ("latency", "messages"),
    "preemption": ("none",),
    "resources": ("multi-d", "heterogeneous"),
    "method": ("randomised",),
    "freshness": ("live",),
}
"""The tags that most of the dispatchers share (`kant.model.taxonomy`)."""
DODOOR = "Dodoor, arXiv 2510.12889"
BLIND_TAGS = {**DISPATCHES, "knowledge": ("none",), "resources": ("none",)}


@dataclass(frozen=True, slots=True)
class TaskDispatcher:
    """One way in which many schedulers place tasks.

    `choices` machines are drawn for each task, in proportion to their cores if `weighted`. With a cache, a scheduler
    reports its decisions to a store in groups of `flush`. The store updates all schedulers after `batch` decisions; if
    that is 0, only the scheduler that has just reported. A machine reports its load at each end of a task, or after
    `report` ends. `own`: a scheduler adds its own decisions to its cache.
    """

    about: str
    view: int
    rule: int = FEWER
    choices: int = 2
    flush: int = 8
    batch: int = 80
    report: int = 0
    own: bool = False
    weighted: bool = False
    alpha: float = ALPHA
    source: str = DODOOR
    tags: Tags = field(default_factory=lambda: DISPATCHES)

    def __post_init__(self) -> None:
        """Raise InputError for numbers with which the compiled code would read or write outside its arrays."""
        most = 2 if self.view == LATE else 100
        if not 1 <= self.choices <= most:
            raise InputError("the choices of a dispatcher", f"a number from 1 to {most}", self.choices)
        if self.flush < 1 or self.batch < 0 or self.report < 0:
            numbers = (self.flush, self.batch, self.report)
            raise InputError("flush, batch and report of a dispatcher", "a flush from 1 on, the others from 0", numbers)


DISPATCHERS = {
    "random": TaskDispatcher("Any machine.", BLIND, choices=1, source="the simplest there is", tags=BLIND_TAGS),
    "two-choices": TaskDispatcher(
        "Of two probed machines, the one with fewer tasks.", PROBE,
        source="M. Mitzenmacher, IEEE TPDS 12(10), 2001", tags={**BLIND_TAGS, "objective": ("latency",)},
    ),
    "two-choices-score": TaskDispatcher("Of two probed machines, the one with the lower score.", PROBE, SCORE),
    "two-choices-cached": TaskDispatcher(
        "Of two machines, the one with fewer tasks by the cache.", CACHE, tags={**BLIND_TAGS, "freshness": ("cached",)}
    ),
    "dodoor": TaskDispatcher(
        "Of two machines, the one with the lower score by the cache.", CACHE, SCORE,
        tags={**DISPATCHES, "freshness": ("cached",)},
    ),
    "sparrow": TaskDispatcher(
        "Reservations at two machines; the first that has room gets the task.", LATE,
        source="Sparrow, SOSP 2013", tags={**BLIND_TAGS, "objective": ("latency",)},
    ),
    "prequal": TaskDispatcher(
        "Probes three machines ahead of time; of a pool of answers, the least latency that is not hot.", POOL,
        choices=3, source="Prequal, NSDI 2024",
        tags={**DISPATCHES, "objective": ("latency",), "resources": ("1-d",), "freshness": ("cached",)},
    ),
    "ends": TaskDispatcher(
        "Of four machines, drawn by their cores, the one with the earliest expected end by a cache that counts own "
        "decisions; the reply to eight of them refreshes it.",
        CACHE, END, choices=4, batch=0, report=2, own=True, weighted=True, source="this project, after Dodoor",
        tags={**DISPATCHES, "freshness": ("cached",), "method": ("randomised", "rule")},
    ),
}  # fmt: skip
"""The dispatchers by name."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The results of a run: latencies (microseconds from arrival to end), the machine of each task, and messages.

    `sent` counts the messages of schedulers without answers, as in the paper. `reports` counts those of machines to the
    store. `one_way` counts all messages, including answers.
    """

    latencies: NDArray[np.int64]
    places: NDArray[np.int64]
    span: int
    sent: float
    reports: float
    one_way: float

    @property
    def mean_s(self) -> float:
        """The mean latency, in seconds."""
        return float(self.latencies.mean()) / 1e6

    def quantile_s(self, part: float) -> float:
        """The latency that the share `part` of the tasks does not exceed, in seconds."""
        return float(np.sort(self.latencies)[min(len(self.latencies) - 1, int(part * len(self.latencies)))]) / 1e6


def picks_of(count: int, by: TaskDispatcher, seed: int, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The machines drawn for each of `count` tasks: `choices` + 1 machines, and at least eight."""
    weights = np.cumsum(sizes[:, 0] if by.weighted else np.ones(len(sizes)))
    draws = np.random.default_rng((seed, 3)).random((count, max(8, by.choices + 1)))
    return np.searchsorted(weights / weights[-1], draws, side="right").astype(np.int64)


def dispatch(
    tasks: TaskStream, by: TaskDispatcher, seed: int, *, schedulers: int = 5, delay_us: int = 250, fifo: bool = False
) -> Dispatched:
    """Let `schedulers` place the tasks in turn. A message takes `delay_us` one way.

    A machine starts waiting tasks that fit, in order, one in each of its slots. With `fifo` it has slots for all tasks,
    and no task overtakes another. The seed determines which machines are drawn; they are the same for all dispatchers.
    """
    if not 1 <= schedulers <= 1000:
        raise InputError("the schedulers", "a number from 1 to 1,000", schedulers)
    kinds, sizes = machines()
    if fifo:
        sizes[:, 2] = 1 << 40
    n = len(tasks.arrivals)
    picks = picks_of(n, by, seed, sizes)
    settings = np.array(
        [by.view, by.rule, by.choices, by.own, by.flush, by.batch or 1, not by.batch, by.report, schedulers,
         delay_us, not fifo], np.int64,
    )  # fmt: skip
    ends, places = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    counts = kernel.run_tasks(
        tasks.arrivals, tasks.needs, tasks.times, kinds, sizes, picks, settings, by.alpha, ends, places
    )
    assert (ends > 0).all()
    sent, reports, one_way = (float(each) / n for each in counts)
    return Dispatched(ends - tasks.arrivals, places, int(ends.max()), sent, reports, one_way)
