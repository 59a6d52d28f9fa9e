"""How many pods with equal claims one node may get, as a class that the core counts."""

from __future__ import annotations

import pytest
from tests.kube.test_device_capacity import mirror_of, shared_gpu

from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.reconcile import device_limits
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.device_limits import PATIENCE, DeviceLimits
from kant.kube.reconcile.dynamic_resources import DynamicResources
from kant.kube.translate.pod_rules import apart_from, named_class
from kant.kube.translate.resources import Claimed
from kant.model.rules import PodAntiAffinity, PodRules


def test_as_many_pods_as_find_devices_are_in_one_class_and_those_of_one_claim_in_one_each() -> None:
    mirror = mirror_of(["20Gi", "20Gi", "10Gi"], shared_gpu())
    own = k.PodSpec(resource_claims=(k.PodClaim("it", resource_claim_name="c0"),))
    mirror.pod("added", k.Pod(k.Meta("also", "ml", "also"), own))
    limits = DeviceLimits(mirror, DeviceAllocations(mirror).requests)
    first, second, other, also = (limits.of(mirror.pods[uid]) for uid in ("u0", "u1", "u2", "also"))
    assert first == second and first is not None and first.most == 3, "four of 20 Gi have a share of 80 Gi"
    assert other is not None and other.most == 7 and other.pod_class != first.pod_class
    assert also is not None and also.most == 3 and also.pod_class != first.pod_class, "they need one share together"
    assert named_class(first.pod_class) == "what its claims ask for"


def test_a_limit_is_of_its_state_and_nobody_waits_for_who_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of([""], d.Device("card"))
    limits = DeviceLimits(mirror, DeviceAllocations(mirror).requests)
    clock = [100.0]
    monkeypatch.setattr(device_limits, "monotonic", lambda: clock[0])
    assert limits.waited() == 0
    found = limits.of(mirror.pods["u0"])
    assert found is not None and found.most == 0
    clock[0] += 7
    assert limits.of(mirror.pods["u0"]) == found and limits.waited() == 7
    limits.begin()
    assert limits.waited() == 0
    limits.of(mirror.pods["u0"])
    mirror.pod("deleted", mirror.pods["u0"])
    clock[0] += 1
    assert limits.waited() == 0


def test_a_class_of_which_a_node_takes_so_many_is_added_to_the_rules() -> None:
    rules, apart = PodRules(("b",), (PodAntiAffinity("x"),)), PodAntiAffinity("a", most=2)
    assert apart_from(rules, None) == rules
    assert apart_from(rules, apart) == PodRules(("a", "b"), (PodAntiAffinity("x"), apart))


def test_devices_that_others_have_do_not_count_and_without_any_nobody_is_limited() -> None:
    mirror = mirror_of(["", "", ""], *(d.Device(f"card-{at}") for at in range(3)))
    known = mirror.devices.claims["ml", "c2"]
    for held, most in ((1, 1), (3, None)):
        had = tuple(d.AllocatedDevice("r", "gpu.nvidia.com", "n0", f"card-{at}") for at in range(held))
        status = d.ResourceClaimStatus(d.DeviceAllocation(d.AllocatedDevices(had)))
        mirror.devices.claim("modified", d.ResourceClaim(known.metadata, known.spec, status))
        found = DeviceLimits(mirror, DeviceAllocations(mirror).requests).of(mirror.pods["u0"])
        assert (found.most if found is not None else None) == most


def test_once_there_are_devices_the_rest_of_kant_is_answered_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of(["", ""], d.Device("card-0"), d.Device("card-1"))
    devices, clock = DynamicResources(mirror), [100.0]
    monkeypatch.setattr(device_limits, "monotonic", lambda: clock[0])
    assert devices.gpus_at(mirror.nodes["n0"]) == 2 and devices.gpus(mirror.pods["u0"]) == Claimed(1)
    for again in (devices.begin, devices.seek_elsewhere):
        devices.allocations.limits.of(mirror.pods["u0"])
        clock[0] += PATIENCE
        assert not devices.may_have_more
        clock[0] += 1
        assert devices.may_have_more
        again()
        assert not devices.may_have_more, "it is sought anew"


def test_a_pod_has_a_claim_for_resources_that_a_class_serves() -> None:
    mirror = mirror_of([], d.Device("card"))
    served = d.DeviceClass(k.Meta("cards"), d.DeviceClassSpec(extended_resource_name="example.com/card"))
    mirror.devices.classes.change("added", served)
    asks = k.Container(k.Resources({"example.com/card": 1}), name="main")
    mirror.pod("added", k.Pod(k.Meta("p", "ml", "u"), k.PodSpec(containers=(asks,))))
    assert mirror.pods["u"].spec.by_claim == ("example.com/card",)
