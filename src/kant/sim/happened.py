"""The events of a compiled call of the simulation (`advance.py`): a table, in order of time."""

from __future__ import annotations

from kant.cluster.columns import Table
from kant.compiled import inlined

H_TIME, H_WHAT, H_ROW, H_INSTANT, H_PIECE, H_COUNT, H_BEGIN, H_END = range(8)
"""H_INSTANT numbers the instants of the call. STARTED: the job has H_COUNT pieces from index H_PIECE on. RESERVED: the
reservation has these pieces, from H_BEGIN to H_END (µs). EVICTED: the job has H_PIECE µs more work; H_COUNT is the
row of the job that evicts it, H_BEGIN has the bits of `evict.py`, and H_END is when the evicted job had started (µs).
Four events record why a job waits. HELD: H_PIECE of its pods fit. SHORT: H_PIECE is available of its quota, and H_COUNT
is the slot that binds. OUTRANKED: the job of row H_COUNT holds it until H_PIECE (µs). BEHIND: the first reservation, of
row H_COUNT, begins at H_PIECE (µs). CYCLED ends each instant if the discipline asks for cycles by itself: H_PIECE is
when to cycle again if no event comes first (µs); -1: never.
"""
EVENT_WIDTH = 8

ENDED, CAME, EVICTED, STARTED, RESERVED, HELD, SHORT, OUTRANKED, BEHIND, CYCLED = range(10)


@inlined
def note(happened: Table, said: int, now: int, what: int, row: int, instant: int, piece: int, count: int) -> int:
    event = happened[said]
    event[H_TIME], event[H_WHAT], event[H_ROW], event[H_INSTANT] = now, what, row, instant
    event[H_PIECE], event[H_COUNT] = piece, count
    return said + 1
