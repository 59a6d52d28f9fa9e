"""The calendar: what fits is found, what does not is proven, and what collides is minimal."""

from __future__ import annotations

import os
import random
from itertools import combinations, pairwise

import numpy as np
import pytest
from benchmarks.studies.judges import calendar_faults as faults
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import DataFile
from tests.examples import examples

from kant.model.errors import InputError
from kant.optimize.calendar.attempts import SearchBudget, attempts_at, rank_of
from kant.optimize.calendar.booking import LineBooking
from kant.optimize.calendar.file import read_calendar
from kant.optimize.calendar.kernels import FEWEST, FOUND, LOWEST, NONE, OPEN, TIGHTEST, search
from kant.optimize.calendar.solve import Answer, solve, solve_least

CAPACITY = 1_048_576


@st.composite
def calendars(draw: st.DrawFn, most: int = 6, ticks: int = 7) -> list[LineBooking]:
    """Small calendars with everything in them: alignment, pinned bookings, gaps."""
    bookings = []
    for i in range(draw(st.integers(1, most))):
        edges = sorted(draw(st.sets(st.integers(0, ticks), min_size=2, max_size=4)))
        gaps = [(edges[1], edges[2])] if len(edges) == 4 else []
        alignment = draw(st.sampled_from((1, 1, 1, 2, 3)))
        pinned = draw(st.sampled_from((None, None, None, 0, 1, 2)))
        offset = None if pinned is None else pinned * alignment
        gpus = draw(st.integers(1, 5))
        bookings.append(LineBooking(str(i), edges[0], edges[-1], gpus, alignment, offset, tuple(gaps)))
    return bookings


def overlaps(one: LineBooking, first: int, other: LineBooking, second: int) -> bool:
    """Tick by tick and GPU by GPU, unlike anything in the solver."""

    def cells(b: LineBooking, offset: int) -> set[tuple[int, int]]:
        held = {t for t in range(b.start, b.end) if not any(a <= t < e for a, e in b.gaps)}
        return {(t, g) for t in held for g in range(offset, offset + b.gpus)}

    return bool(cells(one, first) & cells(other, second))


def fits_by_trying(bookings: list[LineBooking], capacity: int) -> bool:
    """Every offset of every booking."""

    def place(i: int, offsets: list[int]) -> bool:
        if i == len(bookings):
            return True
        b = bookings[i]
        tried = range(0, capacity - b.gpus + 1, b.alignment) if b.offset is None else (b.offset,)
        return any(
            offset + b.gpus <= capacity
            and not any(overlaps(b, offset, bookings[j], offsets[j]) for j in range(i))
            and place(i + 1, [*offsets, offset])
            for offset in tried
        )

    return place(0, [])


@given(calendars(), st.integers(1, 9))
@settings(max_examples=examples(150))
def test_an_answer_is_that_of_trying_everything(bookings: list[LineBooking], capacity: int) -> None:
    answer = solve(bookings, capacity)
    fits = fits_by_trying(bookings, capacity)
    assert answer.status == ("fits" if fits else "infeasible")
    if fits:
        assert not faults(bookings, answer.offsets, capacity)
        assert answer.lower_bound <= answer.needed <= capacity
        return
    assert answer.minimal and answer.lower_bound > 0
    colliding = [bookings[i] for i in answer.collide]
    assert not fits_by_trying(colliding, capacity)
    for i in range(len(colliding)):
        assert fits_by_trying(colliding[:i] + colliding[i + 1 :], capacity)
    if answer.offsets:
        assert not faults(bookings, answer.offsets, answer.needed)


@given(calendars(most=5))
@settings(max_examples=examples(20))
def test_the_least_line_is_the_least(bookings: list[LineBooking]) -> None:
    answer = solve_least(bookings)
    if not answer.offsets:
        assert not fits_by_trying(bookings, 40)
        return
    assert not faults(bookings, answer.offsets, answer.needed)
    assert answer.needed == answer.lower_bound <= answer.first_fit
    assert answer.needed == 1 or not fits_by_trying(bookings, answer.needed - 1)


@given(calendars(most=8), st.integers(3, 12))
@settings(max_examples=examples(40))
def test_the_search_does_the_same_compiled_and_not(bookings: list[LineBooking], capacity: int) -> None:
    attempts = attempts_at(bookings)
    plain = getattr(search, "py_func", search)
    for size, rule in zip(attempts.sizes, (FEWEST, TIGHTEST, LOWEST), strict=True):
        found = []
        for kernel in (search, plain):
            failed, offsets = np.zeros((64, 2), np.int64), np.zeros(len(bookings), np.int64)
            nodes = np.zeros(1, np.int64)
            result = kernel(attempts.sections, rank_of(np.argsort(size)), capacity, rule, 200, failed, offsets, nodes)
            found.append((result, offsets.tolist(), failed.tolist(), nodes.tolist()))
        assert found[0] == found[1]
        result, offsets, *_ = found[0]
        assert result in (FOUND, NONE, OPEN)
        if result == FOUND:
            assert not faults(bookings, offsets, capacity)


@given(calendars(), st.data())
def test_the_check_of_a_plan_sees_what_cells_show(bookings: list[LineBooking], data: st.DataObject) -> None:
    offsets = [data.draw(st.integers(0, 5)) for _ in bookings]
    pairs = [(i, j) for i in range(len(bookings)) for j in range(i)]
    wrong = (
        any(overlaps(bookings[i], offsets[i], bookings[j], offsets[j]) for i, j in pairs)
        or any(offset + b.gpus > 7 or offset % b.alignment for b, offset in zip(bookings, offsets, strict=True))
        or any(b.offset not in (None, offset) for b, offset in zip(bookings, offsets, strict=True))
    )
    assert bool(faults(bookings, offsets, 7)) == wrong


@pytest.mark.parametrize("instance", "ABCDEF")
def test_published_instances_fit_at_capacity(data_file: DataFile, instance: str) -> None:
    bookings = read_calendar(data_file("minimalloc_a_f.csv.gz"), instance).bookings
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        pytest.skip("uncompiled it takes minutes")
    answer = solve(bookings, CAPACITY, nodes=2_000_000)
    assert answer.status == "fits" and not faults(bookings, answer.offsets, CAPACITY)
    assert answer.first_fit > 1.2 * CAPACITY


def test_a_budget_that_ends_leaves_the_best_plan(data_file: DataFile) -> None:
    bookings = read_calendar(data_file("minimalloc_a_f.csv.gz"), "A").bookings
    answer = solve(bookings, CAPACITY, nodes=500)
    assert answer.status == "unknown" and not answer.collide
    assert CAPACITY < answer.needed <= answer.first_fit
    assert not faults(bookings, answer.offsets, answer.needed)
    assert solve(bookings, CAPACITY, nodes=500) == answer


@st.composite
def cut_weeks(draw: st.DrawFn) -> tuple[list[LineBooking], int]:
    """A line and a week cut into pieces by straight cuts: they fit the line, and first fit seldom sees how."""
    width, length = draw(st.integers(6, 40)), draw(st.integers(6, 30))
    rng = random.Random(draw(st.integers(0, 10**9)))
    pieces = [(0, width, length)]
    for _ in range(draw(st.integers(3, 60))):
        start, gpus, ticks = pieces.pop(rng.randrange(len(pieces)))
        if gpus > 1 and (ticks == 1 or rng.random() < 0.5):
            cut = rng.randint(1, gpus - 1)
            pieces += [(start, cut, ticks), (start, gpus - cut, ticks)]
        elif ticks > 1:
            cut = rng.randint(1, ticks - 1)
            pieces += [(start, gpus, cut), (start + cut, gpus, ticks - cut)]
        else:
            pieces.append((start, gpus, ticks))
    rng.shuffle(pieces)
    return [LineBooking(str(i), start, start + ticks, gpus) for i, (start, gpus, ticks) in enumerate(pieces)], width


def says_what_it_knows(bookings: list[LineBooking], answer: Answer) -> None:
    """Status, plan and bound of an answer go together, and the plan holds tick by tick."""
    if answer.offsets:
        assert not faults(bookings, answer.offsets, answer.needed)
        pairs = combinations(zip(bookings, answer.offsets, strict=True), 2)
        if answer.needed < 100:
            assert not any(overlaps(one, first, other, second) for (one, first), (other, second) in pairs)
        assert answer.lower_bound <= answer.needed
    if answer.offsets and answer.needed <= answer.capacity:
        assert answer.status == "fits" and not answer.collide
    elif answer.status == "infeasible":
        assert answer.lower_bound > answer.capacity or not answer.offsets
        assert answer.collide
    else:
        assert answer.status == "unknown" and answer.lower_bound <= answer.capacity < answer.needed


@given(cut_weeks(), st.integers(0, 3), st.integers(1, 2_000))
@settings(max_examples=examples(100))
def test_a_week_that_fits_is_never_refused_and_a_plan_never_unknown(
    week: tuple[list[LineBooking], int], more: int, nodes: int
) -> None:
    bookings, width = week
    answer = solve(bookings, width + more, nodes=nodes)
    says_what_it_knows(bookings, answer)
    assert answer.status != "infeasible" and answer.lower_bound <= width
    least = solve_least(bookings, nodes=nodes)
    says_what_it_knows(bookings, least)
    assert least.status == "fits" and least.lower_bound <= width


@given(calendars(), st.integers(1, 9), st.integers(1, 60))
@settings(max_examples=examples(150))
def test_within_any_limit_an_answer_is_none_that_trying_everything_denies(
    bookings: list[LineBooking], capacity: int, nodes: int
) -> None:
    answer = solve(bookings, capacity, nodes=nodes)
    says_what_it_knows(bookings, answer)
    fits = fits_by_trying(bookings, capacity)
    assert answer.status in ("unknown", "fits" if fits else "infeasible")
    assert not fits_by_trying(bookings, answer.lower_bound - 1)
    if answer.collide:
        assert not fits_by_trying([bookings[i] for i in answer.collide], capacity)


@pytest.mark.parametrize("nodes", [45_000, 50_000])
def test_a_plan_that_the_rest_of_the_limit_finds_fits(data_file: DataFile, nodes: int) -> None:
    """The first part of the limit ends just before the plan is found."""
    bookings = read_calendar(data_file("minimalloc_a_f.csv.gz"), "A").bookings
    answer = solve(bookings, CAPACITY, nodes=nodes)
    says_what_it_knows(list(bookings), answer)
    assert answer.status == "fits"


HARD = [
    LineBooking(str(i), *row)
    for i, row in enumerate(
        [
            (5, 6, 4, 2), (1, 4, 2, 1), (6, 9, 10, 3), (2, 5, 7, 1), (0, 1, 9, 1), (6, 8, 9, 1), (7, 10, 5, 3),
            (6, 10, 7, 3), (7, 10, 7, 3), (2, 5, 3, 1), (2, 3, 4, 2), (7, 10, 9, 1), (6, 9, 2, 1), (5, 9, 6, 1),
        ]
    )
]  # fmt: skip
"""At no time more than 55 GPUs are booked, and 55 do not do: the proof takes some hundred nodes."""


def test_a_proof_that_the_rest_of_the_limit_finds_is_said() -> None:
    """The first part of the limit ends just before the proof is found."""
    found = set()
    for nodes in range(1, 640, 7):
        answer = solve(HARD, 55, nodes=nodes)
        says_what_it_knows(HARD, answer)
        found.add(answer.status)
    assert found == {"unknown", "infeasible"}


def test_seconds_of_a_limit_are_nodes() -> None:
    """The more bookings, and the longer they are, the fewer nodes are in a deterministic second."""
    short = [LineBooking(str(i), i, i + 2, 1) for i in range(20)]
    long = [LineBooking(str(i), i, i + 6, 1) for i in range(20)]
    nodes = [attempts_at(each).nodes_in(1.0) for each in (short, long, short * 2)]
    assert nodes[0] > nodes[1] and nodes[0] > nodes[2] > 0
    assert attempts_at(short).nodes_in(0.5) == pytest.approx(nodes[0] / 2, abs=1)
    assert attempts_at(short).nodes_in(1e-12) == 1


def test_an_attempt_spends_its_part_of_the_budget_and_at_least_a_node_for_each_booking() -> None:
    attempts, budget = attempts_at(HARD), SearchBudget(1_000)
    found, _ = attempts.fit(55, budget, 100)
    assert found == OPEN and 100 <= attempts.nodes <= 101 and 899 <= budget.nodes <= 900
    least = SearchBudget(1)
    assert attempts.fit(55, least)[0] == OPEN and least.nodes == 1 - len(HARD)


def test_a_limit_ends_the_hunt_for_who_collides() -> None:
    """However many bookings there are, no more questions are asked than the limit has nodes for."""
    crowd = [LineBooking(str(i), i % 7, i % 7 + 8, 1) for i in range(120)]
    answer = solve(crowd, 80, nodes=300)
    says_what_it_knows(crowd, answer)
    assert answer.status == "infeasible" and not answer.minimal and len(answer.collide) == 81
    assert solve(crowd, 80).minimal


def test_a_collision_names_no_bystander() -> None:
    """Two of 6 GPUs side by side on a line of 10: five others fill the week and have nothing to do with it."""
    week = [LineBooking(f"b{i}", i, i + 1, 10) for i in range(5)]
    answer = solve([*week, LineBooking("x", 6, 9, 6), LineBooking("y", 8, 10, 6)], 10)
    assert answer.status == "infeasible" and answer.minimal
    assert answer.collide == (5, 6) and answer.needed == 12


def test_a_collision_may_be_of_shapes_and_not_of_sums() -> None:
    """At no time more than 4 GPUs are booked, and 4 do not do: c and d cannot both slide past a running job."""
    bookings = [LineBooking("run", 0, 4, 1, offset=1), LineBooking("c", 1, 2, 3), LineBooking("d", 2, 3, 2)]
    answer = solve(bookings, 4)
    assert answer.status == "infeasible" and answer.collide == (0, 1) and answer.needed == 5


def test_a_gap_is_free_for_others() -> None:
    long = LineBooking("long", 0, 10, 4, gaps=((4, 6),))
    answer = solve([long, LineBooking("guest", 4, 6, 4)], 4)
    assert answer.status == "fits" and answer.offsets == (0, 0)
    assert solve([long, LineBooking("guest", 4, 7, 4)], 4).status == "infeasible"


def test_pinned_bookings_that_collide_have_no_plan_at_all() -> None:
    answer = solve_least(
        [LineBooking("a", 0, 2, 4, offset=0), LineBooking("b", 1, 3, 4, offset=2), LineBooking("c", 0, 1, 1)]
    )
    assert answer.status == "infeasible" and answer.collide == (0, 1) and answer.offsets == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"start": 3, "end": 3}, "a start before its end"),
        ({"gpus": 0}, "GPUs"),
        ({"alignment": 0}, "an alignment"),
        ({"offset": -1}, "an offset"),
        ({"offset": 3, "alignment": 2}, "multiple"),
        ({"gaps": ((1, 9),)}, "gaps in order"),
        ({"gaps": ((2, 3), (1, 2))}, "gaps in order"),
        ({"gaps": ((0, 5),)}, "leave some time"),
    ],
)
def test_a_booking_that_makes_no_sense_is_refused(fields: dict[str, object], expected: str) -> None:
    good: dict[str, object] = {"id": "b", "start": 0, "end": 5, "gpus": 2}
    with pytest.raises(InputError, match=expected):
        LineBooking(**(good | fields))  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 9), min_size=2, max_size=8, unique=True))
def test_spans_and_gaps_fill_the_window(edges: list[int]) -> None:
    edges = sorted(edges if len(edges) % 2 == 0 else edges[:-1])
    gaps = tuple(pairwise(edges[1:-1]))[::2]
    booking = LineBooking("b", edges[0], edges[-1], 1, gaps=gaps)
    parts = sorted([*booking.spans(), *gaps])
    assert parts[0][0] == booking.start and parts[-1][1] == booking.end
    assert all(a[1] == b[0] for a, b in pairwise(parts))
