"""Placements of a job as text, `NODESxGPUS/LEAVES/SPINES/SUPERSPINES`, and the placements that a cluster offers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kant.model.errors import InputError
from kant.model.node import ClusterSpec
from kant.placement.cost.communication import Spans


class PlacementShape(NamedTuple):
    """`nodes` nodes with `gpus` GPUs of the job each, spread evenly over the given number of domains of each level."""

    nodes: int
    gpus: int
    leaves: int = 1
    spines: int = 1
    superspines: int = 1

    def __str__(self) -> str:
        above = [self.leaves, self.spines, self.superspines]
        while above and above[-1] == 1:
            above.pop()
        return "/".join([f"{self.nodes}x{self.gpus}", *map(str, above)])

    def spans(self, hbd: int = 1) -> Spans:
        """Return the spans for the communication model, with `hbd` nodes per HBD and the fewest possible HBDs."""
        in_leaf = -(-self.nodes // self.leaves)
        hbds = self.leaves * -(-in_leaf // hbd)
        domains = (self.nodes, min(hbds, self.nodes), self.leaves, self.spines, self.superspines)
        node, island, leaf, spine, superspine = (-(-self.nodes // count) * self.gpus for count in domains)
        return Spans(self.nodes * self.gpus, self.nodes, domains[1], (node, island, leaf, spine, superspine))


def places_in(cluster: ClusterSpec, gpus: int) -> list[PlacementShape]:
    """Return placements that a job of `gpus` GPUs could get in the empty cluster, the closest first.

    They are: the fewest nodes, with equal numbers of GPUs, in as few domains as possible; the same in twice and in four
    times as many leaves; the same with one more spine, and with one more superspine; and half of each node's GPUs.
    Raises InputError if the cluster is too small.
    """
    size = _usual(node.gpus for node in cluster.nodes)
    each = next((count for count in range(min(size, gpus), 0, -1) if gpus % count == 0), 0)
    nodes = gpus // max(each, 1)
    whole = [node for node in cluster.nodes if node.gpus >= each]
    if each == 0 or len(whole) < nodes:
        raise InputError("--gpus", f"at most the {len(whole) * each:,} GPUs of nodes of {each} in the cluster", gpus)
    domains = [
        sorted(Counter(getattr(node, level) for node in whole).values(), reverse=True)
        for level in ("leaf", "spine", "superspine")
    ]
    best = _closest(nodes, each, domains)
    wanted = [best, *(best._replace(leaves=best.leaves * times) for times in (2, 4))]
    wanted.append(best._replace(leaves=max(best.leaves, best.spines + 1), spines=best.spines + 1))
    above = best.superspines + 1
    wanted.append(PlacementShape(nodes, each, max(best.leaves, above), max(best.spines, above), above))
    if each % 2 == 0 and len(whole) >= 2 * nodes:
        wanted.append(_closest(2 * nodes, each // 2, domains))
    return list(dict.fromkeys(place for place in wanted if _is_there(place, domains)))


def hbd_nodes(cluster: ClusterSpec) -> int:
    """Return the most common number of nodes per HBD; 1 if each node is its own."""
    named = Counter(node.hbd for node in cluster.nodes if node.hbd)
    return _usual(named.values()) if named else 1


def _usual(sizes: Iterable[int]) -> int:
    """Return the most common size, the largest on ties."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size))


def _closest(nodes: int, gpus: int, domains: Sequence[Sequence[int]]) -> PlacementShape:
    """Return the placement on the fewest domains of each level that together have `nodes` nodes."""
    fewest = []
    for sizes in domains:
        held = count = 0
        while held < nodes:
            held += sizes[count]
            count += 1
        fewest.append(count)
    return PlacementShape(nodes, gpus, *fewest)


def _is_there(place: PlacementShape, domains: Sequence[Sequence[int]]) -> bool:
    """Return whether the cluster has this many domains, with a node of the job in each."""
    asked = (place.leaves, place.spines, place.superspines)
    return place.nodes >= place.leaves and all(count <= len(sizes) for count, sizes in zip(asked, domains, strict=True))
