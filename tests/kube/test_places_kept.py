"""A place of an elastic gang is kept for a while for the pod that had it, though others of its gang wait."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k

OWN = "scheduling.kant.dev"
GPUS = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb")


def member(number: int, run: int, gpu: str) -> k.Pod:
    """A pod of a gang that starts with two; `run`: how often it has been made; `gpu`: the resource that it asks for."""
    notes = {f"{OWN}/pod-group": "g", f"{OWN}/min-available": "2"}
    meta = k.Meta(f"g-{number}", "ml", f"{number}.{run}", annotations=notes, creation_timestamp="2026-11-23T10:00:00Z")
    asks = k.Container(k.Resources({"cpu": 1, gpu: 1}, {gpu: 1}))
    return k.Pod(meta, k.PodSpec(scheduler_name="kant", containers=(asks,)))


@settings(max_examples=examples(20))
@given(
    gone=st.sets(st.integers(0, 3), min_size=1, max_size=2), heard=st.booleans(), later=st.booleans(),
    gpu=st.sampled_from(GPUS),
)  # fmt: skip
def test_a_pod_that_is_made_anew_gets_its_place_back(gone: set[int], heard: bool, later: bool, gpu: str) -> None:
    mirror = Mirror()
    room: dict[str, str | int | float] = {"cpu": 64, "memory": "64Gi", "pods": 99, gpu: 4}
    status = k.NodeStatus(room, room, conditions=(k.Condition("Ready", "True"),))
    mirror.nodes.change("added", k.Node(k.Meta("n"), k.NodeSpec(), status))
    for number in range(6):
        mirror.pod("added", member(number, 0, gpu))
    leader = Leader(mirror)

    def bound() -> list[str]:
        return sorted(uid for uid, pod in mirror.pods.items() if pod.spec.node_name)

    while leader.turn(heard):
        pass
    assert bound() == ["0.0", "1.0", "2.0", "3.0"]
    for number in gone:
        mirror.pod("deleted", mirror.pods[f"{number}.0"])
    if later:
        leader.settle()
        leader.turn()
    for number in gone:
        mirror.pod("added", member(number, 1, gpu))
    leader.settle()
    while leader.turn():
        pass
    assert bound() == sorted(f"{number}.{int(number in gone)}" for number in range(4))
