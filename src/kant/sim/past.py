"""The past of a what-if: a journal cut at a time, and the recorded events after that time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kant.cluster.journal import Header
from kant.live.journal_walk import read_journal
from kant.model.decision import Plan
from kant.model.errors import InputError
from kant.model.event import Event, JobProgressed
from kant.model.units import clock, count_from
from kant.scheduler.profile import Profile
from kant.sim.options import SimOptions, read_options


@dataclass(frozen=True, slots=True)
class Past:
    """A journal up to `now` (microseconds on the run's clock): its events, and the `later` ones, both in order.

    `profile` is the profile that decided, and `options` say how jobs ran. `last_instant` is the last instant up to
    `now` with an event or a decision; progress reports of running jobs do not count.
    """

    path: Path
    header: Header
    profile: Profile
    options: SimOptions
    now: int
    last_instant: int
    events: list[Event]
    later: list[Event]


def read_past(path: Path, time: int | None = None, today: int | None = None) -> Past:
    """Read the journal at `path`, cut after everything that happened by `time` (None: its end).

    A journal that is still being written ends at `today`: the present, in microseconds since the Unix epoch.

    Raises InputError for a broken journal, for a time outside it, and for an experiment in which nothing ever ends.
    """
    walk = read_journal(path)
    header, profile = walk.header, walk.profile()
    count_from(header.zero)
    options = read_options(profile.simulation, f"{path}:1: profile")
    if options.static:
        raise InputError(str(path), "a journal of jobs that end, not of static packing")
    events: list[Event] = []
    later: list[Event] = []
    moved = 0
    for line in walk:
        by_then = time is None or line.time <= time
        if by_then and not isinstance(line, JobProgressed) and not _is_idle(line):
            moved = line.time
        if not isinstance(line, Plan):
            (events if by_then else later).append(line)
    last = walk.time
    if time is not None and time < header.begins:
        raise InputError("--at", f"a time in the journal, which begins at {clock(header.begins)}", clock(time))
    if time is not None and time > last:
        raise InputError("--at", f"a time in the journal, which ends at {clock(last)}", clock(time))
    if time is None:
        time = last if today is None else max(last, today - header.zero)
    return Past(path, header, profile, options, time, moved, events, later)


def _is_idle(line: object) -> bool:
    """Return whether a line is a plan without decisions, which a journal has only if nodes fail."""
    return isinstance(line, Plan) and not line.decisions
