"""A cluster in numbers, for people and for scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from kant.model.node import ClusterSpec, Node
from kant.model.units import FOREVER

NOT_LIMITED = "not limited"
KINDS_OF_BLOCKS = ("nvlink", "numa", "nic")


def describe_cluster(spec: ClusterSpec) -> dict[str, Any]:
    """Return what the cluster consists of, in JSON values. Histograms map each size to how often it occurs."""
    gpus_by_model: Counter[str] = Counter()
    gpus_by_mig: Counter[str] = Counter()
    dedicated: dict[str, dict[str, int]] = {}
    for node in spec.nodes:
        if node.gpus:
            gpus_by_model[node.model] += node.gpus
        if node.mig:
            gpus_by_mig[node.mig] += node.gpus
        for queue in node.queues:
            held = dedicated.setdefault(queue, {"nodes": 0, "gpus": 0})
            held["nodes"] += 1
            held["gpus"] += node.gpus
    return {
        "name": spec.name,
        "nodes": len(spec.nodes),
        "gpus": spec.gpus,
        "gpus_by_model": dict(sorted(gpus_by_model.items(), key=lambda pair: (-pair[1], pair[0]))),
        "nodes_by_gpus": _histogram(node.gpus for node in spec.nodes),
        "nodes_by_blocks": _blocks(spec.nodes),
        "gpus_by_mig": dict(sorted(gpus_by_mig.items())),
        "cpu_milli": _total([node.cpu for node in spec.nodes]),
        "memory_mib": _total([node.memory for node in spec.nodes]),
        "hbds": _domains(node.hbd for node in spec.nodes),
        "leaves": _domains(node.leaf for node in spec.nodes),
        "spines": _domains(node.spine for node in spec.nodes),
        "superspines": _domains(node.superspine for node in spec.nodes),
        "dedicated": dict(sorted(dedicated.items())),
    }


def _total(amounts: list[int]) -> int | str:
    """Return the sum, or `not limited` if any node has no limit."""
    return NOT_LIMITED if FOREVER in amounts else sum(amounts)


def _domains(names: Iterable[str]) -> dict[str, Any]:
    """Return how many domains a level has, and how many domains there are of each size in nodes."""
    sizes = Counter(name for name in names if name)
    return {"count": len(sizes), "nodes_each": _histogram(sizes.values())}


def _blocks(nodes: Iterable[Node]) -> dict[str, dict[str, int]]:
    """Return for each kind of GPU block how many nodes have blocks of each size."""
    kinds = {kind: _histogram(size for node in nodes if (size := getattr(node, kind))) for kind in KINDS_OF_BLOCKS}
    return {kind: sizes for kind, sizes in kinds.items() if sizes}


def _histogram(sizes: Iterable[int]) -> dict[str, int]:
    """Return how often each size occurs, the largest size first. Keys are text, as in JSON."""
    return {str(size): times for size, times in sorted(Counter(sizes).items(), reverse=True)}
