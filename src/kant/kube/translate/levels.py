"""Which node label names a node's domain at each topology level, by a Topology object or by well-known labels.

Sources: topograph (docs/labels), Kueue KEP-2724 and KAI (Topology), NVIDIA GPU feature discovery, GKE and EKS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from kant.model.errors import InputError
from kant.model.job import LEVELS, Level

HOSTNAME = "kubernetes.io/hostname"
HOSTS = (HOSTNAME, "cloud.google.com/gce-topology-host")
"""Labels that name the node itself."""

HBDS = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "topology.k8s.aws/ultraserver-id",
)
"""Labels that name the NVLink domain of a node. The first one that is present counts."""

_AWS = tuple(f"topology.k8s.aws/network-node-layer-{layer}" for layer in (4, 3, 2, 1))
_OLD = "network.topology.nvidia.com"

CONVENTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("topograph", tuple(f"fabric.topograph.run/tier-{tier}" for tier in range(3))),
    ("topograph", (f"{_OLD}/leaf", f"{_OLD}/spine", f"{_OLD}/core")),
    ("topograph", (f"{_OLD}/block", f"{_OLD}/spine", f"{_OLD}/datacenter")),
    ("cloud.provider.com", ("cloud.provider.com/topology-rack", "cloud.provider.com/topology-block")),
    ("GKE", ("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block")),
    ("EKS", _AWS),
    ("zones", ("", "", "topology.kubernetes.io/zone")),
)
"""Conventions, each with its labels from leaf to superspine. The first whose narrowest label some node has applies."""


class Levels(Struct, frozen=True):
    """The node label of each level ("": the cluster has no such level), and the source of the labels."""

    superspine: str = ""
    spine: str = ""
    leaf: str = ""
    hbd: str = ""
    source: str = ""

    def level_of(self, word: str) -> Level:
        """Return the level that has this name or node label; "" if no level has it."""
        if word == "node" or word in HOSTS:
            return "node"
        for level in LEVELS[1:]:
            label = getattr(self, level)
            if label and word in (level, label):
                return level
        return ""

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the levels that may be requested, for messages."""
        return ("node", *(level for level in LEVELS[1:] if getattr(self, level)))

    @property
    def labels(self) -> tuple[str, ...]:
        """The node labels in use, from the outermost level inwards."""
        return tuple(label for level in LEVELS[1:] if (label := getattr(self, level)))


def level_asked(levels: Levels, word: str, where: str) -> Level:
    """Return the level requested by its name or label. Raises InputError if it is unknown."""
    level = levels.level_of(word)
    if not level:
        labels = f" or a label: {', '.join(levels.labels)}" if levels.labels else ""
        raise InputError(where, f"a level of the fabric ({', '.join(levels.known)}){labels}", word)
    return level


def levels_listed(labels: Iterable[str], source: str, where: str) -> Levels:
    """Return the levels of a Topology of KAI or Kueue, which lists its labels from the broadest to the narrowest.

    Labels of hosts are omitted, and a label known to name NVLink domains becomes the level hbd. Raises InputError if
    more than three other labels are left.
    """
    narrow_first = [label for label in labels if label not in HOSTS][::-1]
    if len(set(narrow_first)) < len(narrow_first):
        raise InputError(where, "each label once", ", ".join(narrow_first[::-1]))
    hbd = next((label for label in HBDS if label in narrow_first), "")
    rest = [label for label in narrow_first if label != hbd]
    if len(rest) > 3:
        raise InputError(where, "at most three levels above the host and the NVLink domain", ", ".join(rest[::-1]))
    leaf, spine, superspine = (*rest, "", "", "")[:3]
    return Levels(superspine, spine, leaf, hbd, source)


def levels_named(pairs: Iterable[tuple[str, str]], source: str, where: str) -> Levels:
    """Return the levels of Kant's Topology, given as (level, label) pairs. InputError if one is unknown or repeated."""
    found: dict[str, str] = {}
    for level, label in pairs:
        if level not in LEVELS[1:] or level in found or not label or label in found.values():
            raise InputError(where, f"one label for each level ({', '.join(LEVELS[1:])})", f"{level}: {label}")
        found[level] = label
    return Levels(**found, source=source)


def levels_seen(nodes: Iterable[Mapping[str, str] | None]) -> Levels:
    """Return the levels for which nodes have well-known labels, for clusters without a Topology object."""
    present = {key for labels in nodes if labels for key in labels}
    hbd = next((label for label in HBDS if label in present), "")
    for source, labels in CONVENTIONS:
        if labels is _AWS:  # AWS numbers three or four layers from the broadest on
            labels = tuple(label for label in _AWS if label in present)[:3]
        narrowest = next((label for label in labels if label), "")
        if narrowest and narrowest in present:
            leaf, spine, superspine = (*(label if label in present else "" for label in labels), "", "", "")[:3]
            return Levels(superspine, spine, leaf, hbd, source)
    return Levels(hbd=hbd, source="NVLink domains" if hbd else "")
