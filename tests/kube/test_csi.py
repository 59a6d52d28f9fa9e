"""Storage of CSI drivers: volumes that are to be made never come to more than there is."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.objects import views as k
from kant.kube.objects.storage_views import StorageCapacity
from kant.kube.translate.csi import Capacities, VolumeRequest

ZONES = ("a", "b")
sizes = st.integers(1, 4)
capacities = st.lists(st.tuples(st.sampled_from(ZONES), sizes, st.none() | sizes), max_size=3)
requests = st.lists(st.tuples(st.sampled_from(ZONES), sizes), max_size=4)


def capacity(number: int, zone: str, amount: int | None, largest: int | None) -> StorageCapacity:
    meta, reach = k.Meta(f"c{number}", "default"), k.LabelSelector({"zone": zone})
    return StorageCapacity(meta, "disk", reach, amount, largest)


def request(number: int, zone: str, size: int) -> VolumeRequest:
    return VolumeRequest(("ml", f"w{number}"), "disk", size * 1000, k.Node(k.Meta(f"n-{zone}", labels={"zone": zone})))


def able(chosen: tuple[int, ...], asked: list[tuple[str, int]], there: list[tuple[str, int, int | None]]) -> bool:
    """Whether each request may come from the capacity chosen for it, by itself and all together."""
    pairs = [(one, there[at]) for one, at in zip(asked, chosen, strict=True)]
    alone = all(zone == own and size <= (most or total) for (zone, size), (own, total, most) in pairs)
    sums = [
        sum(size for (_, size), at in zip(asked, chosen, strict=True) if at == number) for number in range(len(there))
    ]
    return alone and all(found <= total for found, (_, total, _) in zip(sums, there, strict=True))


@example([("a", 2), ("a", 1)], [("a", 1, None), ("a", 2, None)])
@given(requests, capacities)
@settings(max_examples=examples(60))
def test_what_is_granted_can_be_made_together(
    asked: list[tuple[str, int]], there: list[tuple[str, int, int | None]]
) -> None:
    """And where each zone has but one capacity, whatever can be made together is granted."""
    found = Capacities(capacity(number, *one) for number, one in enumerate(there))
    all_wishes = [request(number, *one) for number, one in enumerate(asked)]
    granted = not found.shared_out(all_wishes)
    possible = any(able(chosen, asked, there) for chosen in product(range(len(there)), repeat=len(asked)))
    assert possible or not granted
    assert granted or not possible or len({zone for zone, _, _ in there}) < len(there)
    if all_wishes:
        assert granted == (not found.shared_out(all_wishes[:1], all_wishes[1:])) or not granted


def test_a_driver_that_says_only_how_large_a_volume_may_be_has_no_end_of_them() -> None:
    found = Capacities([capacity(0, "a", None, 3), StorageCapacity(k.Meta("nowhere"), "disk", None, 9)])
    assert found.shared_out([request(number, "a", 3) for number in range(50)]) == []
    assert [one.size for one in found.shared_out([request(0, "a", 4), request(1, "b", 1)])] == [4000, 1000]
