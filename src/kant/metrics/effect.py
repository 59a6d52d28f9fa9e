"""The effect of a change: two futures of the same jobs, without it and with it, by queue and by size class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kant.metrics.result import JobTable, RunResult, Series
from kant.metrics.statistics import over_time, spread
from kant.metrics.summary import size_masks
from kant.model.status import JobStatus
from kant.model.units import GPU, SECOND

SHOWN = 10
"""Number of jobs named among those that gain most, and among those that lose most."""

OUT = (JobStatus.REJECTED, JobStatus.CANCELLED)
NO_NAMES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Pairs:
    """The jobs that wait in at least one future and are rejected or cancelled in neither; a row for each."""

    id: list[str]
    queue: list[str]
    milli: np.ndarray  # milli-GPUs
    before: np.ndarray  # waits, microseconds
    after: np.ndarray

    @property
    def change(self) -> np.ndarray:
        """How much longer each job waits after the change."""
        return np.asarray(self.after - self.before)


def pairs(before: RunResult, after: RunResult, waited: dict[str, int], renamed: Mapping[str, str] = NO_NAMES) -> Pairs:
    """Return the jobs to compare. `waited` has the jobs that run when the futures diverge, with their waits until then.

    `renamed` maps the id of a job before the change to its id after the change, if they differ.
    """
    rows = {name: row for row, name in enumerate(after.jobs.id)}
    kept: list[tuple[int, int]] = []
    for row, name in enumerate(before.jobs.id):
        other = rows.get(renamed.get(name, name), -1)
        if other < 0 or int(before.jobs.status[row]) in OUT or int(after.jobs.status[other]) in OUT:
            continue
        if name not in waited or max(int(before.jobs.wait[row]), int(after.jobs.wait[other])) > waited[name]:
            kept.append((row, other))
    own, others = (np.array([pair[i] for pair in kept], dtype=np.int64) for i in (0, 1))
    return Pairs(
        [before.jobs.id[row] for row in own.tolist()],
        [before.queues[code] for code in before.jobs.queue[own].tolist()],
        before.jobs.gpus[own],
        before.jobs.wait[own],
        after.jobs.wait[others],
    )


def waits(found: Pairs, quantile: str) -> dict[str, Any]:
    """Return the waits before and after: of all jobs, by queue and by size class, without empty groups."""
    queues = np.array(found.queue, dtype=object)
    by_queue = {name: queues == name for name in dict.fromkeys(found.queue)}
    sizes = {name: mask for name, mask in size_masks(found.milli).items() if mask.any()}
    all_jobs = np.ones(len(found.id), dtype=np.bool_)
    return {
        "all": _row(found, all_jobs, quantile),
        "by_queue": {name: _row(found, by_queue[name], quantile) for name in sorted(by_queue)},
        "by_size": {name: _row(found, mask, quantile) for name, mask in sizes.items()},
    }


def _row(found: Pairs, mask: np.ndarray, quantile: str) -> dict[str, Any]:
    change = found.change[mask]
    sooner, later = change[change < 0], change[change > 0]
    return {
        "jobs": int(mask.sum()),
        "before_s": _some(spread(found.before[mask], quantile)),
        "after_s": _some(spread(found.after[mask], quantile)),
        "sooner": {"jobs": len(sooner), "mean_s": float(-sooner.mean()) / SECOND if len(sooner) else None},
        "later": {"jobs": len(later), "mean_s": float(later.mean()) / SECOND if len(later) else None},
    }


def _some(found: dict[str, float | None]) -> dict[str, float | None]:
    return {name: found[name] for name in ("mean", "p50", "p90")}


def curve(found: Pairs) -> dict[str, list[float]]:
    """Return the percentiles 0 to 100 of the waits before and after, seconds; empty without jobs."""
    if not found.id:
        return {"before_s": [], "after_s": []}
    parts = np.arange(101) / 100
    return {
        name: (np.quantile(waits, parts) / SECOND).round(3).tolist()
        for name, waits in (("before_s", found.before), ("after_s", found.after))
    }


def most_changed(found: Pairs) -> dict[str, list[dict[str, Any]]]:
    """Return the jobs whose waits shorten most (`helped`) and lengthen most (`harmed`), ties by name."""

    def named(key: Callable[[int], int]) -> list[dict[str, Any]]:
        rows = sorted((row for row in range(len(found.id)) if key(row) < 0), key=lambda row: (key(row), found.id[row]))
        return [
            {
                "job": found.id[row],
                "queue": found.queue[row],
                "gpus": int(found.milli[row]) / GPU,
                "before_s": int(found.before[row]) / SECOND,
                "after_s": int(found.after[row]) / SECOND,
            }
            for row in rows[:SHOWN]
        ]

    change = found.change.tolist()
    return {"helped": named(lambda row: change[row]), "harmed": named(lambda row: -change[row])}


def ratios(series: Series, end: int) -> dict[str, float | None]:
    """Return GAR and GFR (means over time) and SOR from the first sample to `end`."""
    shown = series.time < end
    spans = np.diff(np.append(series.time[shown], end)) if shown.any() else np.zeros(0, dtype=np.int64)
    serving = series.in_service[shown] > 0
    spans = spans[serving]
    held, served, broken, nodes = (
        column[shown][serving] for column in (series.allocated, series.in_service, series.fragmented, series.nodes)
    )
    capacity = float((served * (spans / SECOND)).sum())
    return {
        "gar": over_time(held / served, spans)["mean"],
        "sor": float((held * (spans / SECOND)).sum()) / capacity if capacity > 0 else None,
        "gfr": over_time(broken / nodes, spans)["mean"],
    }


def only(jobs: JobTable, rows: np.ndarray) -> JobTable:
    """Return the table of some of the jobs."""
    return JobTable(
        id=[jobs.id[row] for row in rows.tolist()],
        queue=jobs.queue[rows],
        gpus=jobs.gpus[rows],
        submit=jobs.submit[rows],
        first_start=jobs.first_start[rows],
        end=jobs.end[rows],
        wait=jobs.wait[rows],
        preemptions=jobs.preemptions[rows],
        status=jobs.status[rows],
        fewest=jobs.fewest[rows] if jobs.fewest is not None else None,
    )
