"""Booked space: the GPUs that a job may not have because somebody else has booked them.

A job that names a reservation may have what this has booked, while it lasts, and nothing else. Every other job may have
a booked GPU only if it gives it back in time: it reaches its limit before, or it is preemptible, the profile preempts
and the reservation has not begun. What still runs there when a reservation begins makes way (`limits.py`).

Source: advance reservations of Maui (D. Jackson, Q. Snell and M. Clement, JSSPP 2001) and of Slurm; that preemptible
jobs may run there until then is ours.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import CPU_FREE, DEVICES, J_LIMIT, J_PREEMPTIBLE, MEMORY_FREE, MIG, Table, slices_at
from kant.cluster.state import ClusterState
from kant.model.decision import Booked
from kant.model.placement import MASK, NODE, WIDTH, Allocation, Booking
from kant.model.units import FOREVER, GPU

NOTHING: Allocation = np.zeros((0, WIDTH), dtype=np.int64)


class BookedSpace:
    """What is booked, as the jobs of one cycle see it. `preempts`: whether the profile stops jobs for others."""

    def __init__(self, state: ClusterState, now: int, preempts: bool) -> None:
        self.state = state
        self.now = now
        self.preempts = preempts

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

    def closed_to(self, row: int) -> dict[int, int]:
        """The GPUs that the job may not have, as bits by node. What is booked for itself must have begun."""
        name = self.own(row)
        if name:
            booked = self.state.bookings[name].devices()
            every = {node: (1 << spec.gpus) - 1 for node, spec in enumerate(self.state.spec.nodes)}
            return {node: bits & ~booked.get(node, 0) for node, bits in every.items()}
        closed: dict[int, int] = {}
        for _, booking in self.in_the_way(row):
            for node, bits in booking.devices().items():
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

        Each GPU takes its part of the CPU and memory of its node along; of a node that a reservation has no GPU of its
        jobs get nothing.
        """
        closed = self.closed_to(row)
        found: list[list[int]] = []
        whole = bool(self.own(row))
        for node, bits in closed.items():
            spec, slots = self.state.spec.nodes[node], table[node, DEVICES:].tolist()
            devices = [(device, slots[device]) for device in range(spec.gpus) if bits >> device & 1]
            outside = whole and len(devices) == spec.gpus
            idle = sum(1 << device for device, free in devices if free == GPU)
            part = idle.bit_count() / spec.gpus if spec.gpus else 0.0
            share = (int(spec.cpu * part), int(spec.memory * part)) if not whole else (0, 0)
            cpu, memory = table[node, [CPU_FREE, MEMORY_FREE]].tolist()
            share = (cpu, memory) if outside else (max(min(share[0], cpu), 0), max(min(share[1], memory), 0))
            milli = int(table[node, MIG])
            if (idle and not milli) or any(share):
                found.append([node, 1, 0 if milli else idle, GPU if idle and not milli else 0, *share, -1])
            for device, free in devices:
                if milli and free > 0:
                    left = (1 << GPU // milli) - 1 & ~int(table[node, slices_at(table) + device])
                    found.append([node, 1, 1 << device, milli * left.bit_count(), 0, 0, -1 - left])
                elif not milli and 0 < free < GPU:
                    found.append([node, 1, 1 << device, free, 0, 0, -1])
        return np.array(found, dtype=np.int64).reshape(-1, WIDTH) if found else NOTHING

    def reason(self, row: int) -> Booked | None:
        """The first booking that keeps the job from what is free; None where none does."""
        booking = min(self.in_the_way(row), key=lambda one: (one[1].start, one[0]), default=None)
        return None if booking is None else Booked(booking[0], booking[1].start)
