"""Rebuilds the record of the time before a restart from the journals of earlier starts.

The journals are read line by line, so that the event loop can read a little in each turn; longer work can run in a
thread. The last journal is the one being written now: at its end, the record equals the live record and replaces it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from kant.cluster.journal import read_lines
from kant.cluster.state import ClusterState
from kant.live.journal_walk import JournalWalk
from kant.live.journals import Journals
from kant.live.logs import log_event
from kant.live.record.lasting_record import LastingRecord
from kant.model.decision import Plan
from kant.model.errors import InputError
from kant.model.units import count_from
from kant.scheduler.profile import Profile

log = logging.getLogger("kant.service")
MOST_BYTES = 64 << 20
"""Maximum number of bytes of earlier journals that are read; the latest journals are preferred."""
MOST_JOURNALS = 100

ROUNDING = 1000
"""Microseconds by which a journal may begin before the previous one ended, due to rounding."""

Steps = Generator[Callable[[], None] | None]


class Reader:
    """Reads journals in order into one `record`, which is None until something has been read."""

    def __init__(self, journals: Journals, most_bytes: int = MOST_BYTES) -> None:
        self.journals = journals
        self.most_bytes = most_bytes
        self.record: LastingRecord | None = None
        self.journals_read = 0

    def steps(self) -> Steps:
        """Read in steps: yield None after each line, or a function to be called before the next step. At the end
        `record` is None, or as recent as the live record.

        If an earlier journal cannot be read from some line on, that part is missing. Raises InputError if the current
        journal cannot be read.
        """
        done = ""
        for path in self._earlier():
            done = path.name
            try:
                yield from self._read(path)
            except (InputError, OSError) as error:
                log_event(log, "an earlier journal is not shown, or only in part", logging.WARNING, error=str(error))
        while self.record is not None:
            present = self.journals.path
            if present is None:
                raise InputError(f"the journal in {self.journals.folder}", "a current journal; none is being written")
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
            first = next(lines, None)
            if first is not None:
                self.journals_read += 1
                yield from self._fold(JournalWalk(chain([first], lines), path))

    def _fold(self, walk: JournalWalk) -> Steps:
        header, profile = walk.header, walk.profile()
        building = _Building(walk, profile)
        yield building.work
        state, record = building.result(), self.record
        if record is None:
            record = self.record = LastingRecord(state, "past", zero=header.zero, profile=profile.name)
        else:
            last = record.zero + record.ahead + max(record.last, record.state.now)
            if header.zero + header.begins + ROUNDING < last:
                raise InputError(f"{walk.path}:1: begins", f"a time from the end of the previous journal on ({last})")
            record.begin_rebuild(state, header.zero, profile.name)
        entered = False
        try:
            for line in walk:
                if not entered and (isinstance(line, Plan) or line.time >= header.begins):
                    entered = True
                    yield partial(record.finish_rebuild, header.begins)
                count_from(header.zero)
                if isinstance(line, Plan):
                    record.decided(line)
                else:
                    walk.apply(record.state, line)
                    record.happened(line)
                yield None
            if walk.footer is not None:
                record.last = walk.footer.time
        finally:
            if not entered:
                record.finish_rebuild(header.begins)


class _Building:
    """Builds a cluster state in `work`, which takes about a second for a large cluster and may run in a thread."""

    def __init__(self, walk: JournalWalk, profile: Profile) -> None:
        self.walk, self.profile = walk, profile
        self.state: ClusterState | None = None
        self.error: InputError | None = None

    def work(self) -> None:
        """Build the state."""
        try:
            self.state = self.walk.new_state(self.profile)
        except InputError as error:
            self.error = error

    def result(self) -> ClusterState:
        """Return the built state. Raises the InputError of `work`."""
        if self.state is None:
            raise self.error or InputError(str(self.walk.path), "a journal whose state was built")
        return self.state


def whole(file: BinaryIO, flush: Callable[[], object]) -> Iterator[bytes]:
    """Yield the complete lines of a growing file, until calling `flush` (which writes buffered lines) adds none."""
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
    """Do nothing: the `flush` of a journal that is no longer written."""
