"""Node filters that are looked at again in place: what nodes fail is as if a state had been built now."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.objects.views import Meta, Node, Pod, PodSpec
from kant.kube.reconcile.node_filters import NodeFilters

PODS, NODES = ("p", "q", "r"), ("a", "b", "c")
Pairs = frozenset[tuple[str, str]]


class Filters(NodeFilters):
    """Each pod has a filter of its own, which the nodes in `fail` fail."""

    fail: Pairs = frozenset()

    def _names(self, pod: Pod) -> list[str]:
        return [pod.metadata.name]

    def _fails(self, name: str, node: str, pod: Pod) -> bool:
        return (name, node) in self.fail


pairs = st.frozensets(st.tuples(st.sampled_from(PODS), st.sampled_from(NODES)))


@given(pairs, pairs, st.sets(st.sampled_from(PODS)))
@settings(max_examples=examples(60))
def test_a_second_look_finds_what_a_first_one_would_and_names_the_nodes_that_differ(
    before: Pairs, now: Pairs, bound: set[str]
) -> None:
    mirror = Mirror()
    for name in NODES:
        mirror.nodes.change("added", Node(metadata=Meta(name=name)))
    pods = {name: Pod(metadata=Meta(name=name, uid=name), spec=PodSpec()) for name in PODS}
    for pod in pods.values():
        mirror.pod("added", pod)
    filters = Filters(mirror, "kant")
    filters.fail = before
    filters.begin(list(pods.values()))
    filters.outdated, filters.fail = True, now
    for name in bound:
        mirror.pod("modified", Pod(metadata=Meta(name=name, uid=name), spec=PodSpec(node_name="a")))

    def failing(fail: Pairs, waiting: set[str]) -> dict[str, set[str]]:
        found = {node: {name for name, at in fail if at == node and name in waiting} for node in NODES}
        return {node: names for node, names in found.items() if names}

    waiting = set(PODS) - bound
    assert set(filters.look_again()) == waiting and not filters.outdated
    assert filters.failing == failing(now, waiting)
    old = failing(before, set(PODS))
    assert set(filters.take_failed()) == {node for node in NODES if old.get(node) != filters.failing.get(node)}
    assert not filters.take_failed()


ROOM: dict[str, str | int | float] = {"cpu": 64, "memory": "64Gi", "pods": 99}


def gang_with_a_card(bound: int) -> Mirror:
    """Pods of a gang that has two or more, of which some are on n0; the last waits, and its claim asks for a card.

    Each of two nodes has one, and somebody has that of n0.
    """
    mirror = Mirror()
    mirror.serves_devices = True
    mirror.devices.classes.change("added", d.DeviceClass(Meta("card")))
    status = k.NodeStatus(ROOM, ROOM, conditions=(k.Condition("Ready", "True"),))
    one = d.ClaimedDevices((d.DeviceRequest("r", d.ExactRequest("r", "card")),))
    for name in ("n0", "n1"):
        mirror.nodes.change("added", Node(Meta(name), k.NodeSpec(), status))
        slice_ = d.SliceSpec("cards", d.Pool(name, 1, 1), name, devices=(d.Device("d0"),))
        mirror.devices.slices.change("added", d.ResourceSlice(Meta(name), slice_))
    held = d.DeviceAllocation(d.AllocatedDevices((d.AllocatedDevice("r", "cards", "n0", "d0"),)))
    spec = d.ResourceClaimSpec(one)
    mirror.devices.claim(
        "added", d.ResourceClaim(d.ClaimMeta("other", "ml", uid="other"), spec, d.ResourceClaimStatus(held))
    )
    mirror.devices.claim("added", d.ResourceClaim(d.ClaimMeta("own", "ml", uid="own"), spec))
    notes = {"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": "2"}
    asks = k.Container(k.Resources({"cpu": 1}))
    for number in range(bound + 1):
        claims = (k.PodClaim("it", resource_claim_name="own"),) if number == bound else ()
        place = k.PodSpec(
            node_name="n0" if number < bound else "", scheduler_name="kant", containers=(asks,), resource_claims=claims
        )
        meta = Meta(
            f"g-{number}", "ml", f"g-{number}", annotations=notes, creation_timestamp="2026-11-23T10:00:00Z",
            owner_references=(k.Owner(controller=True),),
        )  # fmt: skip
        mirror.pod("added", Pod(meta, place))
    return mirror


@pytest.mark.parametrize("bound", [1, 2])
def test_the_rest_of_a_gang_and_a_pod_that_joins_one_find_another_node_without_another_state(bound: int) -> None:
    leader = Leader(gang_with_a_card(bound))
    own, late, now = leader.workloads, f"g-{bound}", leader.core.clock()
    leader.core.clock = lambda: now
    leader.turn()
    assert leader.translation.filters.outdated and not leader.mirror.pods[late].spec.node_name
    own.settle_all(own.look_at_filters())
    own.lost_places.retry_partially_bound()
    now += 11.0  # a gang that could not grow rests
    own.settle_all(own.elastic.due())
    leader.turn()
    assert leader.mirror.pods[late].spec.node_name == "n1"
    assert not leader.translation.stale and not leader.translation.filters.outdated
