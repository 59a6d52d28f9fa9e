"""The journal: an append-only record of what happened and what was decided, one JSON object a line.

The first line is a `Header`; then events and plans in the order in which the core met them. The digest is BLAKE2b
over the plan lines with their line ends, so that anyone can compute it from the file alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from kant.model.decision import Plan
from kant.model.errors import InputError
from kant.model.event import Event
from kant.model.node import ClusterSpec
from kant.model.placement import WIDTH


class Header(msgspec.Struct, frozen=True, tag="journal", tag_field="event"):
    """What a journal needs to be replayed: who ran what, on which cluster, under which profile, from which seed."""

    version: str
    workload: str
    profile: str
    seed: int
    cluster: ClusterSpec
    format: int = 1


Line = Header | Event | Plan


def _plain(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} does not belong in a journal")


def _array(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        array = np.array(value, dtype=np.int64)
        if array.ndim != 2 or array.shape[1] not in (5, WIDTH):
            raise ValueError("a table of integers")
        return array
    raise TypeError(kind)


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line, dec_hook=_array)


class Journal:
    """Writes lines to `sink`, a function that takes bytes (None: nowhere), and keeps the digest of the plans."""

    def __init__(self, sink: Callable[[bytes], object] | None = None) -> None:
        self.sink = sink
        self.decisions = 0
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The digest of all plans so far, as 32 hexadecimal digits."""
        return self._digest.hexdigest()

    def write(self, line: Header | Event) -> None:
        """Record a header or an event. Comes before the state applies it."""
        if self.sink is not None:
            self.sink(_ENCODER.encode(line) + b"\n")

    def plan(self, plan: Plan) -> None:
        """Record the decisions of one cycle; a cycle without any leaves no line."""
        if plan.decisions:
            line = _ENCODER.encode(plan) + b"\n"
            self._digest.update(line)
            self.decisions += len(plan.decisions)
            if self.sink is not None:
                self.sink(line)


def read_lines(lines: Iterator[bytes], where: str) -> Iterator[Line]:
    """The lines of a journal. Raises InputError naming the line; a last line without its end is left out."""
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            record = _DECODER.decode(line)
        except (msgspec.DecodeError, ValueError, OverflowError, TypeError, RecursionError) as error:
            raise InputError(f"{where}:{number}", f"a line of a Kant journal: {error}") from None
        if (number == 1) != isinstance(record, Header):
            raise InputError(f"{where}:{number}", "the header on the first line, and only there")
        yield record
