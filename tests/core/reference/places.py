"""The place of a gang, found pod by pod on every node.

The groups of a gang are placed one after the other. A group without a place goes first in the next attempt, with at
most two attempts for each group: that is the bounded search that `placement/group_order.py` documents. A gang with
rules among pods that finds no place so is tried exhaustively. One with preferences that finds no place so is tried
without them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import product

from tests.core.reference.preferences import best
from tests.core.reference.rules import NO_RULES, allows, members_near, rules_of
from tests.core.reference.world import Pieces, Room

from kant.model.job import Demand, Job
from kant.model.placement import GROUP, PODS
from kant.model.preference import Preferences
from kant.model.rules import PodAffinity
from kant.model.units import GPU
from kant.placement.preference_weights import PreferenceWeights
from kant.testing.naive import admits

Score = Callable[[Room], int]

SCORES: dict[str, Score] = {
    "first-fit": lambda room: 0,
    "best-fit": lambda room: -sum(room.devices),
    "worst-fit": lambda room: sum(room.devices),
}
"""The placement policies that the reference knows: the highest score wins, ties go to the earlier node."""


def fits(room: Room, demand: Demand) -> bool:
    """Whether one more pod fits on a node."""
    if not room.open or room.cpu < demand.cpu or room.memory < demand.memory:
        return False
    return sum(free >= demand.milli for free in room.devices) >= demand.gpus


def takes_some(room: Room, job: Job) -> bool:
    """Whether an empty node takes a pod of the job."""
    return admits(room.node, job, room.node_sets) and any(
        room.node.gpus >= group.demand.gpus and room.cpu >= group.demand.cpu and room.memory >= group.demand.memory
        for group in job.groups
    )


def devices_for(room: Room, demand: Demand) -> int:
    """The devices of one pod, as bits: the first idle ones, or for a share the fitting device with the least room."""
    able = [device for device, free in enumerate(room.devices) if free >= demand.milli]
    if demand.milli < GPU:
        able.sort(key=lambda device: (room.devices[device], device))
    return sum(1 << device for device in able[: demand.gpus])


def place(
    rooms: list[Room], job: Job, score: Score, model: str | None = None, weights: PreferenceWeights | None = None
) -> Pieces | None:
    """A place for the whole gang, one piece for each pod, taken from `rooms`. None, with nothing taken, if none.

    `model` restricts the nodes to that GPU model. With `weights` the pods' preferences count.
    """
    if weights is not None and not any((weights.node_affinity, weights.taints, weights.pod_affinity, weights.spread)):
        weights = None
    found = _place(rooms, job, score, model, weights if any(one != Preferences() for one in job.preferences) else None)
    return _place(rooms, job, score, model, None) if found is None else found


def _place(
    rooms: list[Room], job: Job, score: Score, model: str | None, weights: PreferenceWeights | None
) -> Pieces | None:
    allowed = [
        i
        for i, room in enumerate(rooms)
        if admits(room.node, job, room.node_sets) and (model is None or room.node.model == model)
    ]
    order = list(range(len(job.groups)))
    for _ in range(2 * len(order)):
        pieces: Pieces = []
        failed = next(
            (group for group in order if not _place_group(rooms, allowed, job, group, score, pieces, weights)), None
        )
        if failed is None:
            return pieces
        for piece in pieces:
            rooms[piece[0]].change(piece, 1, job)
        if failed == order[0]:
            break
        order.remove(failed)
        order.insert(0, failed)
    return _place_anyhow(rooms, allowed, job) if job.rules and weights is None else None


def _place_anyhow(rooms: list[Room], allowed: list[int], job: Job) -> Pieces | None:
    """A place for a gang with rules, by trying every order of its pods and every choice of nodes."""
    left = [group.count for group in job.groups]
    pieces: Pieces = []
    waiting: list[tuple[int, int]] = []
    failed: set[tuple[tuple[int, int], ...]] = set()

    def search() -> bool:
        if not any(left):
            return all(_has_affinity(rooms, node, job, group) for node, group in waiting)
        placed = tuple(sorted((piece[0], piece[GROUP]) for piece in pieces))
        if placed in failed:
            return False
        for group, node in product(range(len(left)), allowed):
            may = left[group] and fits(rooms[node], job.groups[group].demand)
            if not may or not may_come(rooms, node, job, group, coming(job, group, left)):
                continue
            waits = [] if may_come(rooms, node, job, group) else [(node, group)]
            waiting.extend(waits)
            pieces.append(_put(rooms, node, job, group))
            left[group] -= 1
            if search():
                return True
            left[group] += 1
            piece = pieces.pop()
            rooms[node].change(piece, 1, job)
            del waiting[len(waiting) - len(waits) :]
        failed.add(placed)
        return False

    return pieces if search() else None


def coming(job: Job, group: int, left: Sequence[int]) -> list[PodAffinity]:
    """The affinities of a group to pods of other groups that are still to come and do not share the affinity."""
    return [
        near
        for near in rules_of(job, group).affinity
        if any(
            left[other] and near.pod_class in own.classes and near not in own.affinity
            for other, own in ((other, rules_of(job, other)) for other in range(len(left)) if other != group)
        )
    ]


def may_come(rooms: list[Room], at: int, job: Job, group: int, coming: Collection[PodAffinity] = ()) -> bool:
    """Whether the rules among pods admit one more pod of a group to a node."""
    rules = rules_of(job, group)
    there = [index for index, room in enumerate(rooms) if room.there]
    where = [(rooms[i].node, rooms[i].counts) for i in there]
    return rules == NO_RULES or allows(where, there.index(at), rules, rooms[at].domains, coming)


def _has_affinity(rooms: list[Room], at: int, job: Job, group: int) -> bool:
    """Whether a placed pod of a group has the pods that it requires near it, not counting itself."""
    rules = rules_of(job, group)
    there = [index for index, room in enumerate(rooms) if room.there]
    where = [(rooms[i].node, rooms[i].counts) for i in there]
    return all(
        members_near(where, there.index(at), near, rooms[at].domains) > (near.pod_class in rules.classes)
        for near in rules.affinity
    )


def may_stand(rooms: list[Room], job: Job, pieces: Pieces) -> bool:
    """Whether the pods of a gang can be placed as these pieces say, in some order."""
    if not job.rules:
        return True
    rooms, wanted = [room.copy() for room in rooms], Counter[tuple[int, int]]()
    for piece in pieces:
        wanted[piece[0], piece[GROUP]] += piece[PODS]
    waiting: list[tuple[int, int]] = []
    failed: set[tuple[tuple[tuple[int, int], int], ...]] = set()

    def search() -> bool:
        placed = tuple(sorted(wanted.items()))
        if not any(wanted.values()):
            return all(_has_affinity(rooms, node, job, group) for node, group in waiting)
        if placed in failed:
            return False
        left = [sum(pods for (_, own), pods in wanted.items() if own == group) for group in range(len(job.groups))]
        for (node, group), pods in placed:
            if pods and may_come(rooms, node, job, group, coming(job, group, left)):
                waits = [] if may_come(rooms, node, job, group) else [(node, group)]
                waiting.extend(waits)
                wanted[node, group] -= 1
                rooms[node].counts.add(rules_of(job, group), 1)
                if search():
                    return True
                wanted[node, group] += 1
                rooms[node].counts.add(rules_of(job, group), -1)
                del waiting[len(waiting) - len(waits) :]
        failed.add(placed)
        return False

    return search()


def _place_group(
    rooms: list[Room],
    allowed: list[int],
    job: Job,
    group: int,
    score: Score,
    pieces: Pieces,
    weights: PreferenceWeights | None,
) -> bool:
    """Place the pods of one group; their pieces are appended to `pieces`, even if the group does not fit."""
    demand, last = job.groups[group].demand, None
    likes = job.preferences[group if len(job.preferences) > 1 else 0] if weights is not None else None
    for _ in range(job.groups[group].count):
        able = [i for i in allowed if fits(rooms[i], demand) and may_come(rooms, i, job, group)]
        if not able:
            return False
        if likes is not None and weights is not None:
            node = last = best(rooms, able, likes, weights, score, last)
        else:
            node = max(able, key=lambda i: (score(rooms[i]), -i))
        pieces.append(_put(rooms, node, job, group))
    return True


def _put(rooms: list[Room], node: int, job: Job, group: int) -> list[int]:
    """Take the resources of one pod of a group from a node; returns the piece."""
    demand = job.groups[group].demand
    tag = -1 if demand.gpus == 0 else demand.gpus if demand.milli == GPU else 0
    milli = demand.milli if demand.gpus else 0
    piece = [node, 1, devices_for(rooms[node], demand), milli, demand.cpu, demand.memory, tag, group]
    rooms[node].change(piece, -1, job)
    return piece
