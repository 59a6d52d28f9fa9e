"""Nodes with more pods than fit: what one that goes gives back is for those that lack some of it."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.cluster import columns as c
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.model.placement import CPU, MASK, MEMORY

ROOM: dict[str, str | int | float] = {"cpu": 3, "memory": "3Gi", "pods": 99, "nvidia.com/gpu": 2}
Asked = tuple[int, int, int, bool]
asked = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), st.booleans())
"""GPUs, cores, GiB, and whether another scheduler has bound the pod."""


def there(number: int, asks: Asked) -> k.Pod:
    gpus, cores, memory, foreign = asks
    size: dict[str, str | int | float] = {"cpu": cores, "memory": f"{memory}Gi"} | (
        {"nvidia.com/gpu": gpus} if gpus else {}
    )
    meta = k.Meta(f"p{number}", "ml", f"p{number}", creation_timestamp="2026-11-23T10:00:00Z")
    spec = k.PodSpec("n", "other" if foreign else "kant", containers=(k.Container(k.Resources(size, size)),))
    return k.Pod(meta, spec)


def leader_of(pods: Iterable[k.Pod], room: dict[str, str | int | float]) -> Leader:
    mirror = Mirror()
    status = k.NodeStatus(room, room, conditions=(k.Condition("Ready", "True"),))
    mirror.nodes.change("added", k.Node(k.Meta("n"), k.NodeSpec(), status))
    for pod in pods:
        mirror.pod("added", pod)
    return Leader(mirror)


def goes(leader: Leader, uid: str) -> None:
    gone = leader.mirror.pods[uid]
    leader.mirror.pod("deleted", gone)
    key = leader.workloads.members.note(uid, gone)
    assert key is not None
    leader.workloads.settle_all({key: None})


def held(leader: Leader) -> dict[str, tuple[int, int, int]]:
    """What each pod holds: GPUs, cores, GiB."""
    state, found = leader.core.state, {}
    for name, workload in leader.workloads.by_job.items():
        pieces = state.running[state.rows[name]].tolist()
        gpus = sum(piece[MASK].bit_count() for piece in pieces)
        (slot,) = workload.slots
        found[slot.pod] = gpus, sum(one[CPU] for one in pieces) // 1000, sum(one[MEMORY] for one in pieces) // 1024
    return found


@settings(max_examples=examples(25))
@given(asks=st.lists(asked, min_size=2, max_size=9), data=st.data())
def test_nothing_is_free_that_a_pod_there_lacks(asks: list[Asked], data: st.DataObject) -> None:
    leader = leader_of((there(number, one) for number, one in enumerate(asks)), ROOM)
    for uid in data.draw(st.permutations(list(leader.mirror.pods))):
        leader.core.state.check()
        row, has = leader.core.state.table[0].tolist(), held(leader)
        free = (sum(one == 1000 for one in row[c.DEVICES :][:2]), row[c.CPU_FREE] // 1000, row[c.MEMORY_FREE] // 1024)
        for own in leader.mirror.pods:
            wants = asks[int(own[1:])][:3]
            lacks = [want - one for want, one in zip(wants, has.get(own, (0, 0, 0)), strict=True)]
            assert min(lacks) >= 0
            assert not any(left and one for left, one in zip(free, lacks, strict=True)), (own, free, lacks)
        goes(leader, uid)
    assert not leader.workloads.existing_pods.short


def test_a_node_that_leaves_is_forgotten_though_it_never_had_what_a_pod_there_lacked() -> None:
    leader = leader_of([there(0, (1, 1, 1, False))], {"cpu": 3, "memory": "3Gi", "pods": 99})
    goes(leader, "p0")
    assert leader.workloads.existing_pods.short
    leader.mirror.nodes.change("deleted", leader.mirror.nodes["n"])
    leader.fleet.follow(["n"])
    leader.workloads.lost_places.has_more(["n"])
    assert not leader.workloads.existing_pods.short
