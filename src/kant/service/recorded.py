"""Keeps the record of the run that is live: across the states that its driver builds, and with the past before it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.logs import log_event
from kant.live.record import RunRecord
from kant.local.record import OVER, JobPhase, JobRecord
from kant.model.status import JobStatus
from kant.service.past import Reader, Steps

log = logging.getLogger("kant.service")
SLICE = 0.004  # seconds for which the past is read at a time
CALM = 0.012  # and then not
ENDS = {JobPhase.FINISHED: JobStatus.FINISHED, JobPhase.CANCELLED: JobStatus.CANCELLED}


class Recorded:
    """Follows the core that is, from one that was built to the next, in one record. `find` knows all jobs."""

    def __init__(self, find: Callable[[str], JobRecord | None]) -> None:
        self.find = find
        self.run: RunRecord | None = None
        self._core: Core | None = None

    def begin_rebuild(self, core: Core) -> None:
        """A state begins to be built."""
        zero, profile, waits = core.zero, core.profile.name, core.waits
        if self.run is None:
            self.run = RunRecord(core.state, secrets.token_hex(4), zero=zero, profile=profile, waits=waits)
            self.run.notes = []
        else:
            self.run.begin_rebuild(core.state, zero, profile, waits)
        self._core = core
        core.observers.append(self.run)

    def finish_rebuild(self) -> None:
        """All earlier jobs are in the state."""
        if self.run is not None and self._core is not None:
            self.run.finish_rebuild(self._core.now)

    async def remember(self, journals: Journals) -> None:
        """Read what was before this start, a little at a time, and go on from there."""
        reader, began = Reader(journals), time.monotonic()
        steps = reader.steps()
        try:
            while (work := _some(steps)) is not None:
                await asyncio.to_thread(work)
                await asyncio.sleep(CALM)
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
        """Of jobs that ended while no Kant was there, the store knows how."""
        assert self.run is not None, "asked once the state has been built"
        for job, left in list(self.run.left.items()):
            record = self.find(job)
            if record is None:
                self.run.resolve_missing(job, JobStatus.CANCELLED, left.seen + self.run.zero)
            elif record.phase in OVER:
                self.run.resolve_missing(job, ENDS.get(record.phase, JobStatus.REJECTED), record.ended)

    def waited(self, job: str) -> dict[str, int] | None:
        """What a job has waited, in total and by cause; None for one that is not kept."""
        return None if self.run is None or self._core is None else self.run.waited(job, self._core.now)

    def note(self, job: str, what: str, text: str) -> None:
        """Keep a sentence about a job, such as who gave an order."""
        if self.run is not None and self._core is not None:
            self.run.note(job, self._core.now, what, text)


def _some(steps: Steps) -> Callable[[], None] | None:
    """Take some steps, up to one that has work; None where there are no more."""
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
    """No work."""
