"""The places of a gang with rules as a problem: its pods by kinds, what nodes have left, and what must hold of them.

Who makes one knows the objects (`gang_places.py`), who solves it does not (`rule_search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kant.kube.translate.levels import HOSTNAME
from kant.model.job import Demand


class Apart(NamedTuple):
    """No pod of a kind in `one` is in a domain with another pod of a kind in `other`."""

    key: str
    one: frozenset[int]
    other: frozenset[int]


class Near(NamedTuple):
    """Pods of the kinds `carriers` are in a domain with a pod of a kind in `wanted`, or where one is already (`there`).

    While there is none anywhere, the first that is wanted itself may go anywhere.
    """

    key: str
    carriers: frozenset[int]
    wanted: frozenset[int]
    there: frozenset[str]


class Even(NamedTuple):
    """Where a pod of the kinds `carriers` is there are at most `skew` more pods than in the emptiest domain.

    Pods of the kinds `counted` count, and those that are there already (`there`), on the nodes that `among` names with
    their domains. Where there are fewer than `least` domains the emptiest counts as empty.
    """

    key: str
    carriers: frozenset[int]
    counted: frozenset[int]
    there: Mapping[str, int]
    among: Mapping[str, str]
    skew: int
    least: int


class Kind(NamedTuple):
    """What one pod takes of a node: a demand, amounts of other resources, and ports of the host."""

    demand: Demand
    others: tuple[tuple[str, int], ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(slots=True)
class Room:
    """What is left of a node. `pods` is how many more it may have."""

    devices: list[int]
    cpu: int
    memory: int
    others: dict[str, int] = field(default_factory=dict)
    ports: frozenset[str] = frozenset()
    pods: int = 1 << 30

    def fits(self, kind: Kind) -> bool:
        """Whether a pod of this kind finds room."""
        asked = kind.demand
        if self.pods < 1 or self.cpu < asked.cpu or self.memory < asked.memory:
            return False
        if asked.gpus and sum(free >= asked.milli for free in self.devices) < asked.gpus:
            return False
        if any(self.others.get(name, 0) < amount for name, amount in kind.others):
            return False
        return self.ports.isdisjoint(kind.ports)

    def less(self, kind: Kind) -> Room:
        """What is left beside a pod of this kind. Of devices with enough those with the least are taken."""
        asked, devices = kind.demand, list(self.devices)
        able = sorted((free, at) for at, free in enumerate(devices) if free >= asked.milli)
        for _, at in able[: asked.gpus]:
            devices[at] -= asked.milli
        others = dict(self.others)
        for name, amount in kind.others:
            others[name] -= amount
        ports = self.ports | set(kind.ports)
        return Room(devices, self.cpu - asked.cpu, self.memory - asked.memory, others, ports, self.pods - 1)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for rooms that nothing tells apart."""
        others = tuple(sorted(self.others.items()))
        return tuple(sorted(self.devices)), self.cpu, self.memory, others, self.ports, self.pods


@dataclass(slots=True)
class Problem:
    """A gang and the nodes that it may use.

    `pods` has the kind of each pod, `rooms` what is free by node, `domains` by label the domain of each node that has
    one, `allowed` which nodes will do for each kind but for the rules, and `liked` nodes that come first among equals.
    """

    kinds: Sequence[Kind]
    pods: Sequence[int]
    rooms: Mapping[str, Room]
    domains: Mapping[str, Mapping[str, str]]
    allowed: Sequence[frozenset[str]]
    apart: Sequence[Apart] = ()
    near: Sequence[Near] = ()
    even: Sequence[Even] = ()
    liked: frozenset[str] = frozenset()

    def domain(self, key: str, node: str) -> str | None:
        """The domain of a node by a label; a host is its own."""
        return node if key == HOSTNAME else self.domains.get(key, {}).get(node)
