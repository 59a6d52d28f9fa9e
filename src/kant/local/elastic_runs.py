"""Elastic runs on this machine: tells each run its size and when its tail (last phase of training) begins.

The record store says what a run holds. A line is added to the run's event file, and synced to disk, only after the
store is written. So after a crash at any point, the next process of Kant finds what has not been sent yet. GPUs that a
run gives back stay reserved until the run confirms, or is stopped since it did not confirm within its grace period.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kant.local.launch import Launcher, Place, clash
from kant.local.record import JobPhase, JobRecord
from kant.local.submission import devices, indices
from kant.model.elastic import Contract, Resize, RunReport, report_path
from kant.model.placement import MASK, NODE, WIDTH

SPARE = 1.2
"""The time kept for a tail before the time limit, as a multiple of the tail's length at the present speed."""
OFTEN = 1.0  # seconds between two checks of a run that may reach its tail
SOON = 0.05  # seconds between two checks of runs with an event to follow


class ElasticRuns:
    """The runs of jobs with a contract (elastic training jobs). `now` returns microseconds since the Unix epoch."""

    def __init__(self, launcher: Launcher, now: Callable[[], int]) -> None:
        self.launcher = launcher
        self.now = now
        self._events: dict[str, tuple[int, list[Resize]]] = {}  # by job: the present attempt and its events
        launcher.shed, launcher.begins = self.shed, self.begins

    def events(self, record: JobRecord) -> list[Resize]:
        """Return all events of a job's present run; empty before the run begins."""
        attempt, found = self._events.get(record.id, (-1, []))
        if attempt != record.attempt:
            found = _read(self._file(record, record.attempt))
            self._events[record.id] = record.attempt, found
        return found

    def runs(self) -> Iterator[tuple[JobRecord, Contract, list[Resize], RunReport]]:
        """Yield the running elastic jobs that are not being stopped, with their contracts, events and last reports."""
        for record, _ in list(self.launcher.holds.values()):
            contract = record.submission.contract
            if contract is not None and record.phase is JobPhase.RUNNING and (events := self.events(record)):
                yield record, contract, events, _last_report(self._file(record, record.attempt), events)
        if len(self._events) > 2 * len(self.launcher.holds) + 8:
            self._events = {job: found for job, found in self._events.items() if job in self.launcher.holds}

    def _file(self, record: JobRecord, attempt: int) -> Path:
        return self.launcher.folder(record, attempt) / "elastic.jsonl"

    # --- the size of a run ---------------------------------------------------------------------------------------

    def shed(self) -> list[Place]:
        """Return the devices that runs have to give back but may still be using."""
        return [gone for record, _, events, report in self.runs() if (gone := _shed(record, events, report))]

    def overdue(self) -> list[JobRecord]:
        """Return the runs that have kept devices beyond their grace period."""
        return [
            record for record, _, events, report in self.runs()
            if report.number < len(events) and _shed(record, events, report)
            and self.now() / 1e6 > events[report.number].at + record.submission.grace_s
        ]  # fmt: skip

    def begins(self, record: JobRecord) -> dict[str, str]:
        """Write the first event of a new run; return its environment variables. Raises OSError."""
        contract = record.submission.contract
        if contract is None:
            return {}
        file, before = self._file(record, record.attempt), self._file(record, record.attempt - 1)
        file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        last = _read(before)
        self._tell(record, contract, "start", _last_report(before, last).tokens, last[-1].tail if last else None)
        return {"KANT_ELASTIC": str(file), "KANT_CONTRACT": msgspec.json.encode(contract).decode()}

    def tell(self) -> bool:
        """Send runs their new sizes, unless other runs still use the new GPUs. Raises OSError. Return whether to call
        this again soon."""
        soon = False
        stopping = [place for record, place in self.launcher.holds.values() if record.stopping]
        for record, contract, events, report in self.runs():
            if devices(record.place) != devices(events[-1].place):
                others = [gone for other, _, other_events, other_report in self.runs()
                          if other is not record and (gone := _shed(other, other_events, other_report))]  # fmt: skip
                if not any(clash(record.place, place) for place in (*stopping, *others)):
                    self._tell(record, contract, "resize", report.tokens, events[-1].tail)
                soon = True
            soon = soon or bool(_shed(record, events, report))
        return soon

    def _tell(
        self, record: JobRecord, contract: Contract, event: Literal["start", "resize", "tail"], tokens: float,
        tail: tuple[float, float] | None,
    ) -> None:  # fmt: skip
        events, held, nodes = self.events(record), devices(record.place), self.launcher.settings.cluster.nodes
        gpus = sum(mask.bit_count() for mask in held.values())
        step = contract.step(gpus)
        assert step is not None, "it was checked for each of its sizes"
        batch = gpus * step[0] * step[1]
        begin, end = tail or (-1.0, -1.0)
        resize = Resize(
            len(events) + 1, event, self.now() / 1e6, gpus,
            ";".join(f"{nodes[node].name}:{indices(mask)}" for node, mask in held.items()), record.place,
            batch, step[0], step[1], tokens, contract.learning_rate(batch, tokens, tail), begin, end,
        )  # fmt: skip
        file = self._file(record, record.attempt)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as out:
            out.write(msgspec.json.encode(resize) + b"\n")
            out.flush()
            os.fsync(out.fileno())
        events.append(resize)

    # --- the tail of a run ---------------------------------------------------------------------------------------

    def is_ending(self, record: JobRecord) -> bool:
        """Return whether a job's run is in its tail."""
        events = self.events(record) if record.submission.contract is not None else []
        return record.phase is JobPhase.RUNNING and bool(events) and events[-1].tail is not None

    def due(self) -> list[tuple[JobRecord, float]]:
        """Return each run with the seconds until the next check of its tail; 0: the tail must begin now."""
        return [
            (record, self._due_in(record, contract, events, report))
            for record, contract, events, report in self.runs()
            if contract.tail and events[-1].tail is None
        ]

    def _due_in(self, record: JobRecord, contract: Contract, events: list[Resize], report: RunReport) -> float:
        if contract.ends_at(report.tokens):
            return 0.0
        limit, ran, done = record.submission.time_s, self.now() / 1e6 - events[0].at, report.tokens - events[0].tokens
        if limit is None or done <= 0 or ran <= 0:
            return OFTEN
        needed = (contract.tail_until(report.tokens) - report.tokens) * ran / done
        return max(min(limit - ran - SPARE * needed, OFTEN), 0.0)

    def end(self, record: JobRecord) -> bool:
        """Start the tail of a job's run. Return False if the job has no tail, or the tail has begun. Raises OSError,
        with nothing changed.
        """
        for run, contract, events, report in self.runs():
            if run is record and contract.tail and events[-1].tail is None:
                tail = report.tokens, contract.tail_until(report.tokens)
                self._tell(record, contract, "tail", report.tokens, tail)
                return True
        return False

    def sentence(self, record: JobRecord) -> str:
        """Return the size and tail of a job's run in words; "" if it does not run or has no contract."""
        events = self.events(record) if record.submission.contract is not None else []
        if record.phase is not JobPhase.RUNNING or not events:
            return ""
        now = events[-1]
        gpus = "GPUs" if now.gpus > 1 else "GPU"
        size = f"{now.gpus:,} {gpus}, a batch of {now.batch:,} samples: {now.rounds:,} x {now.each:,} on each GPU"
        if now.tail is None:
            return size
        return f"it is in its tail until {now.tail_until:,.0f} tokens, and not preempted; {size}"


def _read(file: Path) -> list[Resize]:
    """Read the events of a run. Truncates an incomplete last line, which the run has not seen."""
    try:
        raw = file.read_bytes()
    except OSError:
        return []
    whole = raw.rpartition(b"\n")[0]
    if raw and not raw.endswith(b"\n"):
        os.truncate(file, len(whole) + 1 if whole else 0)
    return [msgspec.json.decode(line, type=Resize) for line in whole.splitlines()]


def _last_report(file: Path, events: list[Resize]) -> RunReport:
    """Read the last report of a run; invalid values are ignored."""
    try:
        found = msgspec.json.decode(Path(report_path(str(file))).read_bytes(), type=RunReport)
    except (OSError, msgspec.MsgspecError):
        found = RunReport()
    first = events[0].tokens if events else 0.0
    return RunReport(min(max(found.number, 0), len(events)), max(found.tokens, first))


def _shed(record: JobRecord, events: list[Resize], report: RunReport) -> Place:
    """Return the devices that a run may still use but no longer holds, by its last confirmed and later events."""
    kept = devices(record.place)
    used: dict[int, int] = {}
    for event in events[max(report.number, 1) - 1 :]:
        for node, mask in devices(event.place).items():
            used[node] = used.get(node, 0) | mask
    place = []
    for node, mask in used.items():
        if gone := mask & ~kept.get(node, 0):
            row = [0] * WIDTH
            row[NODE], row[MASK] = node, gone
            place.append(row)
    return place
