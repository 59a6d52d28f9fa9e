"""Rules among pods, and exact amounts: what pods count as, and what that lets stand in one domain of a topology.

A *class* is a name: pods count in the classes that their job says, and in no others. Who names them decides what they
mean, such as all pods that a selector is about. A *topology* divides nodes into domains: `node` is each node by itself,
a level of the fabric (`kant.model.job.LEVELS`) is what the nodes say of their places, and any other name is what events
say (`TopologyChanged`), such as zones. A node may be in no domain of a topology.
"""

from __future__ import annotations

from msgspec import Struct

HOST = "node"
"""The topology of which each node is a domain."""


class PodAntiAffinity(Struct, frozen=True, array_like=True):
    """A pod goes only where at most `most` others of a class are in its domain; where there is no domain, anywhere.

    For the other direction pods count in a class of their own, and those of the class are kept from that. So are ports
    of a host: whoever has port 80 is in a class, and goes where none of it is.
    """

    pod_class: str
    topology: str = HOST
    most: int = 0


class PodAffinity(Struct, frozen=True, array_like=True):
    """A pod goes only where some pod of a class is in its domain.

    Where none is anywhere, one that is itself of the class may go to any domain.
    """

    pod_class: str
    topology: str = HOST


class TopologySpread(Struct, frozen=True, array_like=True):
    """With the pod its domain has at most `max_skew` more pods of a class than the one that has the fewest.

    All domains of the topology count, also those to which the pod itself may not go; a topology of its own names those
    that are eligible. Where there are fewer than `min_domains` of them, the fewest is none.
    """

    pod_class: str
    topology: str
    max_skew: int = 1
    min_domains: int = 1


Limit = PodAntiAffinity | PodAffinity | TopologySpread


class PodRules(Struct, frozen=True, array_like=True):
    """What each pod of a group counts as, what it demands of the pods around it, and its exact amounts.

    `amounts` are named integers of which a node has so many (`Node.amounts`), such as pods and extended resources: a
    node that does not name one has none of it.
    """

    classes: tuple[str, ...] = ()
    anti_affinity: tuple[PodAntiAffinity, ...] = ()
    affinity: tuple[PodAffinity, ...] = ()
    spread: tuple[TopologySpread, ...] = ()
    amounts: tuple[tuple[str, int], ...] = ()
