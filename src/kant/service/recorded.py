"""What the page asks for: the record of the run that is live, with what was before it, and the history of a job."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

from kant.live.core import Core
from kant.live.journals import Journals
from kant.live.logs import said
from kant.live.record import RunRecord
from kant.live.succession import arrived, follow, inherit, settle
from kant.local.record import OVER, Phase, Record
from kant.model.status import JobStatus
from kant.service.past import Reader, Steps

log = logging.getLogger("kant.service")
SLICE = 0.004  # seconds for which the past is read at a time
CALM = 0.012  # and then not
ENDS = {Phase.FINISHED: JobStatus.FINISHED, Phase.CANCELLED: JobStatus.CANCELLED}


class Recorded:
    """Follows the core that is, from one that was built to the next, in one record. `find` knows all jobs."""

    def __init__(self, find: Callable[[str], Record | None]) -> None:
        self.find = find
        self.run: RunRecord | None = None
        self._core: Core | None = None

    def follow(self, core: Core) -> None:
        """A state begins to be built."""
        zero, profile, waits = core.zero, core.profile.name, core.waits
        if self.run is None:
            self.run = RunRecord(core.state, secrets.token_hex(4), zero=zero, profile=profile, waits=waits)
            self.run.notes = []
        else:
            follow(self.run, core.state, zero, profile, waits)
        self._core = core
        core.observers.append(self.run)

    def arrived(self) -> None:
        """Everybody who was there before is in the state."""
        if self.run is not None and self._core is not None:
            arrived(self.run, self._core.now)

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
            said(log, "what was before this start is not shown", logging.WARNING, error=str(error))
            return
        if self.run is not None and reader.record is not None:
            inherit(self.run, reader.record)
            seconds = round(time.monotonic() - began, 3)
            said(log, "the past is read", journals=reader.journals_read, jobs=len(self.run.ids), seconds=seconds)
        elif self.run is not None:
            self.run.notes = None

    def since(self, cursor: str) -> dict[str, Any]:
        """What is new since an answer with this cursor (docs/record.md)."""
        assert self.run is not None and self._core is not None, "asked once the state has been built"
        self._settle()
        return self.run.since(cursor, self._core.now) | {"kind": "local"}

    def _settle(self) -> None:
        """Of jobs that ended while no Kant was there, the store knows how."""
        assert self.run is not None, "asked once the state has been built"
        for job, left in list(self.run.left.items()):
            record = self.find(job)
            if record is None:
                settle(self.run, job, JobStatus.CANCELLED, left.seen + self.run.zero)
            elif record.phase in OVER:
                settle(self.run, job, ENDS.get(record.phase, JobStatus.REJECTED), record.ended)

    def waited(self, job: str) -> dict[str, int] | None:
        """What a job has waited, in total and by cause; None for one that is not kept."""
        return None if self.run is None or self._core is None else self.run.waited(job, self._core.now)

    def note(self, job: str, what: str, text: str) -> None:
        """Keep a sentence about a job, such as who gave an order."""
        if self.run is not None and self._core is not None:
            self.run.note(job, self._core.now, what, text)

    def history(self, record: Record) -> dict[str, Any]:
        """What happened to a job and what was decided, with what only its record knows where that goes back further."""
        assert self.run is not None and self._core is not None, "asked once the state has been built"
        zero, told = self.run.zero, self.run.history(record.id)
        known = _known(record, zero)
        entries = known if told is None else sorted([*_missing(known, told), *told], key=lambda each: each["time_us"])
        return {
            "job": record.id,
            "time_us": self._core.now + self.run.ahead,
            "zero_us": zero,
            "entries": entries,
            "whole": told is not None,
        }


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


def _known(record: Record, zero: int) -> list[dict[str, Any]]:
    found = [(record.submitted, "asked", f"{record.user} submitted it")]
    if record.started >= 0:
        found.append((record.started, "started", f"its last run began, number {record.attempt}"))
    if record.phase in OVER:
        found.append((record.ended, str(record.phase), f"it is over: {record.phase}" + _because(record.reason)))
    return [{"time_us": time - zero, "what": what, "sentence": text} for time, what, text in found]


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _missing(known: list[dict[str, Any]], told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of what the store knows, that which was not told: the submission, the end, and runs before the record began."""
    kinds = {each["what"] for each in told}
    return [each for each in known if each["what"] not in kinds]
