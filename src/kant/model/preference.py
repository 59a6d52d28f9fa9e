"""Preferences of pods among nodes. If no preferred node is available, they go elsewhere."""

from __future__ import annotations

from msgspec import Struct

from kant.model.rules import HOST


class LikedNodes(Struct, frozen=True, array_like=True):
    """Nodes of a node set score `weight` more than others."""

    node_set: str
    weight: int = 1


class LikedPods(Struct, frozen=True, array_like=True):
    """A node scores `weight` more for each pod of a class in its domain; less if the weight is negative."""

    pod_class: str
    weight: int = 1
    topology: str = HOST


class LikedSpread(Struct, frozen=True, array_like=True):
    """Nodes with fewer pods of a class in their domain score better. Nodes without a domain come last.

    A topology with few domains weighs less than one with many. `max_skew` affects the score only if the pod has other
    spreads too.
    """

    pod_class: str
    topology: str = HOST
    max_skew: int = 1


class Preferences(Struct, frozen=True, array_like=True):
    """The node preferences of each pod of a group; the profile weighs the four kinds.

    A node scores less, the more of the node sets `avoided` it is in.
    """

    nodes: tuple[LikedNodes, ...] = ()
    avoided: tuple[str, ...] = ()
    pods: tuple[LikedPods, ...] = ()
    spread: tuple[LikedSpread, ...] = ()
