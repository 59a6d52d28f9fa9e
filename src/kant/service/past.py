"""The past of a Kant that was started again: the record of the earlier starts, read from the journals that they left.

A line at a time, so that whoever has the loop can read a little between two turns; what takes longer can be done in a
thread. The last journal read is the one that is written now: when all of it is read, the record stands where the live
one stands, and takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from kant.cluster.journal import Footer, Header, Line, read_lines
from kant.cluster.state import ClusterState
from kant.live.journals import Journals
from kant.live.logs import said
from kant.live.record import RunRecord
from kant.live.succession import arrived, follow
from kant.model.decision import Plan
from kant.model.errors import InputError, Violation
from kant.model.event import Event
from kant.model.units import count_from
from kant.scheduler.profile import Profile
from kant.sim.replay import profile_of

log = logging.getLogger("kant.service")
MOST_BYTES = 64 << 20
"""Of the earlier journals the latest are read, up to so much together."""
MOST_JOURNALS = 100

ROUNDING = 1000
"""Microseconds by which a journal may seem to begin before the one before it ended."""

Steps = Generator[Callable[[], None] | None]


class Reader:
    """Reads journals one after the other into one `record`; None while there is nothing."""

    def __init__(self, journals: Journals, most_bytes: int = MOST_BYTES) -> None:
        self.journals = journals
        self.most_bytes = most_bytes
        self.record: RunRecord | None = None
        self.journals_read = 0

    def steps(self) -> Steps:
        """Yields after each line, or work to be done before the next. At the end `record` stands where the one of the
        present stands, or is None.

        A journal, or the rest of one, that cannot be read means less past. Raises InputError where the journal of the
        present cannot be read.
        """
        done = ""
        for path in self._earlier():
            done = path.name
            try:
                yield from self._read(path)
            except (InputError, OSError) as error:
                said(log, "an earlier journal is not shown, or not all of it", logging.WARNING, error=str(error))
        while self.record is not None:
            present = self.journals.path
            if present is None:
                raise InputError(f"the journal in {self.journals.folder}", "one that is being written")
            following = [path for path in sorted(self.journals.folder.glob("*.jsonl")) if path.name > done]
            path = next(iter(following), present)
            done = path.name
            yield from self._read(path)
            if path == self.journals.path:
                return

    def _earlier(self) -> list[Path]:
        present, size = self.journals.path, 0
        found: list[Path] = []
        if present is None:
            return found
        for path in sorted(self.journals.folder.glob("*.jsonl"), reverse=True):
            if path.name >= present.name:
                continue
            size += path.stat().st_size
            if size > self.most_bytes or len(found) == MOST_JOURNALS:
                break
            found.append(path)
        return found[::-1]

    def _read(self, path: Path) -> Steps:
        with path.open("rb") as file:
            flush = self.journals.flush if path == self.journals.path else _nothing
            lines = read_lines(whole(file, flush), str(path))
            header = next(lines, None)
            if isinstance(header, Header):
                self.journals_read += 1
                yield from self._fold(header, lines, path)

    def _fold(self, header: Header, lines: Iterator[Line], path: Path) -> Steps:
        profile = profile_of(header, path)
        building = _Building(header, profile, path)
        yield building.work
        state, record = building.result(), self.record
        if record is None:
            record = self.record = RunRecord(state, "past", zero=header.zero, profile=profile.name)
        else:
            last = record.zero + record.ahead + max(record.last, record.state.now)
            if header.zero + header.begins + ROUNDING < last:
                raise InputError(f"{path}:1: begins", f"a journal that is later than the one before ({last})")
            follow(record, state, header.zero, profile.name)
        entered = False
        try:
            for number, line in enumerate(lines, start=2):
                if isinstance(line, Header):
                    continue
                if not entered and (isinstance(line, Plan | Footer) or line.time >= header.begins):
                    entered = True
                    yield partial(arrived, record, header.begins)
                count_from(header.zero)
                if isinstance(line, Footer):
                    record.last = line.time
                elif isinstance(line, Plan):
                    record.decided(line)
                else:
                    _take(record, line, f"{path}:{number}")
                yield None
        finally:
            if not entered:
                arrived(record, header.begins)


class _Building:
    """A state that is built: of a large cluster that takes a second."""

    def __init__(self, header: Header, profile: Profile, path: Path) -> None:
        self.header, self.profile, self.path = header, profile, path
        self.state: ClusterState | None = None
        self.violation: Violation | None = None

    def work(self) -> None:
        """Build it."""
        profile = self.profile
        try:
            self.state = ClusterState(self.header.cluster, learn=profile.estimates.learns, workloads=profile.matches)
        except Violation as violation:
            self.violation = violation

    def result(self) -> ClusterState:
        """The state. Raises InputError."""
        if self.state is None:
            raise InputError(f"{self.path}:1: cluster", f"a cluster that can be counted: {self.violation}")
        return self.state


def _take(record: RunRecord, event: Event, where: str) -> None:
    try:
        record.state.apply(event)
    except (Violation, OverflowError) as violation:
        raise InputError(where, f"an event that fits the state: {violation}") from None
    record.happened(event)


def whole(file: BinaryIO, flush: Callable[[], object]) -> Iterator[bytes]:
    """The whole lines of a file that may still grow, up to its end after a `flush` that brought nothing more."""
    rest = b""
    while True:
        line = file.readline()
        if not line.endswith(b"\n"):
            rest += line
            flush()
            line = file.readline()
            if not line:
                return
        rest += line
        if rest.endswith(b"\n"):
            yield rest
            rest = b""


def _nothing() -> None:
    """Nobody writes to it any more."""
