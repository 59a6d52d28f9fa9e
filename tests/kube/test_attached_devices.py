"""Devices that are attached before pods are bound: which are chosen, what is written of them, what they wait for."""

from __future__ import annotations

import pytest

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.attached_devices import PATIENCE, unattached
from kant.kube.translate.device_results import results_of
from kant.model.job import Demand

CABLED = d.Device("far", binds_to_node=True, binding_conditions=("up", "safe"), binding_failure_conditions=("bad",))


def mirror_of(local: int) -> Mirror:
    """Two nodes, of which n0 has so many devices of its own, two that may be attached to either, and three pods."""
    mirror = Mirror()
    mirror.serves_devices = True
    mirror.devices.classes.change("added", d.DeviceClass(k.Meta("card")))
    for node in ("n0", "n1"):
        mirror.nodes.change("added", k.Node(k.Meta(node)))
    near = tuple(d.Device(f"near-{at}") for at in range(local))
    for spec in (
        d.SliceSpec("cards", d.Pool("z", 1, 1), "n0", devices=near),
        d.SliceSpec("cards", d.Pool("a", 1, 1), all_nodes=True, devices=(CABLED,)),
    ):
        mirror.devices.slices.change("added", d.ResourceSlice(k.Meta(spec.pool.name), spec))
    for name, uids in {"own": ("u0",), "shared": ("u1", "u2")}.items():
        request = d.DeviceRequest("r", d.ExactRequest("r", "card"))
        spec = d.ResourceClaimSpec(d.ClaimedDevices((request,)))
        mirror.devices.claim("added", d.ResourceClaim(d.ClaimMeta(name, "ml", uid=name), spec))
        for uid in uids:
            pod = k.PodSpec(resource_claims=(k.PodClaim("it", resource_claim_name=name),))
            mirror.pod("added", k.Pod(k.Meta(f"p-{uid}", "ml", uid), pod))
    return mirror


def promise(allocations: DeviceAllocations, uid: str, node: str) -> str:
    workload = Workload(uid, phase=Phase.PLACED, slots=[Slot(node, Demand(), uid)])
    allocations.expect(workload)
    return allocations.promise([(node, allocations.mirror.pods[uid])])


def test_devices_that_are_there_go_first_and_others_are_for_the_node_that_was_chosen() -> None:
    mirror = mirror_of(1)
    allocations = DeviceAllocations(mirror)
    assert not promise(allocations, "u0", "n0")
    assert [one.device.view.name for one in allocations.plans["ml", "own"].grants] == ["near-0"]
    assert not promise(allocations, "u1", "n1")
    plan, claim = allocations.plans["ml", "shared"], mirror.devices.claims["ml", "shared"]
    found = results_of(claim, plan.grants, mirror.devices.classes, plan.node, "2026-01-01T00:00:00Z")
    (one,) = found["devices"]["results"]
    assert one["device"] == "far" and one["bindingConditions"] == ("up", "safe")
    assert one["bindingFailureConditions"] == ("bad",) and found["allocationTimestamp"] == "2026-01-01T00:00:00Z"
    assert found["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ("n1",)
    assert promise(allocations, "u2", "n0") == "another pod is about to use its claim shared on other nodes"
    assert not promise(allocations, "u2", "n1")
    near = results_of(claim, allocations.plans["ml", "own"].grants, mirror.devices.classes, "n0", "now")
    assert "allocationTimestamp" not in near and "bindingConditions" not in near["devices"]["results"][0]


def test_no_device_is_attached_to_two_nodes() -> None:
    allocations = DeviceAllocations(mirror_of(0))
    pods = [(node, allocations.mirror.pods[uid]) for node, uid in (("n0", "u1"), ("n1", "u2"))]
    assert "do not have the free devices for its claim shared" in allocations.why_not(pods)
    assert not allocations.why_not([("n1", pod) for _, pod in pods])


SINCE = 1_767_225_600.0
LACKS = "device far of its claim c is not {} yet"
WAITS = {
    "nothing said": ((), 0, LACKS.format("up, safe"), False),
    "one of two": ({"up": "True", "safe": "False"}, 0, LACKS.format("safe"), False),
    "all": ({"up": "True", "safe": "True"}, PATIENCE + 9, "", False),
    "one has failed": ({"up": "True", "bad": "True"}, 0, "device far of its claim c cannot be attached: cut", True),
    "all, and it has failed": ({"up": "True", "safe": "True", "bad": "True"}, 0, "cannot be attached: cut", True),
    "it has not failed": ({"up": "True", "safe": "True", "bad": "False"}, 0, "", False),
    "just in time": ((), PATIENCE, LACKS.format("up, safe"), False),
    "late": ({"up": "True"}, PATIENCE + 1, LACKS.format("safe") + ", after 600 s", True),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_a_claim_waits_for(case: str) -> None:
    said, passed, why, lost = WAITS[case]
    one = d.AllocatedDevice(
        "r", "cards", "a", "far", binding_conditions=("up", "safe"), binding_failure_conditions=("bad",)
    )
    conditions = tuple(k.Condition(kind, status, message="cut") for kind, status in dict(said).items())
    status = (d.DeviceStatus("cards", "a", "far", conditions=conditions), d.DeviceStatus("cards", "a", "other"))
    allocation = d.DeviceAllocation(
        d.AllocatedDevices((d.AllocatedDevice("r", "cards", "z", "near"), one)),
        allocation_timestamp="2026-01-01T00:00:00Z",
    )
    claim = d.ResourceClaim(d.ClaimMeta("c", "ml"), status=d.ResourceClaimStatus(allocation, devices=status))
    found = unattached(claim, SINCE + passed)
    assert found is None if not why else found is not None and why in found.why and found.lost == lost
    assert unattached(d.ResourceClaim(), SINCE) is None
