"""Replicas of GPUs by time-slicing and MPS: counted in thousandths, and never more of them than there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.translate.levels import Levels
from kant.kube.translate.nodes import Seen, node_of
from kant.kube.translate.shares import GpuShares
from kant.kube.translate.sharing import CLIENTS, NVIDIA, REPLICAS, SHARED, STRATEGY, sharing_of
from kant.model.errors import InputError
from kant.model.event import QueuesChanged
from kant.model.tenant import Queue, QueueConfig, Quota

MADE = "2026-01-31T12:00:00Z"
READY = (k.Condition("Ready", "True"),)


class Kind(NamedTuple):
    """A node: GPUs, replicas of each, whether they are called gpu.shared, and whether a pod may have but one."""

    gpus: int
    replicas: int
    renamed: bool = False
    single: bool = False

    @property
    def resource(self) -> str:
        return SHARED if self.renamed and self.replicas > 1 else NVIDIA


class Ask(NamedTuple):
    """A pod: how many, of which resource, and the number of replicas that it selects (0: any)."""

    count: int
    resource: str = NVIDIA
    selects: int = 0


def node(name: str, kind: Kind) -> k.Node:
    labels = {} if kind.replicas == 1 else {REPLICAS: str(kind.replicas), STRATEGY: "mps" if kind.single else "x"}
    room: dict[str, str | int | float] = {"cpu": 64, "memory": "64Gi", kind.resource: kind.gpus * kind.replicas}
    return k.Node(k.Meta(name, labels=labels), k.NodeSpec(), k.NodeStatus(room, room, READY))


def pod(name: str, ask: Ask, at: str = "") -> k.Pod:
    limits: dict[str, str | int | float] = {ask.resource: ask.count}
    select: Any = {REPLICAS: str(ask.selects)} if ask.selects else None
    spec = k.PodSpec(
        node_name=at,
        scheduler_name="somebody" if at else "kant",
        containers=(k.Container(k.Resources(limits, limits)),),
        node_selector=select,
    )
    return k.Pod(k.Meta(name, "ml", uid=name, creation_timestamp=MADE), spec)


def cluster(kinds: list[Kind], pods: list[k.Pod]) -> Mirror:
    mirror = Mirror()
    for number, kind in enumerate(kinds):
        mirror.nodes.change("added", node(f"n{number}", kind))
    for one in pods:
        mirror.pod("added", one)
    return mirror


def asked(one: k.Pod, resource: str) -> int:
    return int((one.spec.containers[0].resources.limits or {}).get(resource, 0))


kinds = st.builds(Kind, st.integers(1, 3), st.sampled_from((1, 2, 3, 4, 7)), st.booleans(), st.booleans())
asks = st.builds(Ask, st.integers(1, 2), st.sampled_from((NVIDIA, SHARED)), st.sampled_from((0, 0, 2, 4)))


@settings(max_examples=examples(60))
@example([Kind(2, 4)], [], [(0, 1), (0, 1), (0, 1), (0, 2), (0, 2)])
@given(
    st.lists(kinds, min_size=1, max_size=4),
    st.lists(asks, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6),
)
def test_no_node_gives_out_more_than_it_has_and_a_new_leader_counts_the_same(
    found: list[Kind], wanted: list[Ask], theirs: list[tuple[int, int]]
) -> None:
    foreign, left = [], [kind.gpus * kind.replicas for kind in found]
    for at, count in theirs:
        if at < len(found) and count <= left[at] and (count == 1 or not found[at].single):
            left[at] -= count
            foreign.append(pod(f"their-{len(foreign)}", Ask(count, found[at].resource), f"n{at}"))
    mirror = cluster(found, [*foreign, *(pod(f"own-{number}", ask) for number, ask in enumerate(wanted))])
    leader = Leader(mirror)
    while leader.turn():
        pass
    again = Leader(mirror)
    for number, kind in enumerate(found):
        name = f"n{number}"
        here = [one for one in mirror.pods.values() if one.spec.node_name == name]
        taken = sum(asked(one, kind.resource) for one in here)
        assert taken == sum(asked(one, NVIDIA) + asked(one, SHARED) for one in here) <= kind.gpus * kind.replicas
        assert not kind.single or kind.replicas == 1 or all(asked(one, kind.resource) == 1 for one in here)
        exact = kind.gpus * 1000 - taken * (1000 // kind.replicas)
        assert again.free()[name] == exact >= leader.free()[name]  # counted as the largest that it might have been
    again.core.state.check()
    assert not again.turn() or len({kind.replicas for kind in found}) > 1


@settings(max_examples=examples(40))
@given(st.integers(1, 3), st.sampled_from((2, 3, 4, 8)), st.integers(0, 30), st.booleans())
def test_every_replica_is_given_out(gpus: int, replicas: int, pods: int, renamed: bool) -> None:
    kind = Kind(gpus, replicas, renamed)
    mirror = cluster([kind, kind], [pod(f"p{number}", Ask(1, kind.resource)) for number in range(pods)])
    leader = Leader(mirror)
    while leader.turn():
        pass
    bound = sum(bool(one.spec.node_name) for one in mirror.pods.values())
    assert bound == min(pods, 2 * gpus * replicas)
    assert sum(leader.free().values()) == 2000 * gpus - bound * (1000 // replicas)


def test_a_quota_of_gpus_counts_thousandths() -> None:
    for resource in (NVIDIA, SHARED):
        pods = [pod(f"p{number}", Ask(1, resource)) for number in range(9)]
        leader = Leader(cluster([Kind(2, 4, resource == SHARED)], pods))
        leader.core.happen(
            QueuesChanged(leader.core.now, QueueConfig((Queue("default", quotas=(Quota(nominal=1250),)),)))
        )
        while leader.turn():
            pass
        assert sum(bool(one.spec.node_name) for one in leader.mirror.pods.values()) == 5


def test_whole_gpus_go_before_replicas_unless_the_pod_selects_these() -> None:
    mirror = cluster([Kind(1, 4), Kind(1, 1)], [pod("a", Ask(1)), pod("b", Ask(1)), pod("c", Ask(1, NVIDIA, 4))])
    leader = Leader(mirror)
    while leader.turn():
        pass
    assert {name: one.spec.node_name for name, one in mirror.pods.items()} in (
        {"a": "n1", "b": "", "c": "n0"},
        {"a": "", "b": "n1", "c": "n0"},
    )


def test_where_a_pod_may_have_one_replica_it_is_told_so() -> None:
    leader = Leader(cluster([Kind(2, 4, single=True)], [pod("p", Ask(2))]))
    (workload,) = leader.workloads.members.by_key.values()
    assert workload.reason == "the nodes that it selects allow one replica of a GPU for each pod, and it asks for 2"


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        ({}, ""),
        ({REPLICAS: "1"}, ""),
        ({REPLICAS: "4"}, "replicas nvidia.com/gpu"),
        ({REPLICAS: "4", STRATEGY: "none"}, ""),
        ({REPLICAS: "4", STRATEGY: "mps"}, "one replica nvidia.com/gpu"),
        ({CLIENTS: "3"}, "one replica nvidia.com/gpu"),
    ],
)
def test_what_labels_say_of_replicas(labels: dict[str, str], word: str) -> None:
    assert sharing_of(k.Node(k.Meta("n0", labels=labels))).word == word


def test_only_numbers_that_thousandths_can_count_are_taken() -> None:
    for replicas in range(2, 1001):
        view = k.Node(k.Meta("n0", labels={REPLICAS: str(replicas)}))
        exact = [milli for milli in range(1, 501) if replicas * milli <= 1000 < (replicas + 1) * milli]
        if not exact:
            with pytest.raises(InputError, match="thousandths of a GPU can count"):
                sharing_of(view)
        else:
            assert sharing_of(view).part in exact
    assert next(n for n in range(2, 1001) if (n + 1) * (1000 // n) <= 1000) == 36


def test_replicas_of_a_node_make_whole_gpus() -> None:
    levels = Levels("", "", "", "", "test")
    seen = node_of(node("n0", Kind(2, 4)), levels)
    assert isinstance(seen, Seen) and seen.node.gpus == 2
    room: dict[str, str | int | float] = {NVIDIA: 7}
    with pytest.raises(InputError, match="a multiple of 4, the replicas of each GPU, got 7"):
        node_of(k.Node(k.Meta("n0", labels={REPLICAS: "4"}), k.NodeSpec(), k.NodeStatus(room, room)), levels)
    lost: dict[str, str | int | float] = {NVIDIA: 6}
    sick = k.Node(k.Meta("n0", labels={REPLICAS: "4"}), k.NodeSpec(), k.NodeStatus({NVIDIA: 8}, lost))
    seen = node_of(sick, levels)
    assert isinstance(seen, Seen) and (seen.node.gpus, seen.lost) == (2, 1)


class Closed(dict[str, Any]):
    """A mapping by node that may be asked for one node, and not for all."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a question about one pod looks at all nodes")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_what_a_pod_asks_for_costs_the_same_however_many_nodes_there_are() -> None:
    shares = GpuShares()
    shares.begin(list(cluster([Kind(8, 1)] * 3, []).nodes.values()))
    shares._kinds = Closed(shares._kinds)
    shares._sharing, shares._migs = Closed(shares._sharing), Closed(shares._migs)
    assert shares.demand(pod("p", Ask(2))).gpus == 2
    assert shares.used(pod("p", Ask(2), "n1")).gpus == 2
