"""Which GPUs of running jobs a waiting job could use after those jobs end: the GPUs that no other job has booked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kant.cluster import columns as c
from kant.insight.diagnosis import Diagnosis
from kant.model.placement import CPU, MASK, MEMORY, NODE, PODS, TAG, Allocation


@contextmanager
def at_time(diagnosis: Diagnosis, row: int, now: int) -> Iterator[None]:
    """Within the block, occupy on the trial what is booked for others while the job would run from `now` on."""
    if not diagnosis.state.books:
        yield
        return
    cycle, before = diagnosis.cycle, diagnosis.cycle.booked
    cycle.booked = type(before)(diagnosis.state, now, before.preempts)
    with cycle.beside_bookings(row):
        yield
    cycle.booked = before


def open_part(diagnosis: Diagnosis, row: int, held: Allocation) -> Allocation:
    """Return the part of a running job's allocation that is not booked for others while the job in `row` would run.

    The result has one row for each row of the allocation. If only some GPUs of a pod are booked, its other GPUs count,
    with their share of the pod's CPU and memory. A MIG instance counts as a whole or not at all.
    """
    state = diagnosis.state
    if not state.books:
        return held
    booked = diagnosis.cycle.booked
    begun = booked.has_begun(row)
    closed, whole = booked.closed_to(row) if begun else {}, bool(booked.own(row))
    found = held.copy()
    for piece in found:
        node, bits = int(piece[NODE]), int(piece[MASK])
        shut = closed.get(node, 0)
        left = bits & ~shut
        if not begun or (bits and not left) or (whole and shut == (1 << int(state.table[node, c.GPUS])) - 1):
            left = 0
        elif left == bits:
            continue
        if not left or piece[TAG] < 0:
            piece[PODS:] = 0
            piece[TAG] = -1
        else:
            piece[MASK] = left
            piece[[CPU, MEMORY]] = piece[[CPU, MEMORY]] * left.bit_count() // bits.bit_count()
    return found
