"""Pods that must be spread over a few domains are given theirs by lot: evenly, all of them, within the skew."""

from __future__ import annotations

from collections import Counter
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile import lots
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.nodes import PRODUCT
from kant.kube.translate.volumes import BIND_COMPLETED

ZONE = "topology.kubernetes.io/zone"
WHEN = "2026-11-22T10:00:00Z"


def mirror_of(rooms: list[int], pods: int, skew: int, key: str = ZONE) -> Mirror:
    """A zone for each number, which is that of its nodes; each takes one of the pods. Or a host that takes so many."""
    mirror, labels = Mirror(), {"app": "web"}
    for zone, nodes in enumerate(rooms):
        for i in range(nodes if key == ZONE else 1):
            room: dict[str, str | int | float] = {"cpu": 1 if key == ZONE else nodes, "memory": "1Gi", "pods": 9}
            meta = k.Meta(f"n{zone}-{i}", labels={key: f"z{zone}"})
            mirror.node("added", k.Node(meta, k.NodeSpec(), k.NodeStatus(room, room, (k.Condition("Ready", "True"),))))
    like = k.SpreadConstraint(
        max_skew=skew, topology_key=key, when_unsatisfiable="DoNotSchedule", label_selector=k.LabelSelector(labels)
    )
    for i in range(pods):
        asks = k.Container(k.Resources(requests={"cpu": 1}))
        spec = k.PodSpec(scheduler_name="kant", containers=(asks,), topology_spread_constraints=(like,))
        mirror.pod("added", k.Pod(k.Meta(f"p{i}", "ml", f"uid-{i}", labels=labels, creation_timestamp=WHEN), spec))
    return mirror


def spread(mirror: Mirror, zones: int) -> list[int]:
    counts = Counter(pod.spec.node_name[:2] for pod in mirror.pods.values() if pod.spec.node_name)
    return [counts[f"n{zone}"] for zone in range(zones)]


@settings(max_examples=examples(20))
@given(
    key=st.sampled_from([ZONE, HOSTNAME]),
    rooms=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    pods=st.integers(0, 20),
    skew=st.integers(1, 3),
)
def test_all_that_may_run_is_bound_within_the_skew(key: str, rooms: list[int], pods: int, skew: int) -> None:
    mirror = mirror_of(rooms, pods, skew, key)
    for _ in range(2 + len(rooms)):  # as the driver builds its state again for those who have waited
        leader = Leader(mirror)
        for _ in range(2):
            leader.turn()
            leader.workloads.transitions.count_promised()
        found = spread(mirror, len(rooms))
        assert max(found) - min(found) <= skew, found
    assert sum(found) == min(pods, sum(min(room, min(rooms) + skew) for room in rooms)), found


@pytest.mark.parametrize("key", [ZONE, HOSTNAME])
def test_one_state_is_enough_where_there_is_room(key: str) -> None:
    mirror = mirror_of([8, 8, 8], 21, 1, key)
    Leader(mirror).turn()
    assert spread(mirror, 3) == [7, 7, 7]


def keep_away(mirror: Mirror, node: str) -> None:
    """A pod on this node that must not run beside them."""
    term = k.PodTerm(k.LabelSelector({"app": "web"}), HOSTNAME)
    spec = k.PodSpec(node, "other", affinity=k.Affinity(pod_anti_affinity=k.PodAffinity((term,))))
    mirror.pod("added", k.Pod(k.Meta(f"on-{node}", "ml", f"on-{node}", creation_timestamp=WHEN), spec))


@pytest.mark.parametrize("why", ["taint", "cordoned", "volume", "neighbours"])
def test_no_lot_is_a_domain_where_the_pod_cannot_go(why: str) -> None:
    """The first zone counts for the skew, and its nodes have room; but none of them takes the pod."""
    mirror = mirror_of([3, 3], 1, 1)
    for name in [name for name in mirror.nodes if name.startswith("n0")]:
        taints = (k.Taint("team", "b", "NoSchedule"),) if why == "taint" else ()
        spec = k.NodeSpec(why == "cordoned", taints)
        mirror.node("modified", replace(mirror.nodes[name], spec=spec))
        if why == "neighbours":
            keep_away(mirror, name)
    if why == "volume":
        pod = mirror.pods["uid-0"]
        volumes = (k.Volume("data", k.VolumeClaim("data")),)
        mirror.pod("modified", replace(pod, spec=replace(pod.spec, volumes=volumes)))
        mirror.claim("added", k.Claim(k.Meta("data", "ml", annotations={BIND_COMPLETED: "yes"}), k.ClaimSpec("", "pv")))
        mirror.volume("added", k.PersistentVolume(k.Meta("pv", labels={ZONE: "z1"})))
    Leader(mirror).turn()
    assert mirror.pods["uid-0"].spec.node_name.startswith("n1")


def test_who_has_waited_in_vain_is_given_another_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of the first zone has as many pods as it may, which the draw does not look at."""
    mirror = mirror_of([1, 1], 1, 1)
    room: dict[str, str | int | float] = {"cpu": 1, "memory": "1Gi", "pods": 0}
    mirror.node(
        "modified", replace(mirror.nodes["n0-0"], status=k.NodeStatus(room, room, (k.Condition("Ready", "True"),)))
    )
    leader = Leader(mirror)
    leader.fleet.count_pods(mirror.nodes)
    leader.turn()
    assert spread(mirror, 2) == [0, 0]
    filters, now = leader.translation.filters, monotonic()
    for passed, domain in ((0, "z0"), (6, "z0"), (12, "z1"), (18, "z1"), (24, "z0")):  # states come when they must
        monkeypatch.setattr(lots, "monotonic", lambda passed=passed: now + passed)
        filters.begin(list(mirror.pods.values()))
        lot = filters.lots.of(mirror.pods["uid-0"])
        assert lot is not None and lot.values == (domain,), passed


def test_a_zone_without_the_model_that_a_pod_selects_is_none_over_which_it_is_spread() -> None:
    mirror = mirror_of([3, 3], 3, 1)
    for name, view in list(mirror.nodes.items()):
        labels = {**(view.metadata.labels or {}), PRODUCT: "A100" if name.startswith("n0") else "H100"}
        mirror.node("modified", replace(view, metadata=replace(view.metadata, labels=labels)))
    for pod in list(mirror.pods.values()):
        mirror.pod("modified", replace(pod, spec=replace(pod.spec, node_selector={PRODUCT: "H100"})))
    Leader(mirror).turn()
    assert spread(mirror, 2) == [0, 3]
