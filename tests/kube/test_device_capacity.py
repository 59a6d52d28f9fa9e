"""Devices that claims share by their capacity, against every possible choice; and what parts of GPUs are worth."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.device_allocator import Free, Task, allocate
from kant.kube.translate.device_capacity import NANO, Limit, billionths, limits_of, part_of, taken_of, text_of
from kant.kube.translate.device_claims import Asked, Want
from kant.kube.translate.device_results import results_of
from kant.kube.translate.devices import Inventory
from kant.kube.translate.resources import Claimed, with_gpus
from kant.model.job import Demand

NODE = k.Node(k.Meta("n0"))


@given(
    value=st.integers(1, 12),
    asked=st.integers(0, 14),
    values=st.lists(st.integers(1, 12), max_size=4, unique=True).map(sorted),
    bounds=st.tuples(st.integers(0, 6), st.integers(6, 12), st.integers(0, 4)) | st.none(),
)
@example(value=8, asked=8, values=[], bounds=(0, 8, 0))
@example(value=8, asked=7, values=[], bounds=(2, 8, 3))
def test_a_request_takes_the_least_that_the_device_allows(value, asked, values, bounds) -> None:  # type: ignore[no-untyped-def]
    limit, allowed = Limit(value), set(range(value + 1))
    if values:
        limit, allowed = Limit(value, values=tuple(values)), set(values)
    elif bounds:
        least, most, step = bounds
        limit, allowed = Limit(value, -1, (), least, most, step), set(range(least, most + 1, step or 1))
    least = min((one for one in allowed if one >= asked), default=value + 1)
    assert taken_of({"c": asked}, {"c": limit}) == ({"c": least} if least <= value else None)


def test_what_is_not_asked_for_is_taken_by_default_and_what_is_not_there_cannot_be_had() -> None:
    limits = {"memory": Limit(8), "cores": Limit(100, 10)}
    assert taken_of({}, limits) == {"memory": 8, "cores": 10}
    assert taken_of({"memory": 2}, limits) == {"memory": 2, "cores": 10}
    assert taken_of({"memory": 2, "links": 1}, limits) is None
    assert part_of({"memory": 2, "cores": 30}, limits) == 300 and part_of({}, {}) == 0
    assert part_of({"memory": 1}, {"memory": Limit(3)}) == 334, "three of a third never fit beside each other"


def test_amounts_are_exact() -> None:
    said = [text_of(billionths(one, "x")) for one in ("10Gi", "1537", 1000, "500m", 0, "1n")]
    assert said == ["10Gi", "1537", "1000", "500000000n", "0", "1n"]
    policy = d.RequestPolicy("1Gi", (), d.RequestRange("1Gi", "8Gi", "512Mi"))
    device = d.Device("x", capacity={"m": d.AmountOf("8Gi", policy)})
    gib = NANO << 30
    assert limits_of(device) == {"m": Limit(8 * gib, gib, (), gib, 8 * gib, gib // 2)}


Drawn = tuple[bool, int, int]
"""A device: whether it is shared, its capacity, and how much of the counter it takes."""


def pool_of(devices: list[Drawn], counter: int) -> Inventory:
    found = tuple(
        d.Device(
            f"d{at}", capacity={"c": d.AmountOf(capacity)}, allow_multiple_allocations=shared,
            consumes_counters=(d.CounterSet(counter_set="s", counters={"x": d.AmountOf(takes)}),) if takes else (),
        )
        for at, (shared, capacity, takes) in enumerate(devices)
    )  # fmt: skip
    pool = d.Pool("n0", 1, 2)
    shared = (d.CounterSet("s", counters={"x": d.AmountOf(counter)}),)
    return Inventory([
        d.ResourceSlice(k.Meta("a"), d.SliceSpec("d", pool, "n0", devices=found)),
        d.ResourceSlice(k.Meta("b"), d.SliceSpec("d", pool, "n0", shared_counters=shared)),
    ])  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(
    devices=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=3),
    counter=st.integers(0, 4),
    claims=st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2)), min_size=1, max_size=2), max_size=3),
    others=st.lists(st.integers(0, 2), min_size=3, max_size=3),
)
@example(devices=[(True, 2, 0)], counter=0, claims=[[(1, 1), (1, 1)]], others=[0] * 3)  # one claim, two shares
@example(devices=[(True, 4, 2)], counter=2, claims=[[(1, 1)], [(1, 1)]], others=[0] * 3)  # counters are taken once
@example(devices=[(True, 4, 2)], counter=2, claims=[[(1, 1)]], others=[1] * 3)  # and by who was there first
@example(devices=[(False, 1, 0)], counter=0, claims=[[(2, 1)]], others=[0] * 3)  # too small, though had alone
@example(devices=[(True, 2, 0), (True, 4, 0)], counter=0, claims=[[(2, 1), (3, 1)]], others=[0] * 3)  # not alike
@example(devices=[(True, 2, 0), (True, 1, 0)], counter=0, claims=[[(1, 1)], [(2, 1)]], others=[0] * 3)  # given back
@example(devices=[(True, 2, 0)] * 2, counter=0, claims=[[(1, 1)], [(2, 1)]], others=[0, 1, 0])  # alike but for others
@example(devices=[(False, 3, 0), (False, 1, 0)], counter=0, claims=[[(1, 1)], [(3, 1)]], others=[0] * 3)  # of two sizes
@example(devices=[(True, 4, 2), (False, 1, 1)], counter=3, claims=[[(1, 1)], [(1, 1)], [(1, 2)]], others=[0] * 3)
def test_shares_are_found_exactly_if_there_are_some(
    devices: list[Drawn], counter: int, claims: list[list[tuple[int, int]]], others: list[int]
) -> None:
    """`claims` have requests of (amount, 0 for none said; how many devices), `others` so much of what is shared."""
    inventory = pool_of(devices, counter)
    had = {at: amount for at, amount in enumerate(others[: len(devices)]) if devices[at][0] and amount}
    tasks = [
        Task(Asked(tuple((Want(f"r{at}", "c", number, capacity=(("c", ask * NANO),) if ask else ()),)
                         for at, (ask, number) in enumerate(own))), inventory.at(NODE))
        for own in claims
    ]  # fmt: skip
    held = sum(devices[at][2] for at in had)
    free = Free(
        lambda one: int(one[2][1:]) not in had,
        lambda _: (counter - held) * NANO,
        lambda *_: True,
        lambda one: {"c": had.get(int(one[2][1:]), 0) * NANO},
    )
    answer = allocate(tasks, free)

    def holds(way: list[tuple[int, int]]) -> bool:
        """Whether (device, amount) of all claims fit together."""
        spent, used = Counter(had), {at for at, _ in way}
        for at, amount in way:
            spent[at] += amount
        new = {at for at in used if devices[at][2] and at not in had}  # they need counters that nobody has for them
        alone = [at for at, _ in way if not devices[at][0]]
        return (
            len(alone) == len(set(alone))
            and all(spent[at] <= devices[at][1] for at in used)
            and (not new or sum(devices[at][2] for at in used | had.keys()) <= counter)
        )

    asked = [one for own in claims for one in own]
    ways = product(*(combinations(range(len(devices)), number) for _, number in asked))
    able = any(
        holds([(at, ask or devices[at][1]) for some, (ask, _) in zip(way, asked, strict=True) for at in some])
        for way in ways
    )
    assert (answer is not None) == able
    if answer is not None:
        got = [
            (int(one.device.id[2][1:]), dict(one.want.capacity).get("c", 0) // NANO) for own in answer for one in own
        ]
        assert holds([(at, ask or devices[at][1]) for at, ask in got])


# --- shares of a GPU between claims, and what they count for ---------------------------------------------------------


def mirror_of(asks: list[str], *devices: d.Device, counters: tuple[d.CounterSet, ...] = ()) -> Mirror:
    """A node with these devices, and a pod for each claim that asks for so much memory ("": for a device)."""
    mirror = Mirror()
    mirror.serves_devices = True
    mirror.devices.classes.change("added", d.DeviceClass(k.Meta("gpu.nvidia.com")))
    mirror.nodes.change("added", NODE)
    pool = d.Pool("n0", 1, 2)
    for name, spec in (
        ("a", d.SliceSpec("gpu.nvidia.com", pool, "n0", devices=devices)),
        ("b", d.SliceSpec("gpu.nvidia.com", pool, "n0", shared_counters=counters)),
    ):
        mirror.devices.slices.change("added", d.ResourceSlice(k.Meta(name), spec))
    for at, ask in enumerate(asks):
        capacity = d.CapacityRequests({"memory": ask}) if ask else None
        request = d.DeviceRequest("r", d.ExactRequest("r", "gpu.nvidia.com", capacity=capacity))
        claim = d.ResourceClaim(k.Meta(f"c{at}", "ml", uid=f"c{at}"), d.ResourceClaimSpec(d.ClaimedDevices((request,))))
        mirror.devices.claim("added", claim)
        pod = k.PodSpec(resource_claims=(k.PodClaim("it", resource_claim_name=f"c{at}"),))
        mirror.pod("added", k.Pod(k.Meta(f"p{at}", "ml", f"u{at}"), pod))
    return mirror


def shared_gpu(name: str = "gpu-0") -> d.Device:
    return d.Device(name, capacity={"memory": d.AmountOf("80Gi")}, allow_multiple_allocations=True)


def test_shares_are_promised_until_the_device_is_full_and_come_back() -> None:
    mirror = mirror_of(["40Gi", "30Gi", "20Gi", "10Gi", "60Gi"], shared_gpu())
    allocations = DeviceAllocations(mirror)
    workloads = [Workload(f"w{at}", None) for at in range(4)]

    def take(at: int) -> bool:
        pod = mirror.pods[f"u{at}"]
        if allocations.why_not([("n0", pod)]):
            return False
        workloads[at].phase, workloads[at].slots = Phase.PLACED, [Slot("n0", Demand(), pod.metadata.uid)]
        allocations.expect(workloads[at])
        assert not allocations.promise([("n0", pod)])
        return True

    assert [take(0), take(1), take(2), take(3)] == [True, True, False, True]
    plan = allocations.plans["ml", "c1"]
    claim = mirror.devices.claims["ml", "c1"]
    (result,) = results_of(claim, plan.grants, mirror.devices.classes, plan.node, "")["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": "30Gi"} and len(result["shareID"]) == 36
    written = d.AllocatedDevice("r", "gpu.nvidia.com", "n0", "gpu-0", consumed_capacity=result["consumedCapacity"])
    status = d.ResourceClaimStatus(d.DeviceAllocation(d.AllocatedDevices((written,))))
    mirror.devices.claim("modified", d.ResourceClaim(claim.metadata, claim.spec, status))
    assert allocations.why_not([("n0", mirror.pods["u2"])]), "what is planned and written counts once"
    assert not allocations.is_beyond(plan.grants, [("ml", "c1")]) and not allocations.is_beyond(plan.grants, [])
    both = [*allocations.plans["ml", "c0"].grants, *plan.grants]
    assert allocations.is_beyond(both, []) and not allocations.is_beyond(both, [("ml", "c1")])
    workloads[0].phase, workloads[0].slots = Phase.WAITING, []
    assert take(2), "40 of 80 Gi are left"
    most = [allocations.requests.most_at_one_node(mirror.pods[f"u{at}"]) for at in (0, 3, 4)]
    assert most == [2, 8, 1], "of 80 Gi"
    allocations.begin()
    assert allocations.why_not([("n0", mirror.pods["u4"])]) and not allocations.why_not([("n0", mirror.pods["u0"])])


@pytest.mark.parametrize(
    ("asks", "worth"), [("20Gi", 250), ("1", 1), ("", 1000)], ids=["a quarter", "a byte", "all of it"]
)
def test_a_share_of_a_gpu_counts_as_its_part_of_the_capacity(asks: str, worth: int) -> None:
    mirror = mirror_of([asks], shared_gpu())
    requests = DeviceAllocations(mirror).requests
    pod = mirror.pods["u0"]
    assert requests.gpus(pod) == Claimed(0, worth) and not requests.uncounted(pod)
    assert requests.gpus_at(NODE) == 0, "it is no GPU of its node, which pods have alone"


def partition(name: str, memory: str, profile: str = "") -> d.Device:
    more = {"profile": d.DeviceAttribute(string_value=profile)} if profile else {}
    takes = (d.CounterSet(counter_set="gpu-0", counters={"memory": d.AmountOf(memory)}),) if memory else ()
    return d.Device(name, {"type": d.DeviceAttribute(string_value="mig"), **more}, consumes_counters=takes)


COUNTERS = (d.CounterSet("gpu-0", counters={"memory": d.AmountOf("40Gi")}),)


@pytest.mark.parametrize(
    ("devices", "worth"),
    [
        ([partition("a", "4864Mi", "1g.5gb")], 125),
        ([partition("a", "19968Mi", "3g.20gb"), partition("b", "4864Mi", "1g.5gb")], 500),
        ([partition("a", "10Gi")], 250),
        ([partition("a", "900Mi")], 22),
        ([partition("a", "", "1g.5gb")], 125),
        ([partition("a", "")], None),
        ([partition("a", "10Gi"), d.Device("whole")], None),
        ([partition("a", "10Gi"), partition("b", "")], None),
    ],
    ids=[
        "MIG",
        "the dearest",
        "by memory",
        "rounded up",
        "by its profile alone",
        "unknown",
        "a part or a whole one",
        "one unknown",
    ],
)
def test_a_partition_counts_as_what_it_takes_of_the_memory_of_its_gpu(
    devices: list[d.Device], worth: int | None
) -> None:
    mirror = mirror_of([""], *devices, counters=COUNTERS)
    requests = DeviceAllocations(mirror).requests
    pod = mirror.pods["u0"]
    assert requests.gpus(pod) == Claimed(0, worth or 0)
    assert requests.uncounted(pod) == ("" if worth else "c0")


def test_what_is_allocated_counts_as_what_it_is_and_parts_are_not_had_beside_whole_gpus() -> None:
    cut = [partition("large", "20Gi"), partition("small", "10Gi"), partition("unknown", "")]
    mirror = mirror_of(["", ""], *cut, d.Device("whole"), counters=COUNTERS)
    requests = DeviceAllocations(mirror).requests

    def allocate_to(claim: str, *names: str) -> None:
        held = tuple(d.AllocatedDevice("r", "gpu.nvidia.com", "n0", name) for name in names)
        known = mirror.devices.claims["ml", claim]
        status = d.ResourceClaimStatus(d.DeviceAllocation(d.AllocatedDevices(held)))
        mirror.devices.claim("modified", d.ResourceClaim(known.metadata, known.spec, status))

    allocate_to("c0", "small", "large")
    pod = mirror.pods["u0"]
    assert requests.gpus(pod) == Claimed(0, 750) and not requests.uncounted(pod)
    allocate_to("c0", "small", "whole")
    assert requests.gpus(pod) == Claimed(1, 250) and requests.uncounted(pod) == "c0"
    allocate_to("c0", "small", "unknown")
    assert requests.gpus(pod) == Claimed() and requests.uncounted(pod) == "c0"


def test_alternatives_that_count_otherwise_cannot_be_counted() -> None:
    mirror = mirror_of([""], partition("a", "10Gi"), counters=COUNTERS)
    known, of = mirror.devices.claims["ml", "c0"], "gpu.nvidia.com"
    either = d.DeviceRequest("r", first_available=(d.ExactRequest("x", of), d.ExactRequest("y", of, admin_access=True)))
    spec = d.ResourceClaimSpec(d.ClaimedDevices((either,)))
    mirror.devices.claim("modified", d.ResourceClaim(known.metadata, spec))
    assert DeviceAllocations(mirror).requests.uncounted(mirror.pods["u0"]) == "c0"


def test_parts_that_are_claimed_are_worth_something_and_take_no_gpu_of_the_model() -> None:
    plain, whole, mig = Demand(0, cpu=1000), Demand(2, cpu=1000), Demand(0, 125, 1000, mig="nvidia.com/mig-1g.5gb")
    found = with_gpus(plain, Claimed(0, 250))
    assert (found.gpus, found.charged_milli, found.cpu) == (0, 250, 1000)
    assert with_gpus(mig, Claimed(0, 250)).charged_milli == 375
    assert with_gpus(whole, Claimed(1, 0)).gpus == 3 and with_gpus(whole, Claimed(0, 250)) == whole
