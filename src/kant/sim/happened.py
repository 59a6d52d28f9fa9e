"""The events of a compiled call of the simulation (`advance.py`): a table, in order of time."""

from __future__ import annotations

from kant.cluster.columns import Table
from kant.compiled import inlined

H_TIME, H_WHAT, H_ROW, H_INSTANT, H_PIECE, H_COUNT, H_BEGIN, H_END = range(8)
"""H_INSTANT numbers the instants of the call. A job that starts has H_COUNT pieces from H_PIECE on; so has a job that
gets a reservation, which lasts from H_BEGIN to H_END, µs. A job that is EVICTED has H_PIECE µs more work; H_COUNT is
the row of the job that takes its place, H_BEGIN the bits of `evict.py`, and H_END when the evicted job had started, µs.
For a job whose wait is recorded: HELD has the number of its pods that fit in H_PIECE; SHORT what is available of its
quota in H_PIECE, and the slot that binds in H_COUNT; OUTRANKED until when it is held, µs, and by which row; BEHIND when
the first reservation begins, µs, and of which row. If the discipline asks for cycles by itself, each instant ends with
CYCLED, whose H_PIECE is when to cycle again without an event, µs; -1: never.
"""
EVENT_WIDTH = 8

ENDED, CAME, EVICTED, STARTED, RESERVED, HELD, SHORT, OUTRANKED, BEHIND, CYCLED = range(10)


@inlined
def note(happened: Table, said: int, now: int, what: int, row: int, instant: int, piece: int, count: int) -> int:
    event = happened[said]
    event[H_TIME], event[H_WHAT], event[H_ROW], event[H_INSTANT] = now, what, row, instant
    event[H_PIECE], event[H_COUNT] = piece, count
    return said + 1
