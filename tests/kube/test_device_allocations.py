"""Which devices are promised to whom, from one decision to the next, and from one state to the next."""

from __future__ import annotations

from typing import cast
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.kube.connect.client import ApiClient
from kant.kube.follow.informers import Informers
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.dynamic_resources import DynamicResources
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload
from kant.model.job import Demand

NODES, PODS = 2, 4


def mirror_of(devices: int) -> Mirror:
    """Two nodes with so many devices each, and pods: the last two share a claim, each other one has its own."""
    mirror = Mirror()
    mirror.serves_devices = True
    mirror.devices.classes.change("added", d.DeviceClass(k.Meta("card")))
    for node in (f"n{at}" for at in range(NODES)):
        mirror.nodes.change("added", k.Node(k.Meta(node)))
        found = tuple(d.Device(f"d{at}") for at in range(devices))
        mirror.devices.slices.change(
            "added", d.ResourceSlice(k.Meta(node), d.SliceSpec("cards", d.Pool(node, 1, 1), node, devices=found))
        )
    for at in range(PODS):
        name = f"c{min(at, PODS - 2)}"
        one = d.ExactRequest("r", "card")
        spec = d.ResourceClaimSpec(d.ClaimedDevices((d.DeviceRequest("r", one),)))
        mirror.devices.claim("added", d.ResourceClaim(k.Meta(name, "ml", uid=name), spec))
        own = k.PodClaim("it", resource_claim_name=name)
        mirror.pod("added", k.Pod(k.Meta(f"p{at}", "ml", f"u{at}"), k.PodSpec(resource_claims=(own,))))
    return mirror


@settings(max_examples=examples(60))
@given(
    devices=st.integers(0, 2),
    steps=st.lists(
        st.tuples(st.integers(0, PODS - 1), st.sampled_from(["n0", "n1", "gives up"] * 2 + ["state"])), max_size=25
    ),
)
@example(devices=1, steps=[(0, "n0"), (0, "gives up"), (0, "n1"), (1, "n0")])
@example(devices=1, steps=[(0, "n0"), (0, "state"), (1, "n0")])
def test_a_device_is_promised_once_and_wherever_one_is_left(devices: int, steps: list[tuple[int, str]]) -> None:
    """Beside a book of who has a place where: a pod gets one where its claim is, or a device is left."""
    mirror = mirror_of(devices)
    allocations, places = DeviceAllocations(mirror), dict[int, str]()
    workloads = {at: Workload(f"w{at}", None) for at in range(PODS)}
    for at, what in steps:
        if what == "state":
            allocations.begin()
            places.clear()
        elif what == "gives up":
            workloads[at].phase, workloads[at].slots = Phase.WAITING, []
            places.pop(at, None)
        elif at not in places:
            claims = {min(pod, PODS - 2): node for pod, node in places.items()}
            mine = claims.get(min(at, PODS - 2))
            may = mine == what if mine else list(claims.values()).count(what) < devices
            pod = mirror.pods[f"u{at}"]
            assert (not allocations.why_not([(what, pod)])) == may, (at, what, places)
            if may:
                workloads[at].phase, workloads[at].slots = Phase.PLACED, [Slot(what, Demand(), pod.metadata.uid)]
                allocations.expect(workloads[at])
                assert not allocations.promise([(what, pod)])
                places[at] = what
        standing = [allocations.plans[key] for key in {("ml", f"c{min(pod, PODS - 2)}") for pod in places}]
        promised = [one.device.id for plan in standing for one in plan.grants]
        assert len(promised) == len(set(promised)) == len(standing)


def test_in_a_new_state_no_pod_is_on_its_way_by_its_place_in_the_old_one() -> None:
    """Else its devices stayed promised though it waits again, and nobody got them."""
    allocations = DeviceAllocations(Mirror())
    workload = Workload("w", None)
    workload.phase, workload.slots = Phase.PLACED, [Slot("n0", Demand(), "uid")]
    allocations.expect(workload)
    assert allocations.is_placed("uid")
    allocations.begin()
    assert not allocations.is_placed("uid")
    allocations.expect(workload)
    assert allocations.is_placed("uid")


def test_a_shared_claim_is_sought_at_its_next_home_but_not_while_its_devices_are_planned() -> None:
    mirror = mirror_of(1)
    for node in ("n0", "n1"):
        mirror.nodes.change("modified", k.Node(k.Meta(node, labels={"link": node})))
        term = k.SelectorTerm((k.Requirement("link", "In", (node,)),))
        spec = d.SliceSpec(
            "cards", d.Pool(node, 2, 1), node_selector=k.NodeSelector((term,)), devices=(d.Device("channel"),)
        )
        mirror.devices.slices.change("modified", d.ResourceSlice(k.Meta(node), spec))
    allocations, pod, workload = DeviceAllocations(mirror), mirror.pods["u3"], Workload("w", None)

    def home() -> str:
        (((term,),),) = [allocations.requests.demands(pod)]
        return term.requirements[0].values[0]

    seen = []
    for _ in range(3):
        seen.append(home())
        allocations.seek_elsewhere()
    assert seen in (["n0", "n1", "n0"], ["n1", "n0", "n1"])
    workload.phase, workload.slots = Phase.PLACED, [Slot(seen[1], Demand(), "u3")]
    assert home() == seen[1] and allocations.requests.has_other_homes
    allocations.expect(workload)
    assert not allocations.promise([(seen[1], pod)])
    mirror.devices.holders["cards", seen[0], "channel"] = {("ml", "c0"): None}  # so that it would come last
    allocations.seek_elsewhere()
    assert home() == seen[1]
    mirror.devices.holders.clear()
    workload.phase = Phase.WAITING
    allocations.seek_elsewhere()
    assert home() == seen[0]


def test_shared_claims_are_sought_where_others_leave_enough_devices() -> None:
    """All had the same first home, and most waited for their next."""
    mirror = mirror_of(0)
    for node, count in (("n0", 4), ("n1", 2)):
        term = k.SelectorTerm((k.Requirement("link", "In", (node,)),))
        found = tuple(d.Device(f"d{at}") for at in range(count))
        spec = d.SliceSpec("cards", d.Pool(node, 2, 1), node_selector=k.NodeSelector((term,)), devices=found)
        mirror.devices.slices.change("modified", d.ResourceSlice(k.Meta(node), spec))
    first = d.ResourceClaim(k.Meta("c0", "ml", uid="c0"), d.ResourceClaimSpec(
        d.ClaimedDevices((d.DeviceRequest("r", d.ExactRequest("r", "card", count=3)),))
    ))  # fmt: skip
    mirror.devices.claim("modified", first)
    for name in ("c0", "c1"):
        mirror.devices.users["ml", name]["u9"] = None
    requests = DeviceAllocations(mirror).requests

    def home(uid: str) -> str:
        (((term,),),) = [requests.demands(mirror.pods[uid])]
        return term.requirements[0].values[0]

    assert [home("u0"), home("u3")] == ["n0", "n1"]
    given = tuple(d.AllocatedDevice("r", "cards", "n0", f"d{at}") for at in range(3))
    status = d.ResourceClaimStatus(d.DeviceAllocation(d.AllocatedDevices(given)))
    mirror.devices.claim("modified", replace(first, status=status))
    with patch.object(requests, "_requests", wraps=requests._requests) as asked:
        assert home("u1") == "n0", "one is left at each: what a claim has it does not seek as well"
    assert asked.call_count == 2, "other claims are not looked at"


def test_what_keeps_a_pod_from_a_claim_that_another_is_about_to_have_keeps_no_other_claim_from_a_node() -> None:
    """Five pods a claim, 60 claims: nodes that had free devices were ruled out for all claims alike."""
    mirror = mirror_of(1)
    filters, (other, first, second) = NodeFilters(mirror, "kant"), (mirror.pods[uid] for uid in ("u0", "u2", "u3"))
    mirror.devices.touched.clear()
    workload = Workload("w", None)
    workload.phase, workload.slots = Phase.PLACED, [Slot("n0", Demand(), "u2")]
    assert not filters.check([("n0", first)])
    filters.devices.allocations.expect(workload)
    assert not filters.devices.allocations.promise([("n0", first)])
    assert not filters.devices.allocations.are_awaited([("n0", first)]) and filters.devices.allocations.are_awaited(
        [("n1", second)]
    )
    assert list(mirror.devices.touched) == [("ml", "c2")], "the second pod waits for its claim from now on"
    assert "about to use its claim c2 on other nodes" in filters.check([("n1", second)])
    assert not filters.check([("n1", other)]) and not filters.is_excluded([("n1", other)])
    assert "does not have the free devices" in filters.check([("n0", other)]) and filters.is_excluded([("n0", other)])
    assert not filters.check([("n0", second)]), "its claim has a device there"
    mirror.devices.touched.clear()
    assert not filters.devices.allocations.promise([("n0", second)]) and not filters.devices.allocations.promise(
        [("n1", other)]
    )
    assert not mirror.devices.touched, "nobody else has these claims"
    filters.begin([second, other])
    assert list(filters.failing) == ["n0"]


def test_nodes_are_looked_at_again_for_a_pod_whose_claim_no_other_is_about_to_have() -> None:
    mirror = mirror_of(1)
    filters, (other, first, second) = NodeFilters(mirror, "kant"), (mirror.pods[uid] for uid in ("u0", "u2", "u3"))
    for node in ("n0", "n1"):
        mirror.devices.holders["cards", node, "d0"] = {("ml", "held"): None}
    assert filters.check([("n0", other)])
    filters.begin([second, other])
    assert set(filters.failing) == {"n0", "n1"} and not filters.improved(["n1"])
    mirror.devices.holders.clear()
    workload = Workload("w", None)
    workload.phase, workload.slots = Phase.PLACED, [Slot("n0", Demand(), "u2")]
    filters.devices.allocations.expect(workload)
    assert not filters.devices.allocations.promise([("n0", first)])
    assert filters.improved(["n1"]) and not filters.improved(["n0"])


def test_devices_are_followed_from_the_first_object_on_and_a_pod_with_a_claim_is_one() -> None:
    mirror, other = Mirror(), Mirror()
    informers = Informers(cast(ApiClient, None), mirror, lambda: None)
    for one in informers.devices:
        one.on_replace([])
    assert not mirror.has_devices
    assert not DynamicResources(mirror).are_made(replace(pod_with("c"), metadata=k.Meta("p")))
    _, slices, _ = informers.devices
    slices.on_replace([d.ResourceSlice(k.Meta("n0"))])
    assert mirror.has_devices and list(mirror.devices.slices) == ["n0"]
    slices.on_replace([])
    assert not mirror.devices.slices
    views = [one.later() for one in informers.devices if one.later is not None]
    assert views == [d.DeviceClass, d.ResourceSlice, d.ResourceClaim]
    other.pod("added", k.Pod(k.Meta("p0", "ml", "u0")))
    assert not other.has_devices
    other.pod("added", pod_with("c"))
    assert other.has_devices and other.devices.users == {("ml", "c"): {"u1": None}}


def pod_with(claim: str) -> k.Pod:
    own = k.PodClaim("it", resource_claim_name=claim)
    return k.Pod(k.Meta("p1", "ml", "u1"), k.PodSpec(resource_claims=(own,)))
