"""JournalWalk reads the lines of a journal in order, from the header to the end, and checks each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kant.cluster.journal import Cycled, Footer, Header, Line, read_lines
from kant.cluster.state import ClusterState
from kant.model.decision import Plan
from kant.model.errors import InputError, StateError
from kant.model.event import Event
from kant.scheduler.cycle import Scheduler
from kant.scheduler.partial_gangs import decide_again
from kant.scheduler.profile import Profile, builtin_profile, builtin_texts, parse_profile

LAST_BYTES = 1 << 20
"""Number of bytes at the end of a journal in which its last line is searched."""


def read_journal(path: Path) -> JournalWalk:
    """Return a walk through the journal at `path`. Raises InputError for a file that is not a journal."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(str(path), f"a journal that can be read ({error.strerror})") from None
    return JournalWalk(read_lines(iter(file), str(path)), path)


def has_header(path: Path) -> bool:
    """Return whether the first line of a journal is complete; Kant may have been killed while starting the file."""
    with path.open("rb") as file:
        return file.readline().endswith(b"\n")


def end_of(path: Path) -> int:
    """Return the time (µs on the run's clock) of the last complete line of a journal; 0 if it cannot be found."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, 2) - LAST_BYTES, 0))
            lines = file.read().split(b"\n")
        return max(int(msgspec.json.decode(lines[-2], type=_Timed).time), 0)
    except (OSError, IndexError, msgspec.DecodeError):
        return 0


class _Timed(msgspec.Struct):
    time: int


class JournalWalk:
    """Walks through one journal once.

    `number` is the number of the current line and `time` its time. `footer` is the line that ends the journal, once
    read; a journal that was cut short has none. `observe` is called with each distinct time from `observed_from` on,
    once all lines of that time have been processed and a line of a later time follows. `cycled` is called with the time
    of each cycle that decided nothing.
    """

    def __init__(self, lines: Iterator[Line], path: Path) -> None:
        header = next(lines, None)
        if not isinstance(header, Header):
            raise InputError(f"{path}:1", "the header of a Kant journal")
        self.header = header
        self.path = path
        self.number = 1
        self.time = 0
        self.footer: Footer | None = None
        self.observe: Callable[[int], object] | None = None
        self.observed_from = 0
        self.cycled: Callable[[int], object] | None = None
        self._lines = lines

    def __iter__(self) -> Iterator[Event | Plan]:
        """Yield the events and plans in order. Raises InputError for a line that is earlier than the line before."""
        for line in self._lines:
            self.number += 1
            assert not isinstance(line, Header), "a journal has one"
            if line.time < self.time:
                raise InputError(self.where, f"a time that is not before {self.time}, as above", line.time)
            if self.time < line.time > self.observed_from and self.observe is not None:
                self.observe(max(self.time, self.observed_from))
            self.time = line.time
            if isinstance(line, Footer):
                self.footer = line
            elif isinstance(line, Cycled):
                if self.cycled is not None:
                    self.cycled(line.time)
            else:
                yield line

    @property
    def where(self) -> str:
        """The file and number of the current line, for messages."""
        return f"{self.path}:{self.number}"

    def apply(self, state: ClusterState, event: Event) -> None:
        """Apply the current event to a state. Raises InputError if it contradicts the state."""
        try:
            state.apply(event)
        except (StateError, OverflowError) as violation:
            raise InputError(self.where, f"an event that is possible after the lines above ({violation})") from None

    def decide_again(self, scheduler: Scheduler, plan: Plan) -> Plan:
        """Return what the scheduler decides at the time of the journal's `plan`. Raises InputError if it cannot."""
        try:
            return decide_again(scheduler, plan)
        except (StateError, OverflowError) as violation:
            raise InputError(self.where, f"an event that is possible after the lines above ({violation})") from None

    def profile(self) -> Profile:
        """Return the profile that the journal was written under. Raises InputError."""
        if self.header.profile in builtin_texts():
            return builtin_profile(self.header.profile)
        return parse_profile(self.header.profile, f"{self.path}:1: profile")

    def new_state(self, profile: Profile) -> ClusterState:
        """Return the initial state of the header's cluster. Raises InputError."""
        try:
            return profile.new_state(self.header.cluster)
        except StateError as violation:
            raise InputError(f"{self.path}:1: cluster", f"a valid cluster ({violation})") from None

    def new_scheduler(self) -> Scheduler:
        """Return a scheduler with the header's profile and cluster. Raises InputError."""
        profile = self.profile()
        return Scheduler(self.new_state(profile), profile, self.header.seed)
