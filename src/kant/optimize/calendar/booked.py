"""The bookings of a cluster at a time (running jobs, reservations, nodes out of service), and their collisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.placement import MASK, MILLI, NODE, TAG, Allocation
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, GPU

Kind = Literal["running", "reserved", "booked", "maintenance"]


class HeldGpus(NamedTuple):
    """GPUs of a job, or of a node out of service, from `start` until before `end` (microseconds; FOREVER: no end).

    `held` has the GPUs of each node, by node index, as a bit mask. Under `soft` maintenance running jobs may finish.
    `inside` names a job's reservation. A job that `yields` is preempted when a reservation begins. The kind `reserved`
    is the reservation of a waiting job, `booked` a reservation made by a user.
    """

    id: str
    kind: Kind
    start: int
    end: int
    held: tuple[tuple[int, int], ...]
    soft: bool = False
    inside: str = ""
    yields: bool = False

    @property
    def gpus(self) -> int:
        """The number of GPUs that the booking holds."""
        return sum(mask.bit_count() for _, mask in self.held)


class Collision(NamedTuple):
    """Two bookings (by index) that hold the same GPUs of a node from `since` on. `gpus` is a bit mask."""

    first: int
    second: int
    node: int
    gpus: int
    since: int


def booked_in(
    state: ClusterState, now: int, end_of: Callable[[int], int], preempts: bool = False
) -> tuple[list[HeldGpus], list[str]]:
    """The bookings of a state in order of their start, and the jobs that are left out because they share GPUs.

    `end_of` returns the expected end of a running job, by its row. `preempts`: whether the profile preempts jobs.
    """
    found: list[HeldGpus] = []
    shared = []
    for row, held in state.running.items():
        if _is_whole(held):
            inside = state.shape_of(row).ask.reservation
            yields = preempts and bool(state.jobs[row, c.J_PREEMPTIBLE])
            end = max(end_of(row), now + 1)
            if inside in state.bookings:
                end = min(end, max(state.bookings[inside].end, now + 1))
            found.append(HeldGpus(state.ids[row], "running", now, end, _gpus_of(held), False, inside, yields))
        else:
            shared.append(state.ids[row])
    for row, reservation in state.reserved.items():
        held = reservation.allocation
        if _is_whole(held):
            end = max(reservation.end, reservation.start + 1)
            found.append(HeldGpus(state.ids[row], "reserved", reservation.start, end, _gpus_of(held)))
        else:
            shared.append(state.ids[row])
    for name, booking in state.bookings.items():
        if booking.end > now:
            held_by = tuple(sorted(booking.devices().items()))
            found.append(HeldGpus(name, "booked", booking.start, booking.end, held_by))
    found += out_of_service(state, now)
    found = [booking for booking in found if booking.held]
    return sorted(found, key=lambda booking: (booking.start, booking.id, booking.kind)), sorted(shared)


def _is_whole(held: Allocation) -> bool:
    """Whether an allocation holds only whole GPUs."""
    return all(int(piece[MASK]) == 0 or (int(piece[MILLI]) == GPU and int(piece[TAG]) > 0) for piece in held)


def _gpus_of(held: Allocation) -> tuple[tuple[int, int], ...]:
    masks: dict[int, int] = {}
    for piece in held.tolist():
        if piece[MASK]:
            masks[piece[NODE]] = masks.get(piece[NODE], 0) | piece[MASK]
    return tuple(sorted(masks.items()))


def out_of_service(state: ClusterState, now: int) -> Iterator[HeldGpus]:
    """Nodes that accept no jobs, and lost devices. A node with a drain deadline has no jobs after the deadline."""
    for index, node in enumerate(state.nodes):
        status, every = int(state.table[index, c.STATUS]), (1 << node.gpus) - 1
        if not node.name:
            continue
        if status != NodeStatus.IN_SERVICE:
            until = state.health.drains.get(index)
            soft = status not in (NodeStatus.FAILED, NodeStatus.RETIRED) and until is None
            start = now if until is None else max(until, now)
            yield HeldGpus(node.name, "maintenance", start, FOREVER, ((index, every),), soft)
        elif index in state.health.lost:
            yield HeldGpus(node.name, "maintenance", now, FOREVER, ((index, state.health.lost[index]),))


def collisions(bookings: Sequence[HeldGpus]) -> list[Collision]:
    """The pairs of bookings that hold the same GPUs at one time, each with the first node where they do, by time."""
    on: dict[int, list[tuple[int, int]]] = {}
    for number, booking in enumerate(bookings):
        for node, mask in booking.held:
            on.setdefault(node, []).append((number, mask))
    found: dict[tuple[int, int], Collision] = {}
    for node, holders in sorted(on.items()):
        for i, (first, mask) in enumerate(holders):
            for second, other in holders[i + 1 :]:
                one, two = bookings[first], bookings[second]
                since = max(one.start, two.start)
                meet = mask & other and since < min(one.end, two.end) and not _bears(one, two)
                if meet and (first, second) not in found:
                    found[first, second] = Collision(first, second, node, mask & other, since)
    return sorted(found.values(), key=lambda each: (each.since, each.first, each.second))


def _bears(one: HeldGpus, two: HeldGpus) -> bool:
    """Whether two bookings may share GPUs: a job with a reservation that it uses or yields to, or soft maintenance."""
    kinds = {one.kind, two.kind}
    if kinds == {"running", "booked"}:
        job, booking = (one, two) if one.kind == "running" else (two, one)
        return job.inside == booking.id or (job.yields and job.start < booking.start)
    return kinds == {"maintenance"} or ((one.soft or two.soft) and "running" in kinds)
