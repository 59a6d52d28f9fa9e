"""Nodes that may run so many pods and no more: the core counts them, so each decision is final."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.node_remarks import node_remarks
from kant.kube.translate.pod_rules import PODS
from kant.model.node import ClusterSpec, Node
from kant.model.rules import PodRules
from kant.scheduler.profile import builtin_profile
from kant.testing import Harness, make_job

WHEN = "2026-11-22T10:00:00Z"


def mirror_of(limits: list[int], pods: int) -> Mirror:
    mirror = Mirror()
    for i, limit in enumerate(limits):
        room: dict[str, str | int | float] = {"cpu": 8, "memory": "8Gi", "pods": limit}
        ready = k.Condition("Ready", "True")
        mirror.nodes.change(
            "added", k.Node(k.Meta(f"n{i}"), k.NodeSpec(), k.NodeStatus(room, room, conditions=(ready,)))
        )
    for i in range(pods):
        meta = k.Meta(f"p{i}", "ml", f"uid-{i}", creation_timestamp=WHEN)
        mirror.pod("added", k.Pod(meta, k.PodSpec(scheduler_name="kant", containers=(k.Container(),))))
    return mirror


def there(mirror: Mirror, node: str, name: str) -> None:
    """A pod of somebody else that asks for nothing: it is no job of the core."""
    mirror.pod("added", k.Pod(k.Meta(name, "ml", name, creation_timestamp=WHEN), k.PodSpec(node_name=node)))


@given(
    limits=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=5), pods=st.integers(0, 14)
)
def test_pods_that_ask_for_nothing_fill_all_nodes_in_one_decision(limits: list[tuple[int, int]], pods: int) -> None:
    mirror = mirror_of([limit for limit, _ in limits], pods)
    for i, (_, others) in enumerate(limits):
        for number in range(others):
            there(mirror, f"n{i}", f"other-{i}-{number}")
    leader = Leader(mirror)
    counts = Counter(slot.node for slot in leader.turn())
    left = [max(limit - others, 0) for limit, others in limits]
    assert counts.total() == min(pods, sum(left))
    assert all(counts[f"n{i}"] <= own for i, own in enumerate(left))
    assert not leader.workloads.messages.unsent


@settings(max_examples=examples(20))
@given(limits=st.lists(st.integers(0, 4), min_size=1, max_size=4), size=st.integers(2, 9))
def test_a_gang_goes_to_as_many_nodes_as_its_pods_need(limits: list[int], size: int) -> None:
    """None of them takes the whole gang, as they may have few pods; all together they do, or it waits whole."""
    mirror = mirror_of(limits, size)
    notes = {"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": f"{size}"}
    for pod in list(mirror.pods.values()):
        mirror.pod("modified", replace(pod, metadata=replace(pod.metadata, labels=notes)))
    counts = Counter(slot.node for slot in Leader(mirror).turn())
    assert counts.total() == (size if sum(limits) >= size else 0)
    assert all(counts[f"n{i}"] <= limit for i, limit in enumerate(limits))


def test_a_remark_counts_the_nodes_that_are_full_of_pods_and_no_row_without_a_node() -> None:
    spec = ClusterSpec("grows", tuple(Node(name, 2, amounts=((PODS, 1),)) for name in ("a", "b")), grows=True)
    harness = Harness(spec, builtin_profile("kant"))
    harness.submit(make_job("one", 1, rules=(PodRules(amounts=((PODS, 1),)),)))
    harness.cycle()
    (node,) = harness.nodes_of("one")
    assert node_remarks((), ("a", "b"), harness.state) == [f"node {node} has reached its limit of 1 pods"]
