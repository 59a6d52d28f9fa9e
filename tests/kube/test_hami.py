"""Parts of GPUs by HAMi: no device gives out more than it has, whoever counts; and what its device plugin is handed."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.kube.leading import Leader

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.slots import Slot
from kant.kube.translate import hami
from kant.kube.translate.hami import ALLOCATED, CORES, MEMORY, NODE, PERCENT, TO_ALLOCATE
from kant.kube.translate.hami_devices import NVIDIA, REGISTER, registered
from kant.kube.translate.levels import Levels
from kant.kube.translate.nodes import Seen, node_of
from kant.model.errors import InputError

MADE = "2026-01-31T12:00:00Z"
READY = (k.Condition("Ready", "True"),)


class Card(NamedTuple):
    memory: int = 24_576
    slots: int = 10
    cores: int = 100


class Ask(NamedTuple):
    """What each GPU container of a pod asks for."""

    gpus: int = 1
    memory: int = 0
    percent: int = 0
    cores: int = 0


def text(node: str, cards: list[Card], sick: tuple[int, ...] = ()) -> str:
    """What the plugin registers, as in docs/develop/protocol.md."""
    return "".join(
        f"GPU-{node}-{n},{one.slots},{one.memory},{one.cores},NVIDIA-A10,0,{str(n not in sick).lower()},{n},hami-core:"
        for n, one in enumerate(cards)
    )


def node(name: str, cards: list[Card], sick: tuple[int, ...] = ()) -> k.Node:
    replicas = sum(one.slots for one in cards)
    room: dict[str, str | int | float] = {"cpu": 64, "memory": "64Gi", NVIDIA: replicas}
    return k.Node(
        k.Meta(name, annotations={REGISTER: text(name, cards, sick)}), k.NodeSpec(), k.NodeStatus(room, room, READY)
    )


def pod(name: str, ask: Ask, containers: int = 1, before: int = 0, idle: int = 0) -> k.Pod:
    """`containers` that ask alike, `before` init containers and `idle` containers before them that ask for nothing."""
    words = zip((NVIDIA, MEMORY, PERCENT, CORES), ask, strict=True)
    limits: dict[str, str | int | float] = {key: amount for key, amount in words if amount}
    asking = k.Container(k.Resources(limits, limits))
    spec = k.PodSpec(
        scheduler_name="kant",
        containers=(*(k.Container() for _ in range(idle)), *(asking for _ in range(containers))),
        init_containers=tuple(k.Container() for _ in range(before)),
    )
    return k.Pod(k.Meta(name, "ml", uid=name, creation_timestamp=MADE), spec)


def write(mirror: Mirror, slot: Slot, one: k.Pod) -> dict[str, str]:
    devices = registered(mirror.nodes[slot.node]).devices
    return hami.notes_of(one.spec, slot.node, devices, slot.devices, 1_769_860_800) if slot.devices else {}


def leader(mirror: Mirror) -> Leader:
    return Leader(mirror, notes=lambda slot, one: write(mirror, slot, one))


def given_out(mirror: Mirror) -> dict[str, list[tuple[int, int]]]:
    """MiB and cores of every part of each device, read from the pods as the device plugin reads them."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in mirror.pods.values():
        for container in (one.metadata.annotations or {}).get(TO_ALLOCATE, "").split(";"):
            for entry in filter(None, container.split(":")):
                uuid, kind, memory, cores = entry.split(",")
                assert kind == "NVIDIA" and uuid.startswith(f"GPU-{one.spec.node_name}-")
                found.setdefault(uuid, []).append((int(memory), int(cores)))
    return found


cards = st.builds(Card, st.sampled_from((8192, 24_576, 81_559)), st.sampled_from((3, 10)), st.sampled_from((100, 100)))
asks = st.one_of(
    st.builds(Ask, st.integers(1, 2)),
    st.builds(
        Ask, st.integers(1, 2), st.sampled_from((1000, 2730, 8192, 20_000)), st.just(0), st.sampled_from((0, 50))
    ),
    st.builds(Ask, st.just(1), st.just(0), st.sampled_from((0, 7, 25, 33, 100)), st.sampled_from((0, 10, 60))),
)


@settings(max_examples=examples(30))
@given(
    st.lists(st.lists(cards, min_size=1, max_size=3), min_size=1, max_size=2),
    st.lists(st.tuples(asks, st.integers(1, 2), st.integers(0, 1)), max_size=14),
    st.integers(1, 3),
)
def test_no_device_gives_out_more_than_it_has_also_after_a_restart(
    nodes: list[list[Card]], wanted: list[tuple[Ask, int, int]], turns: int
) -> None:
    mirror = Mirror()
    for number, own in enumerate(nodes):
        mirror.nodes.change("added", node(f"n{number}", own))
    for number, (ask, containers, before) in enumerate(wanted):
        mirror.pod("added", pod(f"p{number}", ask, containers, before))
    first = leader(mirror)
    for _ in range(turns):
        first.turn()
    again = leader(mirror)
    found = given_out(mirror)
    for number, own in enumerate(nodes):
        free = again.free()[f"n{number}"]
        held = 0
        for at, card in enumerate(own):
            parts = found.get(f"GPU-n{number}-{at}", [])
            least = next(m for m in range(1, 1001) if (card.slots + 1) * m > 1000)
            held += sum(max(-(-memory * 1000 // card.memory), cores * 10, least) for memory, cores in parts)
        assert first.free()[f"n{number}"] <= free
        assert len(own) * 1000 - free == held
    while again.turn():
        pass
    for number, own in enumerate(nodes):
        for at, card in enumerate(own):
            parts = given_out(mirror).get(f"GPU-n{number}-{at}", [])
            assert sum(memory for memory, _ in parts) <= card.memory
            assert sum(cores for _, cores in parts) <= card.cores and len(parts) <= card.slots
    for one in mirror.pods.values():
        if one.spec.node_name:
            ask = next(ask for number, (ask, *_) in enumerate(wanted) if one.metadata.name == f"p{number}")
            entries = [e for c in one.metadata.annotations[ALLOCATED].split(";") for e in c.split(":") if e]  # type: ignore[index]
            assert len(entries) == len({entry.split(",")[0] for entry in entries})  # different devices
            assert len(entries) == ask.gpus * len(one.spec.containers)


def test_what_the_device_plugin_is_handed() -> None:
    devices = registered(node("a", [Card(), Card(8192)])).devices
    one = pod("p", Ask(1, 3000, 0, 30), containers=2, before=1, idle=1)
    notes = hami.notes_of(one.spec, "a", devices, 0b11, 1705054796)
    words = ";;GPU-a-0,NVIDIA,3000,30:;GPU-a-1,NVIDIA,3000,30:;"
    assert notes == {
        TO_ALLOCATE: words,
        ALLOCATED: words,
        NODE: "a",
        "hami.io/vgpu-time": "1705054796",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1705054796",
    }
    whole = hami.notes_of(pod("p", Ask(2)).spec, "a", devices, 0b11, 0)[TO_ALLOCATE]
    assert whole == "GPU-a-0,NVIDIA,24576,0:GPU-a-1,NVIDIA,8192,0:;"
    quarter = hami.notes_of(pod("p", Ask(1, 0, 33)).spec, "a", devices, 0b10, 0)[TO_ALLOCATE]
    assert quarter == "GPU-a-1,NVIDIA,2703,0:;"  # rounded down, as HAMi's own scheduler does


def test_what_a_pod_says_it_holds_in_no_sane_number_is_not_counted() -> None:
    devices = registered(node("a", [Card()])).devices
    for words in (f"GPU-a-0,NVIDIA,{'9' * 5000},30", "GPU-a-0,NVIDIA,-1,30", "GPU-a-0,NVIDIA,²,30", "GPU-a-0"):
        one = k.Pod(k.Meta("p", annotations={NODE: "a", ALLOCATED: words}), k.PodSpec(node_name="a"))
        assert hami.held(one, devices) == {}


def test_devices_are_read_in_every_form_in_which_they_are_registered() -> None:
    seven = "GPU-b,10,32768,100,NVIDIA-V100,0,true:GPU-a,10,32768,100,NVIDIA-V100,0,false:"
    nine = "GPU-a,10,32768,100,NVIDIA-V100,0,false,1,hami-core:GPU-b,10,32768,100,NVIDIA-V100,0,true,0,hami-core:"
    new = json.dumps(
        [
            {
                "id": "GPU-a",
                "index": 1,
                "count": 10,
                "devmem": 32768,
                "devcore": 100,
                "type": "V100",
                "mode": "hami-core",
            },
            {"id": "GPU-b", "count": 10, "devmem": 32768, "devcore": 100, "type": "V100", "health": True},
        ]
    )
    for words in (seven, nine, new):
        found = registered(k.Node(k.Meta("n0", annotations={REGISTER: words})))
        assert [one.uuid for one in found.devices] == ["GPU-b", "GPU-a"] and found.unhealthy == 0b10


@pytest.mark.parametrize(
    "words", ["GPU-a,10", "[{}]", "GPU-a,0,1,100,A10,0,true:", "GPU-a,9,1,100,A10,0,true,0,mig:", "["]
)
def test_devices_that_make_no_sense_are_a_complaint_about_their_node(words: str) -> None:
    view = k.Node(k.Meta("n0", annotations={REGISTER: words}), k.NodeSpec(), k.NodeStatus({NVIDIA: 10}, {NVIDIA: 10}))
    with pytest.raises(InputError, match="devices as HAMi registers them, in mode hami-core"):
        node_of(view, Levels("", "", "", "", "test"))


def test_a_node_has_the_devices_that_are_registered_and_lacks_the_sick_ones() -> None:
    levels = Levels("", "", "", "", "test")
    seen = node_of(node("n0", [Card()] * 8, sick=(2, 5)), levels)
    assert isinstance(seen, Seen) and (seen.node.gpus, seen.lost) == (8, 2)
    mirror = Mirror()
    mirror.nodes.change("added", node("n0", [Card()] * 2, sick=(0,)))
    mirror.pod("added", pod("p", Ask(1, 1000)))
    sound = leader(mirror)
    (slot,) = sound.turn()
    assert slot.devices == 0b10


def test_nothing_more_of_a_sick_card_is_given_out_while_a_part_of_it_is_held() -> None:
    mirror = Mirror()
    mirror.nodes.change("added", node("n0", [Card()]))
    mirror.pod("added", pod("held", Ask(1, 12_288)))
    first = leader(mirror)
    assert len(first.turn()) == 1
    mirror.nodes.change("modified", node("n0", [Card()], sick=(0,)))
    mirror.pod("added", pod("new", Ask(1, 1000)))
    for own in (first, leader(mirror)):  # who leads already, and who begins
        own.fleet.follow(["n0"])
        own.settle()
        assert not own.turn() and "n0" in own.fleet.closed
    mirror.pod("deleted", mirror.pods["held"])
    gone = leader(mirror)
    assert not gone.turn() and gone.core.state.health.lost == {0: 1}
    mirror.nodes.change("modified", node("n0", [Card()]))
    assert len(leader(mirror).turn()) == 1


@pytest.mark.parametrize(
    ("one", "sentence"),
    [
        (pod("p", Ask(0, 4000)), "nvidia.com/gpu beside nvidia.com/gpumem: without it the kubelet does not ask HAMi"),
        (pod("p", Ask(1, 4000, 50)), "nvidia.com/gpumem or nvidia.com/gpumem-percentage, not both"),
        (pod("p", Ask(1, 0, 101)), "at most 100 percent"),
    ],
)
def test_what_hami_cannot_give_is_said(one: k.Pod, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        hami.parts_of(one.spec)
    assert sentence in str(caught.value)


def test_why_no_node_has_such_parts() -> None:
    mirror = Mirror()
    mirror.nodes.change("added", k.Node(k.Meta("plain"), k.NodeSpec(), k.NodeStatus({NVIDIA: 8}, {NVIDIA: 8}, READY)))
    mirror.pod("added", pod("p", Ask(1, 30_000)))
    (workload,) = leader(mirror).workloads.members.by_key.values()
    assert workload.reason.startswith("no node that it selects shares its GPUs with HAMi")
    mirror.nodes.change("added", node("n0", [Card()]))
    (workload,) = leader(mirror).workloads.members.by_key.values()
    assert workload.reason == "no HAMi node that it selects has GPUs of 30000 MiB each"


def test_a_part_that_grows_by_another_card_is_counted_as_the_largest() -> None:
    mirror = Mirror()
    mirror.nodes.change("added", node("small", [Card(10_000)]))
    mirror.nodes.change("added", node("big", [Card(20_000)]))
    for number in range(6):
        mirror.pod("added", pod(f"p{number}", Ask(1, 5000)))
    first = leader(mirror)
    while first.turn():
        pass
    assert sum(bool(one.spec.node_name) for one in mirror.pods.values()) == 4  # halves, on both
    again = leader(mirror)
    assert again.free()["big"] == 500  # two quarters
