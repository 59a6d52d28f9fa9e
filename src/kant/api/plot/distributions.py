"""How long jobs wait, and how long until they finish: cumulative distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kant.api.plot.figure import Figure
from kant.api.plot.style import legend, line_of, log_times, look, names_of, tick_below
from kant.api.result import Result
from kant.model.status import JobStatus
from kant.model.units import SECOND

Floats = NDArray[np.float64]


def waits(*results: Result, labels: Sequence[str] | None = None, size: tuple[float, float] = (4.2, 2.6)) -> Figure:
    """Plot the share of jobs that waited at most a given time, a line for each result; logarithmic time.

    Rejected and cancelled jobs do not count. A job that never started counts as waiting forever, so its line ends below
    100 %. Waits below the first time tick are at the left edge. If most jobs hardly wait, the share does not begin at
    0. `labels` name the lines, `size` is in inches.
    """
    return _cumulative("Wait", [_waits(one) for one in results], names_of(labels, results), size)


def completions(
    *results: Result, labels: Sequence[str] | None = None, size: tuple[float, float] = (4.2, 2.6)
) -> Figure:
    """Plot the share of jobs that finished within a given time of their submission, a line for each result.

    Rejected and cancelled jobs do not count; a job that had not finished at the end counts as never finishing.
    """
    return _cumulative("Completion time", [_completions(one) for one in results], names_of(labels, results), size)


def _waits(one: Result) -> Floats:
    jobs = one.inner.jobs
    found = np.where(jobs.first_start >= 0, jobs.wait / SECOND, np.inf)
    return found[_admitted(jobs)]


def _completions(one: Result) -> Floats:
    jobs = one.inner.jobs
    found = np.where(jobs.status == JobStatus.FINISHED, (jobs.end - jobs.submit) / SECOND, np.inf)
    return found[_admitted(jobs)]


def _admitted(jobs: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (jobs.status != JobStatus.REJECTED) & (jobs.status != JobStatus.CANCELLED)
    return found


def cumulative(times: Floats) -> tuple[Floats, Floats]:
    """Return the steps of an empirical distribution: distinct finite times, and the share of all `times` up to each."""
    values, counts = np.unique(times[np.isfinite(times)], return_counts=True)
    return values, np.cumsum(counts) / max(len(times), 1)


def _cumulative(what: str, times: list[Floats], names: list[str], size: tuple[float, float]) -> Figure:
    with look():
        from matplotlib.figure import Figure as Inner
        from matplotlib.ticker import MaxNLocator

        inner = Inner(figsize=size)
        axes = inner.subplots()
        finite = np.concatenate([found[np.isfinite(found)] for found in times])
        least = tick_below(float(np.quantile(finite, 0.01)) if len(finite) else 1.0)
        most = max(float(finite.max(initial=1.0)) * 1.3, 10.0 * least)
        lowest = 1.0
        for number, (name, found) in enumerate(zip(names, times, strict=True)):
            at, share = cumulative(found)
            below = float(share[at <= least].max(initial=0.0))
            at, share = at[at > least], share[share > below]
            last = share[-1] if len(share) else below
            lowest = min(lowest, below)
            axes.plot(
                [least, *at, most], [100 * part for part in (below, *share, last)], drawstyle="steps-post", label=name,
                **line_of(number),
            )  # fmt: skip
        log_times(axes, least, most)
        axes.set_ylim(10 * int(10 * lowest - 0.1) if lowest > 0.5 else 0, 100.5)
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        axes.set_xlabel(what)
        axes.set_ylabel("Jobs (%)")
        legend(axes, len(names))
    return Figure(inner, f"{what} of {', '.join(names)}: cumulative distribution over jobs")
