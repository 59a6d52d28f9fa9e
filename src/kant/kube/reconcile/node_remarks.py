"""Remarks about nodes that take nothing more, for those who wait: for their own state, or for their pods."""

from __future__ import annotations

from collections.abc import Collection

from kant.kube.follow.mirror import Mirror
from kant.kube.translate.pod_rules import NO_LIMIT, PODS, amounts_at


def node_remarks(closed: Collection[str], mirror: Mirror) -> list[str]:
    """What is to be said of the nodes, each in one sentence."""
    return [one for one in (_crowded(mirror), out_of_service(closed, mirror.nodes)) if one]


def _crowded(mirror: Mirror) -> str:
    limits = {name: dict(amounts_at(view)).get(PODS, NO_LIMIT) for name, view in mirror.nodes.items()}
    full = sorted(name for name, limit in limits.items() if len(mirror.on_node.get(name, ())) >= limit)
    if len(full) == 1:
        return f"node {full[0]} has as many pods as it may ({limits[full[0]]})"
    return f"{len(full):,} nodes have as many pods as they may" if full else ""


def out_of_service(closed: Collection[str], nodes: Collection[str]) -> str:
    """How many of the nodes take nothing new for their own state, in one sentence; "" where all serve."""
    shut = sorted(name for name in closed if name in nodes)
    why = "(cordoned, not ready or malformed)"
    if not nodes:
        return "the cluster has no nodes"
    if len(shut) == 1:
        return f"node {shut[0]} takes nothing new {why}"
    return f"{len(shut):,} of {len(nodes):,} nodes take nothing new {why}" if shut else ""
