"""The events of a compiled call of the simulation (`advance.py`): a table, in order of time."""

from __future__ import annotations

from kant.cluster.columns import Table
from kant.compiled import inlined

H_TIME, H_WHAT, H_ROW, H_INSTANT, H_PIECE, H_COUNT, H_BEGIN, H_END = range(8)
"""H_INSTANT numbers the instants of the call. A job that starts has H_COUNT pieces from H_PIECE on, as has a job that
gets a reservation, from H_BEGIN to H_END, µs. A job that is EVICTED has H_PIECE µs more work; H_COUNT is the row of the
job that takes its place, H_BEGIN the bits of `evict.py`, and H_END when it had started, µs. Of a job that is told
it waits: HELD has in H_PIECE the number of its pods that fit; SHORT what is available of its quota, and in H_COUNT the
slot that binds; OUTRANKED until when it is held, µs, and by which row; BEHIND when the first reservation begins, µs,
and of which row. Where discipline looks again by itself each instant ends with CYCLED, whose H_PIECE is when to cycle
again without an event, µs; -1: never."""
EVENT_WIDTH = 8

ENDED, CAME, EVICTED, STARTED, RESERVED, HELD, SHORT, OUTRANKED, BEHIND, CYCLED = range(10)


@inlined
def note(happened: Table, said: int, now: int, what: int, row: int, instant: int, piece: int, count: int) -> int:
    event = happened[said]
    event[H_TIME], event[H_WHAT], event[H_ROW], event[H_INSTANT] = now, what, row, instant
    event[H_PIECE], event[H_COUNT] = piece, count
    return said + 1
