"""Wait or place: is it better to start now, spread out, or later, close together?

Both starts come from the calendar, and the resulting run times from the communication model. Waiting is better if the
job then ends no later: it also holds its GPUs for a shorter time.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kant.cluster.shapes import Shape
from kant.model.job import Job, Level
from kant.model.units import FOREVER, show_duration
from kant.placement.calendar.calendar import Calendar
from kant.placement.cost.communication import FULL
from kant.placement.cost.slowdown import T_LEAVES, T_NODES, Slowdowns


@dataclass(frozen=True, slots=True)
class PossibleStart:
    """A possible start of a job (µs). `slowdown`: its run time there, in thousandths of that at its best placement."""

    start: int
    end: int
    slowdown: int
    nodes: int
    leaves: int

    @property
    def words(self) -> str:
        """The placement as text, and its slowdown."""
        over = f"{self.leaves} leaves" if self.leaves > 1 else f"{self.nodes} node{'s' * (self.nodes > 1)} of one leaf"
        slower = f", {(self.slowdown - FULL) / 10:.1f} % slower" if self.slowdown > FULL else ""
        return f"over {over}{slower}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The earliest start on any nodes, and the earliest in one domain of `level`; None if there is none."""

    now: int
    level: Level
    anywhere: PossibleStart | None
    near: PossibleStart | None

    @property
    def wait(self) -> bool:
        """Return whether the job should wait for a placement in one domain."""
        if self.near is None or self.anywhere is None:
            return self.near is not None
        return self.near.end <= self.anywhere.end

    def __str__(self) -> str:
        if self.anywhere is None:
            return "no start can be foreseen"
        first = f"{self._when(self.anywhere)} {self.anywhere.words}"
        if self.near is None:
            return f"{first}; one {self.level} is never free for it"
        if self.wait and self.near.start <= self.anywhere.start:
            return f"{self._when(self.near)} {self.near.words}: no reason to wait"
        later = f"{show_duration(max(self.near.start - self.anywhere.start, 0))} more for one {self.level}"
        gain = abs(self.anywhere.end - self.near.end)
        verdict = (
            f"waiting ends {show_duration(gain)} {'sooner' if self.wait else 'later'}" if gain else "both end together"
        )
        return f"{later}, or {first}: {verdict}"

    def _when(self, possible: PossibleStart) -> str:
        return "now" if possible.start <= self.now else f"in {show_duration(possible.start - self.now)}"


def wait_or_place(calendar: Calendar, slowdowns: Slowdowns, job: Job, level: Level, work: int, now: int) -> Choice:
    """Return the choice of `job` from `now` on; `work` is its run time at its best placement, in microseconds."""
    shapes = slowdowns.state.shapes
    anywhere = shapes.of(msgspec.structs.replace(job, within="", within_required=False))
    near = shapes.of(msgspec.structs.replace(job, within=level, within_required=True))
    return Choice(
        now,
        level,
        _start_of(calendar, slowdowns, anywhere, work, now),
        _start_of(calendar, slowdowns, near, work, now),
    )


def _start_of(calendar: Calendar, slowdowns: Slowdowns, shape: Shape, work: int, now: int) -> PossibleStart | None:
    """Return the earliest start at which devices are free for as long as the job takes to run on them."""
    duration = work
    while True:
        found = calendar.earliest(shape, duration, now)
        if found is None:
            return None
        start, allocation = found
        spans = slowdowns.spans(allocation)
        slowdown = slowdowns.of(shape.index, spans)
        needed = -(-work * slowdown // FULL)
        if needed <= duration or work >= FOREVER:
            return PossibleStart(start, start + needed, slowdown, int(spans[T_NODES]), int(spans[T_LEAVES]))
        duration = needed
