"""What the page asks for: the record of the run that is live, and the history of a job."""

from __future__ import annotations

import secrets
from typing import Any

from kant.live.core import Core
from kant.live.record import RunRecord
from kant.local.record import OVER, Record


class Recorded:
    """Follows the core that is, from one that was built to the next: each has a record of its own."""

    def __init__(self) -> None:
        self.run: RunRecord | None = None
        self._core: Core | None = None

    def follow(self, core: Core) -> None:
        """A state begins to be built."""
        self._core = core
        self.run = RunRecord(
            core.state, secrets.token_hex(4), zero=core.zero, profile=core.profile.name, waits=core.waits
        )
        core.observers.append(self.run)

    def since(self, cursor: str) -> dict[str, Any]:
        """What is new since an answer with this cursor (docs/record.md)."""
        assert self.run is not None and self._core is not None, "asked once the state has been built"
        return self.run.since(cursor, self._core.now) | {"kind": "local"}

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
            "time_us": self._core.now,
            "zero_us": zero,
            "entries": entries,
            "whole": told is not None,
        }


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
