"""Progress of many runs: lines or a bar."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.progress import Progress, TaskID

from kant.cli.progress import EVERY_S, QUIET_S
from kant.experiments.design import PlannedRun
from kant.experiments.pool import EndedRun, RunObserver
from kant.model.units import SECOND, show_duration


class Estimate:
    """Estimates the remaining time from the durations of finished runs of the same profile, workload and cluster."""

    def __init__(self, waiting: Sequence[PlannedRun], at_once: int) -> None:
        self.at_once = at_once
        self.left = dict.fromkeys(waiting, 1.0)
        self._walls: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        self._all: list[float] = []

    def ends(self, run: PlannedRun, wall_s: float, failed: bool) -> None:
        """Record that a run has ended after `wall_s` seconds. Failed runs do not affect the estimate."""
        self.left.pop(run, None)
        if not failed:
            self._walls[_kind(run)].append(wall_s)
            self._all.append(wall_s)

    def is_at(self, run: PlannedRun, part: float) -> None:
        """Record which share of a run is done, from 0 to 1."""
        self.left[run] = 1 - part

    def seconds(self) -> float | None:
        """Return the seconds until all runs have ended; None before any run has."""
        if not self._all:
            return None
        rest = sum(part * _mean(self._walls.get(_kind(run)) or self._all) for run, part in self.left.items())
        return rest / max(min(self.at_once, len(self.left)), 1)


def _kind(run: PlannedRun) -> tuple[str, str, str]:
    return (run.profile, run.workload, run.cluster)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class RunCounts(RunObserver):
    """Counts runs; prints their progress, and how many failed, every few seconds on standard error."""

    def __init__(self, waiting: Sequence[PlannedRun], at_once: int) -> None:
        self.total = len(waiting)
        self.done = self.failed = self.under_way = 0
        self.estimate = Estimate(waiting, at_once)
        self._next = time.monotonic() + QUIET_S

    def begins(self, run: PlannedRun) -> None:
        self.under_way += 1

    def is_at(self, run: PlannedRun, part: float) -> None:
        self.estimate.is_at(run, part)

    def ends(self, ended: EndedRun) -> None:
        self.under_way -= self.under_way > 0
        self.done += 1
        self.failed += ended.summary is None
        self.estimate.ends(ended.run, ended.wall_s, ended.summary is None)
        self.ticks()

    def ticks(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            print(f"{self.done:,} of {self.total:,} runs done, {self}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        left = self.estimate.seconds()
        rest = "" if left is None else f", about {show_duration(round(left) * SECOND)} left"
        return f"{self.under_way} under way" + (f", {self.failed} failed" if self.failed else "") + rest


class Bar(RunCounts):
    """A bar on the terminal, removed when all is done."""

    def __init__(self, waiting: Sequence[PlannedRun], at_once: int, bars: Progress, task: TaskID) -> None:
        super().__init__(waiting, at_once)
        self.bars, self.task = bars, task

    def ticks(self) -> None:
        self.bars.update(self.task, completed=self.done, note=str(self))


@contextmanager
def watched(waiting: Sequence[PlannedRun], at_once: int, quiet: bool) -> Iterator[RunObserver]:
    """Yield an observer: a silent one if `quiet`, otherwise a bar or lines."""
    if quiet or not waiting:
        yield RunObserver()
    elif sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

        from kant.cli.runs import errors

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs, {task.fields[note]}"))
        with Progress(*columns, console=errors, transient=True) as bars:
            yield Bar(waiting, at_once, bars, bars.add_task("", total=len(waiting), note=""))
    else:
        yield RunCounts(waiting, at_once)
