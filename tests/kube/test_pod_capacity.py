"""Nodes that may run so many pods and no more, which the core does not count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
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


@settings(max_examples=examples(20))
@given(limits=st.lists(st.integers(0, 4), min_size=1, max_size=4), size=st.integers(2, 9))
def test_a_gang_goes_to_as_many_nodes_as_its_pods_need(limits: list[int], size: int) -> None:
    """None of them takes the whole gang, as they may have few pods; all together they do, or it waits whole."""
    mirror = mirror_of(limits, size)
    notes = {"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": f"{size}"}
    for pod in list(mirror.pods.values()):
        mirror.pod("modified", replace(pod, metadata=replace(pod.metadata, labels=notes)))
    leader = Leader(mirror)
    for _ in range(2):
        leader.fleet.count_pods(mirror.nodes)
        leader.turn()
    counts = Counter(pod.spec.node_name for pod in mirror.pods.values() if pod.spec.node_name)
    assert counts.total() == (size if sum(limits) >= size else 0)
    assert all(counts[f"n{i}"] <= limit for i, limit in enumerate(limits))
    told = f"no free places are enough for all pods of its gang: the nodes may have {sum(limits)} more pods"
    assert (told in str(leader.workloads.messages.unsent)) == (0 < sum(limits) < size)
