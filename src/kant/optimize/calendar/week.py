"""The bookings of a calendar file on a cluster: each gets its GPUs, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kant.model.errors import InputError
from kant.model.event import GpusBooked
from kant.model.node import ClusterSpec
from kant.model.units import GPU
from kant.optimize.calendar.booking import LineBooking
from kant.optimize.calendar.choose import Held, PlaceRequest, Taken, choose


def book(bookings: Iterable[LineBooking], spec: ClusterSpec, where: str) -> list[GpusBooked]:
    """An event at time zero for each booking, without collisions. Raises InputError for a booking that does not fit."""
    taken: dict[str, Taken] = {}
    for one in bookings:
        place = f"{where}, booking {one.id}"
        if one.offset is not None or one.gaps or one.alignment > 1:
            raise InputError(place, "neither offset, gaps nor alignment on a cluster, where the nodes determine them")
        request = PlaceRequest(one.id, one.gpus, one.start, one.end)
        try:
            found = choose(spec, request, list(taken.values()), -1)
        except InputError as error:
            raise InputError(f"{place}, {error.where}", error.expected, error.got) from None
        if not found.held:
            way = ", ".join(found.collide) or "none found within the limit of the search"
            raise InputError(place, f"adjacent GPUs that are free in its window (in the way: {way})")
        for name, held in found.moved.items():
            taken[name] = Taken(name, taken[name].start, taken[name].end, held, taken[name].request)
        taken[one.id] = Taken(one.id, one.start, one.end, found.held, request)
    return [GpusBooked(0, name, each.start, each.end, _pieces(each.held)) for name, each in taken.items()]


def _pieces(held: Held) -> np.ndarray:
    rows = [[node, 1, bits, GPU, 0, 0, bits.bit_count()] for node, bits in sorted(held.items())]
    return np.array(rows, dtype=np.int64)
