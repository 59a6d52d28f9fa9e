"""A calendar as arrays: which bookings overlap in time, and the relevant sections of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.optimize.calendar.booking import LineBooking

Numbers = NDArray[np.int64]


class Sections(NamedTuple):
    """The input of the compiled search: bookings are rows, in the given order.

    A *section* is the time between two successive begins or ends of bookings. If all bookings of a section occur
    together in a neighbouring one, the section adds no constraint and is left out.
    """

    gpus: Numbers
    alignment: Numbers
    pinned: Numbers  # the given offset, -1 for none
    first: Numbers  # first section of a booking
    last: Numbers  # the section after its last
    covers: NDArray[np.bool_]  # [booking, section]; a booking with gaps need not cover all sections from first to last
    meets_from: Numbers  # the bookings that overlap booking i in time are meets[meets_from[i]:meets_from[i + 1]]
    meets: Numbers
    pins_from: Numbers  # likewise only the pinned bookings that overlap booking i, by offset
    pins: Numbers
    twin: Numbers  # the previous booking that is equal except for its id, -1 for none


def sections_of(bookings: Sequence[LineBooking]) -> Sections:
    """The arrays of these bookings."""
    count = len(bookings)
    covers = _covers(bookings)
    numbers = covers.astype(np.float32)  # the product of float matrices is fast, and exact below 2^24
    meeting = (numbers @ numbers.T) > 0
    np.fill_diagonal(meeting, False)
    pinned = np.array([-1 if b.offset is None else b.offset for b in bookings], np.int64)
    meets, pins, twin = [], [], np.full(count, -1, np.int64)
    known: dict[tuple[int, int, bytes], int] = {}
    for i, booking in enumerate(bookings):
        others = np.flatnonzero(meeting[i])
        meets.append(others)
        held = others[pinned[others] >= 0]
        pins.append(held[np.lexsort((held, pinned[held]))])
        if pinned[i] < 0:
            same = (booking.gpus, booking.alignment, covers[i].tobytes())
            twin[i] = known.get(same, -1)
            known[same] = i
    return Sections(
        np.array([b.gpus for b in bookings], np.int64),
        np.array([b.alignment for b in bookings], np.int64),
        pinned,
        covers.argmax(axis=1).astype(np.int64),
        covers.shape[1] - covers[:, ::-1].argmax(axis=1).astype(np.int64),
        covers,
        *_joined(meets),
        *_joined(pins),
        twin,
    )


def _covers(bookings: Sequence[LineBooking]) -> NDArray[np.bool_]:
    edges = sorted({edge for booking in bookings for span in booking.spans() for edge in span})
    at = {edge: k for k, edge in enumerate(edges)}
    covers = np.zeros((len(bookings), max(len(edges) - 1, 1)), np.bool_)
    for i, booking in enumerate(bookings):
        for begin, end in booking.spans():
            covers[i, at[begin] : at[end]] = True
    kept: list[int] = []
    for k in range(covers.shape[1]):
        column = covers[:, k]
        if kept and not (column & ~covers[:, kept[-1]]).any():
            continue
        while kept and not (covers[:, kept[-1]] & ~column).any():
            kept.pop()
        kept.append(k)
    return np.ascontiguousarray(covers[:, kept])


def _joined(lists: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    starts = np.zeros(len(lists) + 1, np.int64)
    starts[1:] = np.cumsum([len(each) for each in lists])
    return starts, np.concatenate(lists).astype(np.int64)


def peak(sections: Sections) -> int:
    """The largest number of GPUs that are booked at the same time: a lower bound on the capacity."""
    return int((sections.covers * sections.gpus[:, None]).sum(axis=0).max())
