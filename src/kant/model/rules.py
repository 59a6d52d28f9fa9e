"""Rules among pods, and exact amounts: how pods count, and which pods may share a domain of a topology.

A *class* is a name: pods count only in the classes that their job names. The caller decides what a class means, such as
all pods that match a selector. A *topology* divides nodes into domains. In the topology `node` each node is a domain.
For a level of the fabric (`kant.model.job.LEVELS`), nodes name their domain; for any other topology, such as zones,
events do (`TopologyChanged`). A node may be in no domain of a topology.
"""

from __future__ import annotations

from msgspec import Struct

HOST = "node"
"""The topology in which each node is a domain."""

CLUSTER = "cluster"
"""The topology of one domain, with every node."""


class PodAntiAffinity(Struct, frozen=True, array_like=True):
    """A pod goes only where at most `most` others of a class are in its domain; without a domain, anywhere.

    For the reverse direction, the pods count in a class of their own, which the other pods avoid. Host ports work the
    same way: pods with port 80 are in a class, and go only where no other pod of that class is.
    """

    pod_class: str
    topology: str = HOST
    most: int = 0


class PodAffinity(Struct, frozen=True, array_like=True):
    """A pod goes only where some pod of a class is in its domain.

    If there is none in any domain, a pod that is itself of the class may go to any domain.
    """

    pod_class: str
    topology: str = HOST


class TopologySpread(Struct, frozen=True, array_like=True):
    """With the pod, its domain has at most `max_skew` more pods of a class than the domain with the fewest.

    All domains of the topology count, also those to which the pod may not go; a separate topology can name only the
    eligible ones. With fewer than `min_domains` domains, the minimum counts as 0.
    """

    pod_class: str
    topology: str
    max_skew: int = 1
    min_domains: int = 1


Limit = PodAntiAffinity | PodAffinity | TopologySpread


class PodRules(Struct, frozen=True, array_like=True):
    """The classes of each pod of a group, its requirements of pods around it, and its exact amounts.

    `amounts` are named integers that a node has (`Node.amounts`), such as pods and extended resources; a node that does
    not name one has none of it. `shared` are amounts of the whole cluster: a name, what each pod takes, and the limit
    for this pod and all others together. The names are names of classes.
    """

    classes: tuple[str, ...] = ()
    anti_affinity: tuple[PodAntiAffinity, ...] = ()
    affinity: tuple[PodAffinity, ...] = ()
    spread: tuple[TopologySpread, ...] = ()
    amounts: tuple[tuple[str, int], ...] = ()
    shared: tuple[tuple[str, int, int], ...] = ()
