"""The reservations of this machine: kept across restarts, and passed to each core.

`optimize/calendar/choose.py` chooses the GPUs of a new reservation. It avoids all that is blocked in the reservation's
time window: other reservations, jobs that may not be preempted, and nodes and GPUs out of service.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec
import numpy as np
from msgspec import Struct, field

from kant.live.core import Core
from kant.local.record import ReservationRequest
from kant.local.submission import indices
from kant.model.errors import InputError
from kant.model.event import BookingEnded, GpusBooked
from kant.model.node import ClusterSpec
from kant.model.units import FOREVER, GPU, SECOND
from kant.optimize.calendar.choose import Held, PlaceChoice, PlaceRequest, Taken, choose
from kant.optimize.calendar.occupied import occupied

MOST = 1000
"""Maximum number of reservations that have not ended."""
NAMED = 8
"""Maximum number of blocking reservations or jobs that one sentence names."""


class StoredReservation(Struct):
    """A reservation as stored. Times are microseconds since the Unix epoch; `held` has a bit mask of GPUs by node."""

    request: ReservationRequest = field(name="wish")  # the name of this field in files of earlier versions
    user: str
    start: int
    end: int
    held: dict[str, int]


class LocalReservations:
    """The reservations that have not ended, by name, in order of creation.

    `keep` stores all reservations; it raises OSError if that fails.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self.set_cluster(cluster)
        self.known: dict[str, StoredReservation] = {}
        self.keep: Callable[[bytes], None] = lambda text: None

    def set_cluster(self, cluster: ClusterSpec) -> None:
        """Set the cluster whose GPUs can be reserved."""
        self.cluster = cluster
        self.index = {node.name: index for index, node in enumerate(cluster.nodes)}

    def restore(self, kept: bytes | None) -> None:
        """Load the stored reservations. Raises InputError if they have nodes or GPUs that no longer exist."""
        for one in msgspec.json.decode(kept or b"[]", type=list[StoredReservation]):
            for name, bits in one.held.items():
                if name not in self.index or bits >> self.cluster.nodes[self.index[name]].gpus:
                    raise InputError(
                        "--cluster", f"the same nodes and GPUs as before until reservation {one.request.name} ends"
                    )
            self.known[one.request.name] = one

    def enter(self, core: Core) -> None:
        """Pass all reservations to a new core, before any job enters it."""
        for one in self.known.values():
            if one.end > core.zero + core.now:
                core.happen(self._event(core, one, 0))

    def settle(self, core: Core) -> None:
        """Remove reservations that have ended."""
        now = core.zero + core.now
        over = [name for name, one in self.known.items() if one.end <= now]
        if over:
            self._forget(core, over)

    # --- requests of users ---------------------------------------------------------------------------------------

    def make(self, core: Core, asked: ReservationRequest, user: str) -> list[str]:
        """Reserve GPUs. Return the names of the reservations that move to other GPUs to make room.

        Raises InputError if no GPUs are free in the window; it names the reservations and jobs in the way.
        """
        now = core.zero + core.now
        start = max(round(asked.start * SECOND), now)
        end = round(asked.start * SECOND if asked.start else now) + round(asked.duration_s * SECOND)
        where = f"reservation {asked.name}"
        if asked.name in self.known:
            raise InputError("name", "a name that no other reservation has", asked.name)
        if len(self.known) >= MOST:
            raise InputError("the reservations", f"at most {MOST:,} at once; cancel one first", len(self.known))
        if not start < end < FOREVER - core.zero:
            raise InputError(f"{where}, start", "a time at which the reservation still ends in the future", asked.start)
        request = self._request(asked, start - core.zero, end - core.zero)
        found = choose(self.cluster, request, self.taken(core), core.now)
        if not found.held:
            raise InputError(where, _refusal(request, found, core.zero))
        made = StoredReservation(asked, user, start, end, self._named(found.held))
        before = dict(self.known)
        for name, held in found.moved.items():
            self.known[name] = msgspec.structs.replace(self.known[name], held=self._named(held))
        self.known[asked.name] = made
        self._write(before)
        for name in found.moved:
            core.happen(BookingEnded(core.now, name))
        for name in (*found.moved, asked.name):
            core.happen(self._event(core, self.known[name], core.now))
        return list(found.moved)

    def cancel(self, core: Core, name: str) -> StoredReservation:
        """Cancel a reservation. Raises InputError if no reservation has this name, or jobs run in it."""
        found = self.find(name)
        inside = self.jobs_in(core, name)
        if inside:
            raise InputError(f"reservation {name}", f"no running jobs (cancel {', '.join(inside[:NAMED])} first)")
        self._forget(core, [name])
        return found

    def find(self, name: str) -> StoredReservation:
        """Return the reservation of this name. Raises InputError."""
        found = self.known.get(name)
        if found is None:
            there = ", ".join(list(self.known)[:NAMED]) or "none"
            raise InputError("reservation", f"a reservation that has not ended ({there})", name)
        return found

    def jobs_in(self, core: Core, name: str) -> list[str]:
        """Return the jobs that run in a reservation, by their ids in the core."""
        state = core.state
        return [state.ids[row] for row in state.running if state.shape_of(row).ask.reservation == name]

    def place(self, one: StoredReservation) -> dict[str, str]:
        """Return the GPUs of a reservation, as a text of indices for each node."""
        return {node: indices(bits) for node, bits in one.held.items()}

    # --- obstacles -----------------------------------------------------------------------------------------------

    def taken(self, core: Core) -> list[Taken]:
        """Return all jobs and reservations that hold GPUs and cannot be preempted, with times on the core's clock."""
        found = occupied(core.state, core.now, core.profile.preemption is not None)
        for name, one in self.known.items():
            start, end = one.start - core.zero, one.end - core.zero
            held = {self.index[node]: bits for node, bits in one.held.items()}
            found.append(Taken(name, start, end, held, self._request(one.request, start, end)))
        return found

    def _request(self, asked: ReservationRequest, start: int, end: int) -> PlaceRequest:
        return PlaceRequest(asked.name, asked.gpus, start, end, asked.within, asked.model)

    def _named(self, held: Held) -> dict[str, int]:
        return {self.cluster.nodes[node].name: bits for node, bits in sorted(held.items())}

    def _event(self, core: Core, one: StoredReservation, now: int) -> GpusBooked:
        rows = [[self.index[node], 1, bits, GPU, 0, 0, bits.bit_count()] for node, bits in one.held.items()]
        pieces = np.array(rows, dtype=np.int64)
        return GpusBooked(now, one.request.name, one.start - core.zero, one.end - core.zero, pieces, one.user)

    def _forget(self, core: Core, names: list[str]) -> None:
        before = dict(self.known)
        for name in names:
            del self.known[name]
        self._write(before)
        for name in names:
            if name in core.state.bookings:
                core.happen(BookingEnded(core.now, name))

    def _write(self, before: dict[str, StoredReservation]) -> None:
        """Store the reservations; if that fails, restore `before` and raise InputError."""
        try:
            self.keep(msgspec.json.encode(list(self.known.values())))
        except OSError as error:
            self.known = before
            raise InputError("the store", f"a disk that can be written ({error})") from None


def _refusal(request: PlaceRequest, found: PlaceChoice, zero: int) -> str:
    """Return the sentence that refuses the requested reservation and names what is in its way."""
    window = f"from {moment(zero + request.start)} to {moment(zero + request.end)}"
    what = f"{request.gpus:,} GPUs side by side that are free {window}"
    named = ", ".join(found.collide[:NAMED])
    more = f" and {len(found.collide) - NAMED} more" if len(found.collide) > NAMED else ""
    without = "; it would fit without any one of them" if found.minimal and len(found.collide) > 1 else ""
    way = "the search found none before its limit"
    if named:
        way = f"on {found.line} these are in the way: {named}{more}{without}"
    later = f"; it fits from {moment(zero + found.later)} on" if found.later >= 0 else ""
    return f"{what} ({way}{later})"


def moment(time: int) -> str:
    """Format a time (microseconds since the Unix epoch) in local time."""
    return datetime.fromtimestamp(time / SECOND).isoformat(" ", "seconds")
