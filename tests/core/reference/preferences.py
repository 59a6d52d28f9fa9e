"""Preferences of pods, recomputed for each pod in fractions: the best of the nodes that admit it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor

from tests.core.reference.rules import domain_of
from tests.core.reference.world import Room

from kant.model.node import Node
from kant.model.preference import LikedPods, LikedSpread, Preferences
from kant.placement.preference_weights import PreferenceWeights

Marks = dict[int, Fraction]
"""The mark of each node, by its row."""


def best(
    rooms: Sequence[Room],
    able: Sequence[int],
    likes: Preferences,
    weights: PreferenceWeights,
    score: Callable[[Room], int],
    last: int | None,
) -> int:
    """The row of the best of the nodes `able`; `last` is the row of the previous pod."""
    policy = {i: Fraction(score(rooms[i])) for i in able}
    liked = {i: Fraction(sum(one.weight for one in likes.nodes if _has(rooms[i], one.node_set))) for i in able}
    avoided = {i: Fraction(sum(_has(rooms[i], name) for name in likes.avoided)) for i in able}
    parts = (
        (weights.policy, _between(policy)),
        (weights.node_affinity, _of_most(liked)),
        (weights.taints, {i: 100 - mark for i, mark in _of_most(avoided).items()}),
        (weights.pod_affinity, _between({i: _pulled(rooms, i, likes.pods) for i in able})),
        (weights.spread, _evenness(rooms, able, likes.spread)),
    )
    total = {i: sum(weight * floor(marks[i]) for weight, marks in parts) for i in able}
    return max(able, key=lambda i: (total[i], _nearness(rooms, i, last), policy[i], -i))


def _pulled(rooms: Sequence[Room], row: int, likes: Sequence[LikedPods]) -> Fraction:
    """The weighted sum of liked and disliked pods around a node."""
    pods = (one.weight * _pods(rooms, one.topology, _domain(rooms[row], one.topology), one.pod_class) for one in likes)
    return Fraction(sum(pods))


def _evenness(rooms: Sequence[Room], able: Sequence[int], likes: Sequence[LikedSpread]) -> Marks:
    """Marks in percent: 100 for the fewest pods; 0 for nodes that lack a domain in some topology."""
    placed = [i for i in able if all(_domain(rooms[i], one.topology) is not None for one in likes)]
    crowd: Marks = dict.fromkeys(placed, Fraction(0))
    for one in likes:
        domains = {i: _domain(rooms[i], one.topology) for i in placed}
        each = Fraction(round(1000 * math.log(len({*domains.values()}) + 2)), 1000)
        for i, domain in domains.items():
            crowd[i] += _pods(rooms, one.topology, domain, one.pod_class) * each + one.max_skew - 1
    whole = {i: floor(amount + Fraction(1, 2)) for i, amount in crowd.items()}
    least, most = min(whole.values(), default=0), max(whole.values(), default=0)
    marks = {i: Fraction(100 * (most + least - amount), most) if most else Fraction(100) for i, amount in whole.items()}
    return {i: marks.get(i, Fraction(0)) for i in able}


def _domain(room: Room, topology: str) -> object:
    return domain_of(room.node, topology, room.domains)


def _pods(rooms: Sequence[Room], topology: str, domain: object, name: str) -> int:
    """The pods of a class in one domain."""
    if domain is None:
        return 0
    there = (room for room in rooms if room.there and _domain(room, topology) == domain)
    return sum(room.counts.classes.get(name, 0) for room in there)


def _has(room: Room, name: str) -> bool:
    return room.node.name in room.node_sets.get(name, ())


def _of_most(marks: Marks) -> Marks:
    """Marks in percent of the highest."""
    most = max(marks.values())
    return {i: mark * 100 / most if most else mark for i, mark in marks.items()}


def _between(marks: Marks) -> Marks:
    """Marks in percent of the way from the lowest to the highest."""
    least, most = min(marks.values()), max(marks.values())
    return {i: (mark - least) * 100 / (most - least) if most > least else Fraction(0) for i, mark in marks.items()}


def _nearness(rooms: Sequence[Room], row: int, last: int | None) -> int:
    if last is None:
        return 0
    one, other = rooms[row].node, rooms[last].node
    return sum(row == last or (_place(one, level) == _place(other, level) != "") for level in range(4))


def _place(node: Node, level: int) -> str:
    return (node.hbd, node.leaf, node.spine, node.superspine)[level]
