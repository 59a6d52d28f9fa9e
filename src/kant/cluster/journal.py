"""The journal: an append-only record of what happened and what was decided, one JSON object a line.

The first line is a `Header`; then events and plans in the order in which the core met them. The digest is BLAKE2b
over the plan lines with their line ends, so that anyone can compute it from the file alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from kant.cluster.columns import Table
from kant.model.decision import Grow, Hold, NoFit, Plan, Shrink, Start
from kant.model.errors import InputError
from kant.model.event import Event, JobFound, JobGrown, JobShrunk, JobStarted, TypicalPodsGiven
from kant.model.node import ClusterSpec
from kant.model.placement import GROUP, WIDTH, Allocation


class Header(msgspec.Struct, frozen=True, tag="journal", tag_field="event"):
    """What a journal needs to be replayed: who ran what, on which cluster, under which profile, from which seed."""

    version: str
    workload: str
    profile: str
    seed: int
    cluster: ClusterSpec
    format: int = 1
    zero: int = 0  # microseconds since the Unix epoch at time zero; 0: simulated time
    begins: int = 0  # when the record begins: what lies before it is what was known then of those who were there


AT_ONCE = 128
"""Plans that are written together."""

TYPICAL_WIDTH = 5
"""Columns of the typical pods (`kant.placement.cost.fragmentation`)."""


class Cycled(msgspec.Struct, frozen=True, tag="cycled", tag_field="event"):
    """A cycle that decided nothing. What a scheduler has seen in vain it need not look at again, so replay cycles here,
    too."""

    time: int


class Footer(msgspec.Struct, frozen=True, tag="end", tag_field="event"):
    """When the record ends; `cut` where jobs were left because it was time, or because somebody interrupted the run."""

    time: int
    cut: bool = False
    interrupted: bool = False


Line = Header | Event | Plan | Cycled | Footer


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        if value.shape[1] == WIDTH:
            value = value[:, : GROUP + 1 if any(value[:, GROUP].tolist()) else GROUP]
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not belong in a journal")


def _array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        if value == []:
            return np.zeros((0, TYPICAL_WIDTH), dtype=np.int64)
        array = np.array(value)
        if array.dtype != np.int64 or array.ndim != 2:
            raise ValueError("expected a table of integers")
        return np.pad(array, ((0, 0), (0, WIDTH - array.shape[1]))) if array.shape[1] in (GROUP, GROUP + 1) else array
    raise TypeError(kind)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line, dec_hook=_array)


class Journal:
    """Writes lines to `sink`, a function that takes bytes (None: nowhere), and keeps the digest of the plans."""

    def __init__(self, sink: Callable[[bytes], object] | None = None) -> None:
        self.sink = sink
        self.decisions = 0
        self._news = False  # something has happened since the last cycle
        self._review_at = -1  # when the last plan asked for another cycle, although nothing may have happened
        self._cycled = -1  # when a cycle decided nothing about it: a line, once something follows
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The digest of all plans so far, as 32 hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, line: Header | Event | Footer) -> None:
        """Record anything but a plan. An event comes here before the state applies it."""
        if self.sink is not None:
            if self._cycled >= 0 and not isinstance(line, Footer):
                self._follow()
            self._news = True
            self.sink(_ENCODER.encode(line) + b"\n")

    def _follow(self) -> None:
        if self.sink is not None:
            self.sink(_ENCODER.encode(Cycled(self._cycled)) + b"\n")
            self._cycled = -1

    def decided(self, when: Table, jobs: list[str], counts: Table, pieces: Allocation, lacks: Iterator[NoFit]) -> None:
        """Record what cycles decided, of a run that writes no journal: of whom, and with how many pieces.

        `when` has the time of each decision, the number of its cycle, and when that wants another one. A job without
        pieces waits on; `lacks` says why, one after the other. Not too many at once: what is forgotten soon is no work
        for the garbage collector.
        """
        assert self.sink is None
        ends, news = np.cumsum(counts), np.flatnonzero(np.diff(when[:, 1])) + 1
        for first, end in pairwise([0, *news[AT_ONCE - 1 :: AT_ONCE].tolist(), len(jobs)]):
            own = pieces[ends[first] - counts[first] : ends[end - 1]]
            rows, groups = own[:, :GROUP].tolist(), own[:, GROUP].tolist()
            plans, at, last, which = list[Plan](), 0, -1, slice(first, end)
            for (now, cycle, review), job, count in zip(
                when[which].tolist(), jobs[which], counts[which].tolist(), strict=True
            ):
                if cycle != last:
                    plans.append(Plan(now, [], review))
                    last = cycle
                if count == 0:
                    plans[-1].decisions.append(Hold(job, next(lacks)))
                    continue
                held = rows[at : at + count]
                if count > 1 and any(groups[at : at + count]):
                    held = own[at : at + count, : GROUP + 1].tolist()
                at += count
                plans[-1].decisions.append(Start(job, held))
            self._digest.update(_ENCODER.encode_lines(plans))
        self.decisions += len(jobs)

    def plan(self, plan: Plan, always: bool = False) -> None:
        """Record the decisions of one cycle.

        Without any, and unless `always`, it is a `Cycled` line, which the digest leaves out, or nothing where the cycle
        had nothing new to look at, or is the last. What a plan has asked to be looked at again by now is new too.
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
        elif plan.mending or plan.proposed:  # of no cycle
            return
        elif (self._news or due) and self.sink is not None:
            if self._cycled >= 0:
                self._follow()
            self._cycled = plan.time
        self._news = False


def _fits(record: Line) -> bool:
    """Whether the tables of a line have the columns that belong there."""
    if isinstance(record, TypicalPodsGiven):
        return bool(record.rows.shape[1] == TYPICAL_WIDTH)
    if isinstance(record, JobStarted | JobGrown | JobShrunk | JobFound):
        return bool(record.allocation.shape[1] == WIDTH)
    if isinstance(record, Plan):
        return all(d.allocation.shape[1] == WIDTH for d in record.decisions if isinstance(d, Start | Shrink | Grow))
    return True


def read_lines(lines: Iterator[bytes], where: str) -> Iterator[Line]:
    """The lines of a journal. Raises InputError naming the line; a last line without its end is left out."""
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
            raise InputError(f"{where}:{number}", "nothing after the line that ends the journal")
        ended = isinstance(record, Footer)
        yield record
