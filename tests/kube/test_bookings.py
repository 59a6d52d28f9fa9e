"""Reservations of GPUs on Kubernetes: whole nodes by the calendar, the same under the next leader, or who collides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.follow.mirror import Mirror
from kant.kube.lead.rebuilding import Rebuilding
from kant.kube.notify.status import booking_status
from kant.kube.objects.views import Meta, Unstructured
from kant.kube.reconcile.bookings import AGAIN, Bookings
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.crds import GROUP
from kant.kube.translate.reservations import BookedGpus, ReservedNodes, reservation_of
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.event import JobFinished, JobStarted, JobSubmitted
from kant.model.units import HOUR
from kant.optimize.calendar.choose import PlaceChoice
from kant.testing import make_cluster, make_job, make_profile


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def core_of(*gpus: int) -> tuple[Core, Clock]:
    clock = Clock()
    core = Core(make_cluster(*gpus, leaf=2), make_profile("fifo", "best-effort"), clock=clock)
    core.settled()
    return core, clock


def wants(name: str, gpus: int, start: int, end: int, nodes: tuple[str, ...] = (), within: str = "") -> BookedGpus:
    return BookedGpus(name, gpus, within, "", (), start, end, f"2026-01-0{1 + len(name)}T00:00:00Z", nodes)


def bookings(core: Core, *wishes: BookedGpus) -> Bookings:
    return Bookings(core, SimpleNamespace(booked=list(wishes)))  # type: ignore[arg-type]


def test_it_has_whole_nodes_and_keeps_them_under_the_next_leader() -> None:
    core, _ = core_of(4, 4, 4)
    first = bookings(core, wants("a", 6, HOUR, 2 * HOUR))
    assert first.settle() and first.places == {"a": ("n0", "n1")} and not first.settle()
    core, _ = core_of(4, 4, 4)
    again = bookings(core, wants("a", 6, HOUR, 2 * HOUR, ("n1", "n2")), wants("b", 4, HOUR, 2 * HOUR))
    assert again.settle() and again.places == {"a": ("n1", "n2"), "b": ("n0",)}
    core, _ = core_of(4, 4)
    gone = bookings(core, wants("a", 6, HOUR, 2 * HOUR, ("n1", "n2")))
    assert gone.settle() and gone.places == {"a": ("n0", "n1")}


def test_who_collides_is_said_in_the_status_and_it_is_tried_again() -> None:
    core, clock = core_of(4, 4)
    core.happen(JobSubmitted(0, make_job("x", 1, limit=HOUR)))
    found = core.scheduler.cycle(0).decisions[0]
    core.happen(JobStarted(0, "x", found.allocation))  # type: ignore[union-attr]
    both = (
        wants("a", 8, HOUR, 2 * HOUR),
        wants("bb", 4, 0, HOUR),
        wants("ccc", 8, 0, 3 * HOUR),
        wants("dddd", 99, 0, 1 + HOUR),
    )
    found = bookings(core, *both)
    assert found.settle() and found.places == {"a": ("n0", "n1"), "bb": ("n1",)}
    assert "collides on cluster with" in found.troubles["ccc"] and "at most 8" in found.troubles["dddd"]
    assert booking_status(both[2], (), core.now)["phase"] == "Collides"
    assert booking_status(both[0], ("n0", "n1"), core.now) == {
        "phase": "Pending",
        "nodes": 2,
        "nodeNames": ["n0", "n1"],
    }
    clock.now = 2 * HOUR / 1e6 + AGAIN / 1e6
    core.happen(JobFinished(core.now, "x"))
    assert found.settle() and found.places["ccc"] == ("n0", "n1") and "ccc" not in found.troubles
    assert set(core.state.bookings) == {"ccc"}


def test_a_search_that_ends_at_its_limit_names_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kant.optimize.calendar.choose.choose", lambda *_: PlaceChoice({}, {}, line="cluster"))
    found = bookings(core_of(4)[0], wants("a", 4, HOUR, 2 * HOUR))
    assert not found.settle() and found.troubles == {"a": "no GPUs were found for it within the search limit"}


def test_what_an_object_says_of_it() -> None:
    def read(status: dict[str, Any] | None = None, **spec: Any) -> Any:
        body = {"apiVersion": "scheduling.kant.dev/v1alpha1", "kind": "Reservation", "metadata": {"name": "a"}}
        parts = {"spec": msgspec.Raw(msgspec.json.encode({"start": "1970-01-01T01:00:00Z"} | spec))}
        parts["status"] = msgspec.Raw(msgspec.json.encode(status or {}))
        return reservation_of(msgspec.convert(body | parts, Unstructured))

    def wrong(**spec: Any) -> str:
        with pytest.raises(InputError) as error:
            read(**spec)
        return str(error.value)

    found = read({"nodeNames": ["n1"]}, gpus=8, within="leaf", end="1970-01-01T02:00:00Z")
    assert (found.gpus, found.within, found.start, found.end, found.nodes) == (8, "leaf", HOUR, 2 * HOUR, ("n1",))
    assert "or else the field gpus" in wrong() and "or else the field gpus" in wrong(gpus=1, nodeSelector={"a": "b"})
    assert "hbd, leaf" in wrong(gpus=8, within="rack")
    assert read({"nodeNames": 7}, gpus=8).nodes == ()


WISHES = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 5), st.integers(1, 4), st.sampled_from(("", "leaf")), st.booleans()),
    max_size=6,
)


@given(WISHES)
@settings(max_examples=examples(40), deadline=None)
def test_no_node_is_booked_twice_and_a_new_leader_agrees(wishes: list[tuple[int, int, int, str, bool]]) -> None:
    asked = [
        wants("abcdef"[: at + 1], gpus, start * HOUR, (start + length) * HOUR, ("n0",) if odd else (), within)
        for at, (gpus, start, length, within, odd) in enumerate(wishes)
    ]
    core, _ = core_of(4, 2, 4, 4)
    found = bookings(core, *asked)
    found.settle()
    core.state.check()
    sizes = {node.name: node.gpus for node in core.state.spec.nodes}
    for one in asked:
        assert (one.name in found.places) != (one.name in found.troubles)
        nodes = found.places.get(one.name, ())
        assert not nodes or sum(sizes[node] for node in nodes) >= one.gpus
    kept = [msgspec.structs.replace(one, nodes=found.places.get(one.name, ())) for one in asked]
    core, _ = core_of(4, 2, 4, 4)
    again = bookings(core, *kept)
    again.settle()
    assert {name: again.places.get(name) for name in found.places} == found.places


def test_a_reservation_that_begins_while_a_state_is_built_is_in_the_next_one() -> None:
    translation = Translation(Mirror())
    translation.nodes.reserved = [ReservedNodes("upkeep", {"row": "a"}, (), 7, 90, "")]
    rebuilding, fleet = Rebuilding(translation), SimpleNamespace(stale=False)
    rebuilding.built(5, 0.0)
    due = [rebuilding.is_due(SimpleNamespace(now=now), fleet) for now in (6, 7, 8)]  # type: ignore[arg-type]
    assert due == [False, True, True]


def test_a_state_begins_with_the_reservations_and_levels_of_the_objects() -> None:
    mirror = Mirror()
    for kind, name, spec in (
        ("topologies", "t", {"levels": [{"level": "leaf", "nodeLabel": "rack"}]}),
        ("reservations", "nodes", {"nodeSelector": {"rack": "a"}, "start": "2026-01-01T00:00:00Z"}),
        ("reservations", "gpus", {"gpus": 8, "start": "2026-01-01T00:00:00Z"}),
        ("reservations", "wrong", {"gpus": 8, "nodeSelector": {"rack": "a"}}),
    ):  # fmt: skip
        item = Unstructured(f"{GROUP}/v1alpha1", "", Meta(name), msgspec.Raw(msgspec.json.encode(spec)))
        mirror.kind(kind).change("added", item)
    translation = Translation(mirror)
    translation.begin(0)
    assert [one.name for one in translation.nodes.reserved] == ["nodes"]
    assert [one.name for one in translation.booked] == ["gpus"]
    assert translation.nodes.levels.leaf == "rack"
    assert list(translation.complaints) == ["Reservation wrong"]
