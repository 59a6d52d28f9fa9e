"""Keeps the record of the live run: across state rebuilds of the driver, and joined with the past before this start."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.logs import log_event
from kant.live.record.lasting_record import LastingRecord
from kant.local.record import OVER, JobPhase, JobRecord
from kant.model.status import JobStatus
from kant.service.past import Reader, Steps

log = logging.getLogger("kant.service")
SLICE = 0.004  # seconds of reading at a time
PAUSE = 0.012  # seconds of pause between two slices
ENDS = {JobPhase.FINISHED: JobStatus.FINISHED, JobPhase.CANCELLED: JobStatus.CANCELLED}


class Recorded:
    """Keeps one record of the current core across rebuilds. `find` returns any job by its id."""

    def __init__(self, find: Callable[[str], JobRecord | None]) -> None:
        self.find = find
        self.run: LastingRecord | None = None
        self._core: Core | None = None

    def begin_rebuild(self, core: Core) -> None:
        """Start following a core whose state is being rebuilt."""
        zero, profile, waits = core.zero, core.profile.name, core.waits
        if self.run is None:
            self.run = LastingRecord(core.state, secrets.token_hex(4), zero=zero, profile=profile, waits=waits)
            self.run.notes = []
        else:
            self.run.begin_rebuild(core.state, zero, profile, waits)
        self._core = core
        core.observers.append(self.run)

    def finish_rebuild(self) -> None:
        """Finish the rebuild: the new state contains all earlier jobs."""
        if self.run is not None and self._core is not None:
            self.run.finish_rebuild(self._core.now)

    async def remember(self, journals: Journals) -> None:
        """Read the journals of earlier starts, a little at a time, and prepend them to the record."""
        reader, began = Reader(journals), time.monotonic()
        steps = reader.steps()
        try:
            while (work := _some(steps)) is not None:
                await asyncio.to_thread(work)
                await asyncio.sleep(PAUSE)
        except Exception as error:
            if self.run is not None:
                self.run.notes = None
            log_event(log, "what was before this start is not shown", logging.WARNING, error=str(error))
            return
        if self.run is not None and reader.record is not None:
            self.run.adopt(reader.record)
            seconds = round(time.monotonic() - began, 3)
            log_event(log, "the past is read", journals=reader.journals_read, jobs=len(self.run.ids), seconds=seconds)
        elif self.run is not None:
            self.run.notes = None

    def resolve_missing(self) -> None:
        """Look up in the store what happened to jobs that ended while Kant was down."""
        assert self.run is not None, "asked once the state has been built"
        for job, left in list(self.run.left.items()):
            record = self.find(job)
            if record is None:
                self.run.resolve_missing(job, JobStatus.CANCELLED, left.seen + self.run.zero)
            elif record.phase in OVER:
                self.run.resolve_missing(job, ENDS.get(record.phase, JobStatus.REJECTED), record.ended)

    def waited(self, job: str) -> dict[str, int] | None:
        """Return the wait of a job, in total and by cause; None for a job that is not in the record."""
        return None if self.run is None or self._core is None else self.run.waited(job, self._core.now)

    def note(self, job: str, what: str, text: str) -> None:
        """Add a sentence about a job to its history, such as who gave an order."""
        if self.run is not None and self._core is not None:
            self.run.note(job, self._core.now, what, text)


def _some(steps: Steps) -> Callable[[], None] | None:
    """Take steps for `SLICE` seconds, or until a step yields a function to call, which is returned. None at the end."""
    end = time.monotonic() + SLICE
    while time.monotonic() < end:
        try:
            work = next(steps)
        except StopIteration:
            return None
        if work is not None:
            return work
    return _nothing


def _nothing() -> None:
    """Do nothing."""
