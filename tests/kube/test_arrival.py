"""Who came first is first, also within the second that a pod's age is given in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k

ASKS = k.Container(k.Resources(requests={"cpu": 1}))
ROOM: dict[str, str | int | float] = {"cpu": 3, "memory": "8Gi", "pods": 99}


@settings(max_examples=examples(20))
@given(names=st.permutations("abcdef"), seconds=st.lists(st.integers(0, 1), min_size=6, max_size=6))
def test_pods_of_one_second_start_as_they_came_whatever_they_are_called(names: list[str], seconds: list[int]) -> None:
    mirror = Mirror()
    status = k.NodeStatus(ROOM, ROOM, conditions=(k.Condition("Ready", "True"),))
    mirror.nodes.change("added", k.Node(k.Meta("n0"), k.NodeSpec(), status))
    for name, second in zip(names, seconds, strict=True):
        meta = k.Meta("pod", name, name, creation_timestamp=f"2026-11-22T10:00:0{second}Z")
        mirror.pod("added", k.Pod(meta, k.PodSpec(scheduler_name="kant", containers=(ASKS,))))
    Leader(mirror).turn()
    by_age = [name for second in (0, 1) for name, own in zip(names, seconds, strict=True) if own == second]
    assert {pod.metadata.uid for pod in mirror.pods.values() if pod.spec.node_name} == {*by_age[:3]}
