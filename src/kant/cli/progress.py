"""Progress of runs: bars on a terminal, otherwise a line for each run every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kant.model.units import DAY, FOREVER, SECOND, show_duration

if TYPE_CHECKING:
    from rich.progress import Progress

    from kant.workload.workload import Ints

QUIET_S = 10.0
"""Seconds before the first lines are printed."""
EVERY_S = 5.0


@dataclass(slots=True)
class Track:
    """The progress of one run. `began` is the monotonic time of its first update in seconds, None before that."""

    label: str
    jobs: int
    days: float
    began: float | None = None
    done: int = 0
    day: float = 0.0

    def left_s(self) -> float | None:
        """Return the estimated remaining seconds; None if nothing is done."""
        if self.began is None or self.done == 0:
            return None
        return (time.monotonic() - self.began) * (self.jobs - self.done) / self.done

    def __str__(self) -> str:
        if self.began is None:
            return f"{self.label}: kernels are compiled, or read from their cache"
        left = self.left_s()
        rest = "" if left is None else f", about {show_duration(round(left) * SECOND)} left"
        return f"{self.label}: day {self.day:.1f} of {self.days:.1f}, {self.done:,} of {self.jobs:,} jobs done{rest}"


class ProgressDisplay:
    """The interface of a display of the progress of runs. This class itself shows nothing."""

    def begin(self, label: str) -> None:
        """Record that a run starts; Numba may compile functions before its first update."""

    def update(self, label: str, done: int, now: int) -> None:
        """Record that `done` jobs are done at the simulated time `now`, in microseconds."""

    def end(self, label: str) -> None:
        """Record that a run has ended."""

    def tick(self) -> None:
        """Refresh the display."""


class Lines(ProgressDisplay):
    """Prints a line for each run every few seconds, on standard error."""

    def __init__(self, jobs: int, days: float) -> None:
        self.jobs = jobs
        self.days = days
        self.tracks: dict[str, Track] = {}
        self._next = time.monotonic() + QUIET_S

    def begin(self, label: str) -> None:
        self.tracks[label] = Track(label, self.jobs, self.days)

    def update(self, label: str, done: int, now: int) -> None:
        track = self.tracks[label]
        track.began = track.began or time.monotonic()
        track.done, track.day = done, now / DAY
        self.tick()

    def end(self, label: str) -> None:
        del self.tracks[label]

    def tick(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            for track in self.tracks.values():
                print(track, file=sys.stderr, flush=True)


class Bars(Lines):
    """Shows a bar for each run on the terminal, removed when all are done."""

    def __init__(self, jobs: int, days: float, bars: Progress) -> None:
        super().__init__(jobs, days)
        self.bars = bars
        self.bar_of: dict[str, Any] = {}

    def begin(self, label: str) -> None:
        super().begin(label)
        self.bar_of[label] = self.bars.add_task(label, total=None, day="compiling")

    def end(self, label: str) -> None:
        self.bars.update(self.bar_of[label], completed=self.jobs, total=self.jobs, day="done")
        super().end(label)

    def tick(self) -> None:
        for label, track in self.tracks.items():
            if track.began is not None:
                day = f"day {track.day:.1f} of {track.days:.1f}"
                self.bars.update(self.bar_of[label], completed=track.done, total=track.jobs, day=day)


@contextmanager
def shown(jobs: int, span: int, quiet: bool = False) -> Iterator[ProgressDisplay]:
    """Show the progress of runs of `jobs` jobs over `span` microseconds of simulated time; show nothing if `quiet`."""
    if quiet:
        yield ProgressDisplay()
    elif sys.stderr.isatty():
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from kant.cli.runs import errors

        with Progress(
            TextColumn("{task.description:>20}"), BarColumn(), TextColumn("{task.fields[day]}"), MofNCompleteColumn(),
            TextColumn("jobs"), TimeRemainingColumn(), console=errors, transient=True,
        ) as bars:  # fmt: skip
            yield Bars(jobs, span / DAY, bars)
    else:
        yield Lines(jobs, span / DAY)


def span_of(until: int, submissions: Ints) -> int:
    """Return the simulated microseconds that a run covers: until `until`, or the last submission if there is no end."""
    last = int(submissions[-1]) if len(submissions) else 0
    return until if until < FOREVER else max(last, 1)
