"""Adds nodes like existing ones to a cluster."""

from __future__ import annotations

from itertools import count as counted

from msgspec.structs import replace

from kant.model.node import ClusterSpec, Node


def with_more(cluster: ClusterSpec, like: Node, count: int) -> ClusterSpec:
    """Return the cluster with `count` more nodes like the node `like`, at its end.

    They are in new leaves under the spine of `like`, as large as its leaf, and in new HBDs as large as its HBD.
    """
    names = {node.name for node in cluster.nodes}
    domains = {domain for node in cluster.nodes for domain in (node.leaf, node.hbd)}
    leaf = [node for node in cluster.nodes if _leaf(node) == _leaf(like)]
    wide, joined = len(leaf), sum(node.hbd == like.hbd for node in leaf)
    fresh = (f"new-{number}" for number in counted(1))
    own = next(name for name in fresh if not any(known.startswith(name) for known in names | domains))
    more = [
        replace(
            like,
            name=f"{own}-n{i + 1}",
            leaf=f"{own}-leaf{i // wide + 1}" if like.leaf else "",
            hbd=f"{own}-hbd{i % wide // joined + 1}" if like.hbd else "",
        )
        for i in range(count)
    ]
    return replace(cluster, nodes=(*cluster.nodes, *more))


def _leaf(node: Node) -> tuple[str, str, str]:
    return node.superspine, node.spine, node.leaf
