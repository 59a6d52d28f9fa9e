"""The events of bookings: a function for each, which applies it to the state."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.node_events import capacity_freed
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.placement import MASK, MILLI, NODE, TAG, Booking
from kant.model.units import FOREVER, GPU


def booked(state: StateData, event: ev.GpusBooked) -> None:
    name, booking = event.reservation, Booking(event.start, event.end, event.allocation, event.user)
    if not name or not event.start < event.end <= FOREVER:
        raise StateError(f"reservation {name!r} has an empty time range: [{event.start}, {event.end})")
    before = state.bookings.get(name)
    if before is not None and before.start <= event.time:
        raise StateError(f"reservation {name!r} has begun and cannot be booked again")
    for node, devices, milli, tag in event.allocation[:, [NODE, MASK, MILLI, TAG]].tolist():
        if not 0 <= node < len(state.nodes) or devices <= 0 or devices >> state.nodes[node].gpus:
            raise StateError(f"reservation {name!r} books devices that do not exist")
        if milli != GPU or tag <= 0:
            raise StateError(f"reservation {name!r} books parts of GPUs; expected whole GPUs")
    for other, own in state.bookings.items():
        if other != name and own.end > event.time and overlap(own, booking):
            raise StateError(f"reservations {other!r} and {name!r} book the same GPUs")
    for other in [other for other, own in state.bookings.items() if own.end <= event.time]:
        del state.bookings[other]
    state.bookings[name] = booking
    _changed(state, booking if before is None else before)


def unbooked(state: StateData, event: ev.BookingEnded) -> None:
    booking = state.bookings.pop(event.reservation, None)
    if booking is None:
        raise StateError(f"reservation {event.reservation!r} does not exist")
    _changed(state, booking)


def overlap(one: Booking, two: Booking) -> bool:
    """Return whether two bookings have the same GPU at some time."""
    if one.start >= two.end or two.start >= one.end:
        return False
    others = two.devices()
    return any(devices & others.get(node, 0) for node, devices in one.devices().items())


def _changed(state: StateData, freed: Booking) -> None:
    state.books = state.limits_runs = True
    state.booking_version += 1
    capacity_freed(state, set(state.table[freed.allocation[:, NODE], c.POOL].tolist()))
