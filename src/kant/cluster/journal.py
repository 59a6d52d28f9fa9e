"""The journal: an append-only record of events and decisions, one JSON object per line.

The first line is a `Header`; then come events and plans in the order in which the core processed them. The digest is
BLAKE2b over the plan lines with their line ends, so that anyone can compute it from the file alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from kant.cluster.columns import Table
from kant.model.decision import Decision, Grow, Plan, Reserve, Shrink, Start
from kant.model.errors import InputError
from kant.model.event import Event, JobFound, JobGrown, JobShrunk, JobStarted, TypicalPodsGiven
from kant.model.node import ClusterSpec
from kant.model.placement import GROUP, WIDTH, Allocation


class Header(msgspec.Struct, frozen=True, tag="journal", tag_field="event"):
    """What the replay of a journal needs: the version, the workload, the cluster, the profile and the seed."""

    version: str
    workload: str
    profile: str
    seed: int
    cluster: ClusterSpec
    format: int = 1
    zero: int = 0  # microseconds since the Unix epoch at time zero; 0: simulated time
    begins: int = 0  # when the record begins: earlier entries restore the state at that time


AT_ONCE = 128
"""The number of plans that are encoded together."""

TYPICAL_WIDTH = 5
"""Columns of the typical pods (`kant.placement.cost.fragmentation`)."""


class Cycled(msgspec.Struct, frozen=True, tag="cycled", tag_field="event"):
    """A cycle that decided nothing. It changes what a scheduler has cached, so a replay runs this cycle too."""

    time: int


class Footer(msgspec.Struct, frozen=True, tag="end", tag_field="event"):
    """When the record ends; `cut`: jobs were left, as the end time was reached or the run was interrupted."""

    time: int
    cut: bool = False
    interrupted: bool = False


Line = Header | Event | Plan | Cycled | Footer


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        if value.shape[1] == WIDTH:
            value = value[:, : GROUP + 1 if any(value[:, GROUP].tolist()) else GROUP]
        return value.tolist()
    raise TypeError(f"a journal cannot hold a {type(value).__name__}")


def _array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        if value == []:
            return np.zeros((0, TYPICAL_WIDTH), dtype=np.int64)
        array = np.array(value)
        if array.dtype != np.int64 or array.ndim != 2:
            raise ValueError("expected a table of integers")
        if array.shape[1] not in (GROUP, GROUP + 1):
            return array
        whole = np.zeros((len(array), WIDTH), dtype=np.int64)
        whole[:, : array.shape[1]] = array
        return whole
    raise TypeError(kind)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line, dec_hook=_array)


class Journal:
    """Writes lines to `sink`, a function that takes bytes (None: nowhere), and keeps the digest of the plans."""

    def __init__(self, sink: Callable[[bytes], object] | None = None) -> None:
        self.sink = sink
        self.decisions = 0
        self._news = False  # an event was recorded since the last cycle
        self._review_at = -1  # when the last plan asked for another cycle
        self._cycled = -1  # time of a cycle without decisions: written once another line follows
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The digest of all plans so far, 32 hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, line: Header | Event | Footer) -> None:
        """Record a line other than a plan. Call it for an event before the state applies it."""
        if self.sink is not None:
            if self._cycled >= 0 and not isinstance(line, Footer):
                self._follow()
            self._news = True
            self.sink(_ENCODER.encode(line) + b"\n")

    def _follow(self) -> None:
        if self.sink is not None:
            self.sink(_ENCODER.encode(Cycled(self._cycled)) + b"\n")
            self._cycled = -1

    def decided(
        self, when: Table, jobs: list[str], counts: Table, pieces: Allocation, others: Iterator[Decision]
    ) -> None:
        """Record the decisions of cycles in a run that writes no journal: the jobs, and their numbers of pieces.

        `when` has for each decision its time, the number of its cycle, when that cycle wants the next cycle to run, and
        the start and end of a reservation (0 and 0: the job starts). `others` yields the decisions about jobs without
        pieces, in order. Small batches of plans create less work for the garbage collector.
        """
        assert self.sink is None
        ends, news = np.cumsum(counts), np.flatnonzero(np.diff(when[:, 1])) + 1
        for first, end in pairwise([0, *news[AT_ONCE - 1 :: AT_ONCE].tolist(), len(jobs)]):
            own = pieces[ends[first] - counts[first] : ends[end - 1]]
            rows, groups = own[:, :GROUP].tolist(), own[:, GROUP].tolist()
            plans, at, last, which = list[Plan](), 0, -1, slice(first, end)
            for (now, cycle, review, start, until), job, count in zip(
                when[which].tolist(), jobs[which], counts[which].tolist(), strict=True
            ):
                if cycle != last:
                    plans.append(Plan(now, [], review))
                    last = cycle
                if count == 0:
                    plans[-1].decisions.append(next(others))
                    continue
                held = rows[at : at + count]
                if count > 1 and any(groups[at : at + count]):
                    held = own[at : at + count, : GROUP + 1].tolist()
                at += count
                plans[-1].decisions.append(Reserve(job, start, until, held) if until else Start(job, held))
            self._digest.update(_ENCODER.encode_lines(plans))
        self.decisions += len(jobs)

    def plan(self, plan: Plan, always: bool = False) -> None:
        """Record the decisions of one cycle.

        A plan without decisions becomes a `Cycled` line, which the digest leaves out, unless `always`. There is no line
        if no event came since the last cycle and no plan asked for this one, or if this cycle is the last.
        """
        due = 0 <= self._review_at <= plan.time
        if not (plan.mending or plan.proposed):
            self._review_at = plan.review_at
        if plan.decisions or always:
            if self._cycled >= 0:
                self._follow()
            line = _ENCODER.encode(plan) + b"\n"
            self._digest.update(line)
            self.decisions += len(plan.decisions)
            if self.sink is not None:
                self.sink(line)
        elif plan.mending or plan.proposed:  # the plan is not from a cycle
            return
        elif (self._news or due) and self.sink is not None:
            if self._cycled >= 0:
                self._follow()
            self._cycled = plan.time
        self._news = False


def _fits(record: Line) -> bool:
    """Return whether the tables of a line have the right number of columns."""
    if isinstance(record, TypicalPodsGiven):
        return bool(record.rows.shape[1] == TYPICAL_WIDTH)
    if isinstance(record, JobStarted | JobGrown | JobShrunk | JobFound):
        return bool(record.allocation.shape[1] == WIDTH)
    if isinstance(record, Plan):
        return all(d.allocation.shape[1] == WIDTH for d in record.decisions if isinstance(d, Start | Shrink | Grow))
    return True


def read_lines(lines: Iterator[bytes], where: str) -> Iterator[Line]:
    """Yield the lines of a journal, without an incomplete last line. Raises InputError, which names the bad line."""
    ended = False
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            record = _DECODER.decode(line)
        except (msgspec.DecodeError, ValueError, OverflowError, TypeError, RecursionError) as error:
            raise InputError(f"{where}:{number}", f"a line of a Kant journal: {error}") from None
        if not _fits(record):
            raise InputError(f"{where}:{number}", f"tables with {WIDTH} columns (typical pods: {TYPICAL_WIDTH})")
        if (number == 1) != isinstance(record, Header):
            raise InputError(f"{where}:{number}", "the header on the first line, and only there")
        if ended:
            raise InputError(f"{where}:{number}", "no line after the footer that ends the journal")
        ended = isinstance(record, Footer)
        yield record
