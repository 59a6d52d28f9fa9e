"""A booking, and a check of plans that does not depend on how they were made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kant.model.errors import InputError

LARGEST = (1 << 31) - 1
"""The maximum capacity, and the maximum number of GPUs of one booking."""


@dataclass(frozen=True, slots=True)
class LineBooking:
    """A booking of `gpus` contiguous GPUs on a line, from the time `start` until before `end`.

    A line is a range of numbered GPUs: those of a node, an NVLink domain, a leaf or a row of racks. Times are whole
    numbers in any unit. The number of the first booked GPU is a multiple of `alignment`. `offset` fixes this number, as
    for a running job or maintenance of a part of the line; None: the solver chooses it. In its `gaps`, each a pair of
    times (begin, end), the booking holds nothing, and other bookings may use its GPUs.
    """

    id: str
    start: int
    end: int
    gpus: int
    alignment: int = 1
    offset: int | None = None
    gaps: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        where = f"booking {self.id}"
        if not self.start < self.end:
            raise InputError(where, "a start before its end", (self.start, self.end))
        if not 1 <= self.gpus <= LARGEST:
            raise InputError(where, f"from 1 to {LARGEST:,} GPUs", self.gpus)
        if not 1 <= self.alignment <= LARGEST:
            raise InputError(where, f"an alignment from 1 to {LARGEST:,}", self.alignment)
        if self.offset is not None and not 0 <= self.offset <= LARGEST:
            raise InputError(where, f"an offset from 0 to {LARGEST:,}", self.offset)
        if self.offset is not None and self.offset % self.alignment:
            raise InputError(where, f"an offset that is a multiple of its alignment {self.alignment}", self.offset)
        edges = [self.start, *(edge for gap in self.gaps for edge in gap), self.end]
        if any(not a < b for a, b in self.gaps) or any(a > b for a, b in pairwise(edges)):
            raise InputError(where, "gaps in order, inside its window and disjoint", self.gaps)
        if not any(a < b for a, b in self.spans()):
            raise InputError(where, "gaps that leave some time of its window", self.gaps)

    def spans(self) -> Iterator[tuple[int, int]]:
        """The spans of time in which the booking holds its GPUs."""
        since = self.start
        for begin, end in self.gaps:
            if since < begin:
                yield since, begin
            since = end
        if since < self.end:
            yield since, self.end

    def meets(self, other: LineBooking) -> bool:
        """Whether both bookings hold GPUs at some common time."""
        return any(a < d and c < b for a, b in self.spans() for c, d in other.spans())
