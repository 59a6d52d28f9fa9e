"""Nodes that may run so many pods and no more, which the core does not count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k

WHEN = "2026-11-22T10:00:00Z"


def mirror_of(limits: list[int], pods: int) -> Mirror:
    mirror = Mirror()
    for i, limit in enumerate(limits):
        room: dict[str, str | int | float] = {"cpu": 8, "memory": "8Gi", "pods": limit}
        ready = k.Condition("Ready", "True")
        mirror.node("added", k.Node(k.Meta(f"n{i}"), k.NodeSpec(), k.NodeStatus(room, room, conditions=(ready,))))
    for i in range(pods):
        meta = k.Meta(f"p{i}", "ml", f"uid-{i}", creation_timestamp=WHEN)
        mirror.pod("added", k.Pod(meta, k.PodSpec(scheduler_name="kant", containers=(k.Container(),))))
    return mirror


@given(limits=st.lists(st.integers(0, 4), min_size=1, max_size=5), pods=st.integers(0, 14))
def test_pods_that_ask_for_nothing_fill_all_nodes_without_waiting_between(limits: list[int], pods: int) -> None:
    """The core puts them all onto one node, which takes a few: the others are tried at once, and not in 10 s."""
    mirror = mirror_of(limits, pods)
    leader = Leader(mirror)
    for _ in range(2 * len(limits) + 2):
        leader.fleet.count_pods(mirror.nodes)
        leader.workloads.transitions.count_promised()
        leader.turn()
    counts = Counter(pod.spec.node_name for pod in mirror.pods.values() if pod.spec.node_name)
    assert counts.total() == min(pods, sum(limits))
    assert all(counts[f"n{i}"] <= limit for i, limit in enumerate(limits))
    assert not leader.workloads.messages.unsent  # the node was full; nobody is told so who is tried elsewhere at once
