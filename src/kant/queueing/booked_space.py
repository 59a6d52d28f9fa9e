"""Booked space: the GPUs that a job may not have because somebody else has booked them.

A job that names a reservation may have what this has booked, while it lasts, and nothing else. Every other job may have
a booked GPU only if it gives it back in time: it reaches its limit before, or it is preemptible, the profile preempts
and the reservation has not begun. What still runs there when a reservation begins makes way (`limits.py`).

Source: advance reservations of Maui (D. Jackson, Q. Snell and M. Clement, JSSPP 2001) and of Slurm; that preemptible
jobs may run there until then is ours.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import (
    CPU,
    CPU_FREE,
    DEVICES,
    GPUS,
    J_LIMIT,
    J_PREEMPTIBLE,
    MEMORY,
    MEMORY_FREE,
    MIG,
    Table,
    devices_of,
    slices_at,
)
from kant.cluster.state import ClusterState
from kant.model.decision import Booked
from kant.model.placement import CPU as PIECE_CPU
from kant.model.placement import MASK, MILLI, NODE, PODS, TAG, WIDTH, Allocation, Booking
from kant.model.placement import MEMORY as PIECE_MEMORY
from kant.model.units import FOREVER, GPU

NOTHING: Allocation = np.zeros((0, WIDTH), dtype=np.int64)


class BookedSpace:
    """What is booked, as the jobs of one cycle see it. `preempts`: whether the profile stops jobs for others."""

    def __init__(self, state: ClusterState, now: int, preempts: bool) -> None:
        self.state = state
        self.now = now
        self.preempts = preempts
        self._closed: dict[tuple[str, ...], dict[int, int]] = {}  # by the bookings that are in the way, or the own one

    def own(self, row: int) -> str:
        """The reservation that a job names; "" for none."""
        return self.state.shape_of(row).ask.reservation

    def has_begun(self, row: int) -> bool:
        """Whether a job may run as far as its reservation goes: it names none, or one whose time it is."""
        name = self.own(row)
        booking = self.state.bookings.get(name)
        return not name or (booking is not None and booking.start <= self.now < booking.end)

    def in_the_way(self, row: int) -> list[tuple[str, Booking]]:
        """The bookings that a job without a reservation would outlast the beginning of, did it start now."""
        limit = self.state.jobs.item(row, J_LIMIT)
        until = min(self.now + limit, FOREVER) if limit >= 0 else FOREVER
        makes_way = self.preempts and bool(self.state.jobs.item(row, J_PREEMPTIBLE))
        return [
            (name, booking)
            for name, booking in self.state.bookings.items()
            if booking.start < until and self.now < booking.end and not (makes_way and booking.start > self.now)
        ]

    def begins_within(self, span: int) -> dict[int, int]:
        """The GPUs that are booked from a time after now and before `span` microseconds are over, as bits by node."""
        until = min(self.now + span, FOREVER)
        return self._inside(tuple(name for name, one in self.state.bookings.items() if self.now < one.start < until))

    def closed_to(self, row: int) -> dict[int, int]:
        """The GPUs that the job may not have, as bits by node. What is booked for itself must have begun."""
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
        """Whether a job may have all the GPUs of an allocation, once they are free."""
        if not self.has_begun(row):
            return False
        closed = self.closed_to(row)
        return not any(bits & closed.get(node, 0) for node, bits in allocation[:, [NODE, MASK]].tolist())

    def pieces(self, row: int, table: Table) -> Allocation:
        """What is free of a table and closed to the job, as pieces that are nobody's pods.

        Each GPU takes its part of the CPU and memory of its node along, where these are limited; of a node of which a
        reservation has no GPU its jobs get nothing.
        """
        closed, whole = self.closed_to(row), bool(self.own(row))
        nodes = np.fromiter(closed, dtype=np.int64, count=len(closed))
        bits = np.fromiter(closed.values(), dtype=np.int64, count=len(closed))
        rows, slots = table[nodes], np.arange(devices_of(table))
        free = rows[:, DEVICES : DEVICES + len(slots)]
        shut, mig = bits[:, None] >> slots & 1 == 1, rows[:, MIG] > 0
        idle = shut & (free == GPU) & ~mig[:, None]
        if whole:  # of a node that is all others' nothing is left, of its own nodes what belongs to no GPU is
            share = np.where((bits == (1 << rows[:, GPUS]) - 1)[:, None], rows[:, [CPU_FREE, MEMORY_FREE]], 0)
        else:
            amounts = rows[:, [CPU, MEMORY]]
            share = amounts // np.maximum(rows[:, [GPUS]], 1) * idle.sum(axis=1)[:, None]
            share = np.clip(share, 0, np.maximum(rows[:, [CPU_FREE, MEMORY_FREE]], 0))
            share[amounts >= FOREVER] = 0  # what is not limited is enough for all
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
        """What is free of the closed GPUs of nodes in MIG mode."""
        found = []
        for node in nodes.tolist():
            milli, every = int(table[node, MIG]), (1 << GPU // int(table[node, MIG])) - 1
            for device in range(self.state.nodes[node].gpus):
                left = every & ~int(table[node, slices_at(table) + device])
                if closed[node] >> device & 1 and left and table[node, DEVICES + device] > 0:
                    found.append([node, 1, 1 << device, milli * left.bit_count(), 0, 0, -1 - left, 0, 0])
        return np.array(found, dtype=np.int64).reshape(-1, WIDTH)

    def reason(self, row: int) -> Booked | None:
        """The first booking that keeps the job from what is free; None where none does."""
        booking = min(self.in_the_way(row), key=lambda one: (one[1].start, one[0]), default=None)
        return None if booking is None else Booked(booking[0], booking[1].start)
