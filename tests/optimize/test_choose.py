"""Where a reservation goes: contiguous GPUs that nobody has for its whole window, or who is in the way."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.state import ClusterState
from kant.model.errors import InputError
from kant.model.node import ClusterSpec, Node
from kant.optimize.calendar.booking import LineBooking
from kant.optimize.calendar.choose import PlaceChoice, PlaceRequest, Taken, choose, lines_of
from kant.optimize.calendar.week import book


def cluster(nodes: int, gpus: int = 2, leaf: int = 2) -> ClusterSpec:
    return ClusterSpec("test", tuple(Node(f"n{i}", gpus, leaf=f"leaf{i // leaf}") for i in range(nodes)))


def test_a_reservation_lies_in_one_node_if_it_can_and_where_it_leaves_least() -> None:
    spec = cluster(3)
    there = [Taken("job 1", 0, 9, {1: 0b01})]
    found = choose(spec, PlaceRequest("r", 1, 0, 5), there, 0)
    assert (found.held, found.moved, found.line) == ({1: 0b10}, {}, "n1")
    assert choose(spec, PlaceRequest("r", 2, 0, 5), there, 0).held == {0: 0b11}
    assert choose(spec, PlaceRequest("r", 4, 0, 5, "leaf"), [], 0).held == {0: 0b11, 1: 0b11}
    assert choose(spec, PlaceRequest("r", 3, 0, 5), there, 0).collide == ("job 1",)


def test_who_is_in_the_way_is_said_and_when_it_fits() -> None:
    spec = cluster(2)
    there = [Taken("job 1", 0, 7, {0: 0b11}), Taken("old", 2, 4, {1: 0b01}), Taken("later", 20, 30, {1: 0b11})]
    found = choose(spec, PlaceRequest("r", 4, 0, 5), there, 0)
    assert not found.held and len(found.collide) == 1 and found.minimal and found.later == 7


def test_others_move_along_their_line_where_that_makes_room() -> None:
    spec = cluster(1, 4)
    a, b = PlaceRequest("a", 1, 10, 20), PlaceRequest("b", 1, 10, 20)
    there = [Taken("a", 10, 20, {0: 0b0010}, a), Taken("b", 10, 20, {0: 0b1000}, b)]
    found = choose(spec, PlaceRequest("r", 2, 12, 15), there, 0)
    assert len(found.moved) == 1 and found.held
    assert not choose(spec, PlaceRequest("r", 2, 12, 15), there, 11).held, "they have begun"


def test_what_the_empty_cluster_could_not_hold_is_an_error() -> None:
    spec = ClusterSpec(
        "test", (Node("a", 4, "H100"), Node("b", 2, "A100"), Node("c", 0), Node("d", 4, "H100", mig="all-1g"))
    )
    for request, where in (
        (PlaceRequest("r", 5, 0, 1), "gpus"), (PlaceRequest("r", 0, 0, 1), "gpus"),
        (PlaceRequest("r", 3, 0, 1, model="A100"), "gpus"),
        (PlaceRequest("r", 1, 0, 1, model="B200"), "model"), (PlaceRequest("r", 1, 0, 1, within="rack"), "within"),
        (PlaceRequest("r", 5, 0, 1, within="node"), "gpus"),
    ):  # fmt: skip
        with pytest.raises(InputError) as refused:
            choose(spec, request, [], 0)
        assert refused.value.where == where


NODES, WIDTH = 3, 2
WINDOW = st.tuples(st.integers(0, 5), st.integers(1, 4))
BOOKED = st.lists(st.tuples(WINDOW, st.integers(1, 4), st.sampled_from(("", "leaf"))), max_size=7)


@given(BOOKED, st.lists(st.tuples(WINDOW, st.integers(0, NODES - 1), st.integers(1, 3)), max_size=2), st.integers(0, 3))
@settings(max_examples=examples(40), deadline=None)
def test_nothing_is_double_booked_and_a_refusal_is_true(booked: object, jobs: object, now: int) -> None:
    """One after the other is booked. A brute force over all places checks each answer."""
    spec = cluster(NODES, WIDTH)
    taken: list[Taken] = []
    for number, ((start, length), node, bits) in enumerate(jobs):  # type: ignore[arg-type, var-annotated]
        if not any(each.held.get(node, 0) & bits for each in taken):
            taken.append(Taken(f"job {number}", 0, start + length, {node: bits}))
    for number, ((start, length), gpus, within) in enumerate(booked):  # type: ignore[arg-type, var-annotated]
        request = PlaceRequest(f"r{number}", gpus, now + start, now + start + length, within)
        found = choose(spec, request, taken, now)
        stays = [each for each in taken if each.who not in found.moved]
        moves = [
            Taken(each.who, each.start, each.end, found.moved[each.who], each.request)
            for each in taken
            if each.who in found.moved
        ]
        assert all(each.request is not None and each.start > now for each in moves)
        if not found.held:
            assert not any(
                free(taken, request, held) for line in lines_of(spec, request) for held in places(line, request)
            )
            assert found.collide and set(found.collide) <= {each.who for each in taken}
            assert not possible(spec, request, taken, now)
            continue
        if found.moved:
            assert not any(
                free(taken, request, held) for line in lines_of(spec, request) for held in places(line, request)
            )
        taken = [*stays, *moves, Taken(request.name, request.start, request.end, found.held, request)]
        check(spec, taken)


def places(line: object, request: PlaceRequest) -> list[dict[int, int]]:
    step = line.width if request.gpus > line.width else 1  # type: ignore[attr-defined]
    return [dict(line.held(first, request.gpus)) for first in range(0, line.gpus - request.gpus + 1, step)]  # type: ignore[attr-defined]


def free(taken: list[Taken], request: PlaceRequest, held: dict[int, int]) -> bool:
    return not any(
        each.start < request.end and request.start < each.end and any(held.get(n, 0) & b for n, b in each.held.items())
        for each in taken
    )


def possible(spec: ClusterSpec, request: PlaceRequest, taken: list[Taken], now: int) -> bool:
    """Whether it fits with others moved along their own line, by trying all of that."""
    for line in lines_of(spec, request):
        movable = [
            each for each in taken
            if each.request is not None and each.start > now and line in lines_of(spec, each.request)
            and set(each.held) <= set(line.nodes)
        ]  # fmt: skip
        fixed = [each for each in taken if each not in movable]
        for chosen in product(places(line, request), *(places(line, each.request) for each in movable if each.request)):
            new = list(fixed)
            fits = True
            for own, held in zip([request, *(each.request for each in movable)], chosen, strict=True):
                assert own is not None
                fits = fits and free(new, own, held)
                new.append(Taken(own.name, own.start, own.end, held, own))
            if fits:
                return True
    return False


def check(spec: ClusterSpec, taken: list[Taken]) -> None:
    for number, one in enumerate(taken):
        assert one.request is None or sum(bits.bit_count() for bits in one.held.values()) == one.request.gpus
        assert one.request is None or dict(one.held) in [
            p for line in lines_of(spec, one.request) for p in places(line, one.request)
        ]
        for two in taken[:number]:
            meets = one.start < two.end and two.start < one.end
            assert not meets or not any(one.held.get(node, 0) & bits for node, bits in two.held.items())


def test_the_bookings_of_a_file_get_their_gpus_or_are_refused_by_name() -> None:
    spec = cluster(2)
    events = book([LineBooking("a", 0, 5, 2), LineBooking("b", 3, 9, 2), LineBooking("c", 5, 8, 2)], spec, "week.csv")
    state = ClusterState(spec)
    for event in events:
        state.apply(event)
    state.check()
    assert {name: own.devices() for name, own in state.bookings.items()} == {"a": {0: 3}, "b": {1: 3}, "c": {0: 3}}
    for wrong, said in (
        ([LineBooking("a", 0, 5, 4), LineBooking("b", 3, 9, 2)], "week.csv, booking b: expected adjacent GPUs"),
        ([LineBooking("a", 0, 5, 9)], "week.csv, booking a, gpus: expected at most 4"),
        ([LineBooking("a", 0, 5, 1, offset=0)], "week.csv, booking a: expected neither offset"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            book(wrong, spec, "week.csv")


def test_a_choice_is_the_same_each_time() -> None:
    spec, request = cluster(4), PlaceRequest("r", 3, 5, 9)
    there = [Taken("a", 2, 7, {0: 0b11}, PlaceRequest("a", 2, 2, 7)), Taken("job 1", 0, 30, {3: 0b01})]
    assert choose(spec, request, there, 0) == choose(spec, request, there, 0)
    assert isinstance(choose(spec, request, there, 0), PlaceChoice)
