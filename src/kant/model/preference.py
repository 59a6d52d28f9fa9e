"""Preferences: what pods like of their node. Where it is not to be had they go elsewhere."""

from __future__ import annotations

from msgspec import Struct

from kant.model.rules import HOST


class LikedNodes(Struct, frozen=True, array_like=True):
    """The nodes of a node set are worth `weight` more than others."""

    node_set: str
    weight: int = 1


class LikedPods(Struct, frozen=True, array_like=True):
    """A node is worth `weight` more for each pod of a class in its domain; less, where the weight is negative."""

    pod_class: str
    weight: int = 1
    topology: str = HOST


class LikedSpread(Struct, frozen=True, array_like=True):
    """The fewer pods of a class are in the domain of a node, the better. Nodes without a domain come last.

    A topology with few domains counts for less than one with many. `max_skew` has a part in the score only beside
    other spreads of the same pod.
    """

    pod_class: str
    topology: str = HOST
    max_skew: int = 1


class Preferences(Struct, frozen=True, array_like=True):
    """What each pod of a group likes of its node; the weights of the profile say how much each of the four counts.

    A node is worth the less, the more of the node sets `avoided` it is in.
    """

    nodes: tuple[LikedNodes, ...] = ()
    avoided: tuple[str, ...] = ()
    pods: tuple[LikedPods, ...] = ()
    spread: tuple[LikedSpread, ...] = ()
