"""Reservations of GPUs: the calendar chooses whole adjacent nodes for each reservation, and the core is informed.

The status of a reservation names its nodes, so that it keeps these nodes when the state is rebuilt, also by the next
leader. For a reservation without nodes the calendar searches again periodically, and whenever reservations change. The
calendar is imported with the first reservation that needs nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kant.cluster.booking_events import overlap
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.reservations import BookedGpus
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.event import BookingEnded, GpusBooked
from kant.model.placement import Booking
from kant.model.units import GPU, SECOND

if TYPE_CHECKING:
    from kant.optimize.calendar.choose import Held, PlaceRequest, Taken

AGAIN = 30 * SECOND
"""Microseconds between two attempts to find nodes for reservations."""
NAMED = 8


class Bookings:
    """The reservations of one state. `places` has the nodes of a reservation; `troubles`, why one has no nodes."""

    def __init__(self, core: Core, translation: Translation) -> None:
        self.core = core
        self.translation = translation
        self.places: dict[str, tuple[str, ...]] = {}
        self.troubles: dict[str, str] = {}
        self._again = 0

    def settle(self) -> bool:
        """Book new reservations and release ended ones. Returns whether a new reservation has got nodes."""
        core = self.core
        now, known = core.now, {one.name: one for one in self.translation.booked}
        for name in [name for name in core.state.bookings if name not in known or known[name].end <= now]:
            core.happen(BookingEnded(now, name))
        new = [one for one in known.values() if one.name not in core.state.bookings and one.end > now]
        if not new or now < self._again:
            return False
        self._again = now + AGAIN
        new.sort(key=lambda one: (not one.nodes, one.created, one.name))  # reservations that have nodes keep these
        for one in new:
            self._book(one, known)
        return any(one.name in self.places for one in new)

    def _book(self, one: BookedGpus, known: dict[str, BookedGpus]) -> None:
        from kant.optimize.calendar.choose import choose

        core, name = self.core, one.name
        held = self._before(one)
        if held is None:
            try:
                found = choose(core.state.spec, self._request(one), self._taken(known), core.now)
            except InputError as error:
                self.troubles[name] = str(error)
                return
            if not found.held:
                more = f" and {len(found.collide) - NAMED} more" if len(found.collide) > NAMED else ""
                way = f"it collides on {found.line} with {', '.join(found.collide[:NAMED])}{more}"
                self.troubles[name] = way if found.collide else "no GPUs were found for it within the search limit"
                return
            for other in found.moved:
                core.happen(BookingEnded(core.now, other))
            for other, place in found.moved.items():
                self._say(known[other], place)
            held = found.held
        self._say(one, held)

    def _before(self, one: BookedGpus) -> Held | None:
        """Return the nodes in a reservation's status; None if a node is gone, or booked by another reservation."""
        state, held = self.core.state, dict[int, int]()
        for node in one.nodes:
            index = state.node_index.get(node, -1)
            if index < 0 or not state.nodes[index].gpus:
                return None
            held[index] = (1 << state.nodes[index].gpus) - 1
        booking = Booking(one.start, one.end, _pieces(held))
        others = [other for other in state.bookings.values() if other.end > self.core.now]
        clear = held and not any(overlap(booking, other) for other in others)
        return held if clear and sum(bits.bit_count() for bits in held.values()) >= one.gpus else None

    def _taken(self, known: dict[str, BookedGpus]) -> list[Taken]:
        from kant.optimize.calendar.choose import Taken
        from kant.optimize.calendar.occupied import occupied

        state, now = self.core.state, self.core.now
        booked = [
            Taken(name, own.start, own.end, own.devices(), self._request(known[name]))
            for name, own in state.bookings.items()
        ]
        return occupied(state, now, self.core.profile.preemption is not None) + booked

    def _request(self, one: BookedGpus) -> PlaceRequest:
        from kant.optimize.calendar.choose import PlaceRequest

        return PlaceRequest(one.name, one.gpus, one.start, one.end, one.within, one.model, whole=True)

    def _say(self, one: BookedGpus, held: Held) -> None:
        core = self.core
        core.happen(GpusBooked(core.now, one.name, one.start, one.end, _pieces(held)))
        self.places[one.name] = tuple(core.state.nodes[node].name for node in sorted(held))
        self.troubles.pop(one.name, None)


def _pieces(held: Held) -> np.ndarray:
    rows = [[node, 1, bits, GPU, 0, 0, bits.bit_count()] for node, bits in sorted(held.items())]
    return np.array(rows, dtype=np.int64).reshape(-1, 7)
