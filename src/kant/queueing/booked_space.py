"""Booked space: the GPUs that a job may not use because a reservation has booked them.

A job that names a reservation may use only the GPUs booked by that reservation, and only while it lasts. Any other job
may use a booked GPU only if the GPU is free again in time: the job reaches its limit before the reservation begins, or
it is preemptible, the profile preempts and the reservation has not begun. Jobs that still run on booked GPUs when the
reservation begins are evicted (`limits.py`).

Source: advance reservations of Maui (D. Jackson, Q. Snell and M. Clement, JSSPP 2001) and of Slurm. The rule that
preemptible jobs may run on booked GPUs until the reservation begins is Kant's own.
"""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table, devices_of, slices_at
from kant.cluster.state import ClusterState
from kant.model.decision import Booked
from kant.model.placement import CPU as PIECE_CPU
from kant.model.placement import MASK, MILLI, NODE, PODS, TAG, WIDTH, Allocation, Booking
from kant.model.placement import MEMORY as PIECE_MEMORY
from kant.model.units import FOREVER, GPU

NOTHING: Allocation = np.zeros((0, WIDTH), dtype=np.int64)


class BookedSpace:
    """Which booked GPUs each job of one cycle may not use. `preempts`: whether the profile preempts jobs."""

    def __init__(self, state: ClusterState, now: int, preempts: bool) -> None:
        self.state = state
        self.now = now
        self.preempts = preempts
        self._closed: dict[tuple[str, ...], dict[int, int]] = {}  # key: conflicting bookings, or the job's own

    def own(self, row: int) -> str:
        """Return the reservation that a job names; "" for none."""
        return self.state.shape_of(row).ask.reservation

    def has_begun(self, row: int) -> bool:
        """Return whether a job names no reservation, or one that has begun and not ended."""
        name = self.own(row)
        booking = self.state.bookings.get(name)
        return not name or (booking is not None and booking.start <= self.now < booking.end)

    def in_the_way(self, row: int) -> list[tuple[str, Booking]]:
        """Return the bookings whose GPUs a job without a reservation may not use if it starts now."""
        limit = self.state.live[row].limit
        until = min(self.now + limit, FOREVER) if limit >= 0 else FOREVER
        makes_way = self.preempts and bool(self.state.jobs.item(row, c.J_PREEMPTIBLE))
        return [
            (name, booking)
            for name, booking in self.state.bookings.items()
            if booking.start < until and self.now < booking.end and not (makes_way and booking.start > self.now)
        ]

    def begins_within(self, span: int) -> dict[int, int]:
        """Return the GPUs whose booking begins within the next `span` microseconds, as bits by node."""
        until = min(self.now + span, FOREVER)
        return self._inside(tuple(name for name, one in self.state.bookings.items() if self.now < one.start < until))

    def opens(self, allocation: Allocation) -> bool:
        """Return whether an allocation has booked GPUs of nodes whose CPU or memory is limited.

        Their share of CPU and memory is closed to others while they are free, so a job that takes them may leave room.
        """
        booked = self._inside(tuple(name for name, one in self.state.bookings.items() if self.now < one.end))
        limited = self.state.table[allocation[:, NODE]][:, [c.CPU, c.MEMORY]].min(axis=1) < FOREVER
        return any(mask & booked.get(node, 0) for node, mask in allocation[limited][:, [NODE, MASK]].tolist())

    def closed_to(self, row: int) -> dict[int, int]:
        """Return the GPUs that the job may not use, as bits by node. A reservation that it names must have begun."""
        name = self.own(row)
        key = ("", name) if name else tuple(each for each, _ in self.in_the_way(row))
        known = self._closed.get(key)
        if known is None:
            known = self._closed[key] = self._outside(name) if name else self._inside(key)
        return known

    def _outside(self, name: str) -> dict[int, int]:
        booked = self.state.bookings[name].devices()
        every = {node: (1 << spec.gpus) - 1 for node, spec in enumerate(self.state.nodes)}
        return {node: bits & ~booked.get(node, 0) for node, bits in every.items()}

    def _inside(self, names: tuple[str, ...]) -> dict[int, int]:
        closed: dict[int, int] = {}
        for name in names:
            for node, bits in self.state.bookings[name].devices().items():
                closed[node] = closed.get(node, 0) | bits
        return closed

    def gives_room(self, row: int, allocation: Allocation) -> bool:
        """Return whether a job may use all of an allocation, once it is free.

        To a job with a reservation, a node on which the reservation has no GPU is closed as a whole.
        """
        if not self.has_begun(row):
            return False
        closed, whole = self.closed_to(row), bool(self.own(row))
        for node, bits in allocation[:, [NODE, MASK]].tolist():
            shut = closed.get(node, 0)
            if bits & shut or (whole and shut == (1 << self.state.nodes[node].gpus) - 1):
                return False
        return True

    def pieces(self, row: int, table: Table) -> Allocation:
        """Return the free capacity of a table that is closed to the job, as pieces that belong to no job (tag -1).

        A closed GPU also closes its share of the CPU and memory of its node, if these are limited. For a job with a
        reservation, a node on which the reservation has no GPU is closed as a whole.
        """
        closed, whole = self.closed_to(row), bool(self.own(row))
        nodes = np.fromiter(closed, dtype=np.int64, count=len(closed))
        bits = np.fromiter(closed.values(), dtype=np.int64, count=len(closed))
        rows, slots = table[nodes], np.arange(devices_of(table))
        free = rows[:, c.DEVICES : c.DEVICES + len(slots)]
        shut, mig = bits[:, None] >> slots & 1 == 1, rows[:, c.MIG] > 0
        idle = shut & (free == GPU) & ~mig[:, None]
        if whole:  # a node without a GPU of the reservation is closed whole; on the others CPU and memory stay open
            every = [(1 << self.state.nodes[node].gpus) - 1 for node in closed]  # lost GPUs too
            share = np.where((bits == every)[:, None], rows[:, [c.CPU_FREE, c.MEMORY_FREE]], 0)
        else:
            amounts = rows[:, [c.CPU, c.MEMORY]]
            share = amounts // np.maximum(rows[:, [c.GPUS]], 1) * idle.sum(axis=1)[:, None]
            share = np.clip(share, 0, np.maximum(rows[:, [c.CPU_FREE, c.MEMORY_FREE]], 0))
            share[amounts >= FOREVER] = 0  # an unlimited amount is enough for all jobs
        found = np.zeros((len(nodes), WIDTH), dtype=np.int64)
        found[:, NODE], found[:, PODS], found[:, TAG] = nodes, 1, -1
        found[:, MASK] = (idle << slots).sum(axis=1)
        found[:, MILLI] = np.where(found[:, MASK] > 0, GPU, 0)
        found[:, [PIECE_CPU, PIECE_MEMORY]] = share
        at, device = np.nonzero(shut & (free > 0) & (free < GPU) & ~mig[:, None])
        parts = np.zeros((len(at), WIDTH), dtype=np.int64)
        parts[:, NODE], parts[:, PODS], parts[:, TAG] = nodes[at], 1, -1
        parts[:, MASK], parts[:, MILLI] = 1 << device, free[at, device]
        some = found[(found[:, MASK] > 0) | share.any(axis=1)]
        return np.concatenate([some, parts, self._slices(nodes[mig], closed, table)])

    def _slices(self, nodes: Table, closed: dict[int, int], table: Table) -> Allocation:
        """Return the free slices on the closed GPUs of nodes in MIG mode."""
        found = []
        for node in nodes.tolist():
            milli, every = int(table[node, c.MIG]), (1 << GPU // int(table[node, c.MIG])) - 1
            for device in range(self.state.nodes[node].gpus):
                left = every & ~int(table[node, slices_at(table) + device])
                if closed[node] >> device & 1 and left and table[node, c.DEVICES + device] > 0:
                    found.append([node, 1, 1 << device, milli * left.bit_count(), 0, 0, -1 - left, 0, 0])
        return np.array(found, dtype=np.int64).reshape(-1, WIDTH)

    def reason(self, row: int) -> Booked | None:
        """Return the first booking that keeps the job from free GPUs; None if none does."""
        booking = min(self.in_the_way(row), key=lambda one: (one[1].start, one[0]), default=None)
        return None if booking is None else Booked(booking[0], booking[1].start)
