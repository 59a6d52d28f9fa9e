"""Where a gang goes, tried pod by pod on every node.

The groups of a gang are placed one after the other. A group that finds no place goes first in the next attempt, and
there is at most one attempt for each group: that is the bounded search that `placement/group_order.py` documents.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.model.job import Demand, Job
from kant.model.units import GPU
from kant.testing.naive import admits
from kant.testing.reference.world import Pieces, Room

Score = Callable[[Room], int]

SCORES: dict[str, Score] = {
    "first-fit": lambda room: 0,
    "best-fit": lambda room: -sum(room.devices),
    "worst-fit": lambda room: sum(room.devices),
}
"""The placements that the reference knows: the highest score wins, ties go to the earlier node."""


def fits(room: Room, demand: Demand) -> bool:
    """Whether one more pod fits on a node."""
    if not room.open or room.cpu < demand.cpu or room.memory < demand.memory:
        return False
    return sum(free >= demand.milli for free in room.devices) >= demand.gpus


def takes_some(room: Room, job: Job) -> bool:
    """Whether a node with nothing on it takes a pod of the job."""
    return admits(room.node, job, room.node_sets) and any(
        room.node.gpus >= group.demand.gpus and room.cpu >= group.demand.cpu and room.memory >= group.demand.memory
        for group in job.groups
    )


def devices_for(room: Room, demand: Demand) -> int:
    """The devices of one pod, as bits: the first idle ones, or for a share the device with the least room for it."""
    able = [device for device, free in enumerate(room.devices) if free >= demand.milli]
    if demand.milli < GPU:
        able.sort(key=lambda device: (room.devices[device], device))
    return sum(1 << device for device in able[: demand.gpus])


def place(rooms: list[Room], job: Job, score: Score, model: str | None = None) -> Pieces | None:
    """A place for the whole gang, one piece for each pod, taken from `rooms`. None where it has none.

    Then nothing is taken. With `model` only on nodes of that GPU model.
    """
    allowed = [
        i
        for i, room in enumerate(rooms)
        if admits(room.node, job, room.node_sets) and (model is None or room.node.model == model)
    ]
    order = list(range(len(job.groups)))
    for _ in range(len(order)):
        pieces: Pieces = []
        failed = next((group for group in order if not _place_group(rooms, allowed, job, group, score, pieces)), None)
        if failed is None:
            return pieces
        for piece in pieces:
            rooms[piece[0]].change(piece, 1)
        if failed == order[0]:
            return None
        order.remove(failed)
        order.insert(0, failed)
    return None


def _place_group(rooms: list[Room], allowed: list[int], job: Job, group: int, score: Score, pieces: Pieces) -> bool:
    """Place the pods of one group; what they take is appended to `pieces`, also where the group does not fit."""
    demand = job.groups[group].demand
    for _ in range(job.groups[group].count):
        able = [i for i in allowed if fits(rooms[i], demand)]
        if not able:
            return False
        node = max(able, key=lambda i: (score(rooms[i]), -i))
        tag = -1 if demand.gpus == 0 else demand.gpus if demand.milli == GPU else 0
        milli = demand.milli if demand.gpus else 0
        piece = [node, 1, devices_for(rooms[node], demand), milli, demand.cpu, demand.memory, tag]
        rooms[node].change(piece, -1)
        pieces.append(piece)
    return True
