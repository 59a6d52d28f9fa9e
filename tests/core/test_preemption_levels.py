"""The choice among levels: the best set of all, or when time alone may make one, as trying all subsets says."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.queueing.evictable import PASSED, R_MILLI, R_UNTIL, RUNNING_WIDTH, STOPS
from kant.queueing.preemption.levels import make_best_level

NOW, MARKS = 10, (0, STOPS, STOPS, STOPS | PASSED)


def best_of(view: Any, places: Any, marks: Any, _level: int = 0, _later: bool = False) -> Any:
    """Of all subsets within the cap that suffice the one of the fewest members, then of the first; as `search`."""
    held = [0 if marks[i] & PASSED or i >= view.whole else view.table[i, R_MILLI] for i in range(len(marks))]
    for count in range(1, len(places) + 1):
        for some in combinations(sorted(places), count):
            if fits(view, some) and sum(held[i] for i in some) <= view.cap:
                return np.array(some), np.array([count, *some]), True, True
    return np.array([], dtype=np.int64), np.array([], dtype=np.int64), False, True


def fits(view: Any, places: Any) -> bool:
    return bool(sum(view.table[i, R_MILLI] for i in places) >= view.need)


def mark(view: Any, level: int, marks: Any) -> None:
    marks[:] = view.marks[level]


best_level = make_best_level(mark, fits, best_of, lambda loop: loop)
WHO = st.tuples(st.integers(1, 4), st.sampled_from((5, 5, 20, 30)), *[st.sampled_from(MARKS)] * 3)


@settings(max_examples=examples(800))
@given(st.lists(WHO, min_size=2, max_size=5), st.integers(0, 5), st.integers(1, 8), st.integers(1, 9))
def test_the_best_set_of_all_levels_is_found_or_when_to_ask_again(
    drawn: list[tuple[int, ...]], whole: int, need: int, cap: int
) -> None:
    table = np.zeros((len(drawn), RUNNING_WIDTH), dtype=np.int64)
    table[:, R_MILLI], table[:, R_UNTIL] = [who[0] for who in drawn], [who[1] for who in drawn]
    marks = [np.array([who[2 + level] for who in drawn], dtype=np.int64) for level in range(3)]
    view = SimpleNamespace(table=table, marks=marks, whole=whole, need=need, cap=cap)
    chosen, _, retry, definitive = best_level(view, NOW, [0, 1, 2], whole, cap, 10, False, True)
    weights, later = [], []
    for own in marks:
        everyone = [i for i in range(len(drawn)) if own[i] & STOPS]
        protected = [drawn[i][1] for i in everyone if drawn[i][1] > NOW and not own[i] & PASSED]
        _, weight, found, _ = best_of(view, [i for i in everyone if drawn[i][1] <= NOW or own[i] & PASSED], own)
        shrinks = any(i >= whole for i in everyone)
        if protected and not (fits(view, everyone) if shrinks else best_of(view, everyone, own)[2]):
            continue
        weights += [weight.tolist()] if found else []
        later += [min(protected)] if protected else []
    assert chosen.tolist() == min(weights, default=[0])[1:]
    if not weights:
        assert (retry, definitive) == (min(later, default=-1), True)


@pytest.mark.parametrize(
    ("until", "need", "proven"), [(20, 3, False), (20, 9, True), (5, 3, False), (5, 9, True)]
)  # fmt: skip
def test_what_a_search_misses_is_proven_only_where_all_are_too_few(until: int, need: int, proven: bool) -> None:
    table = np.zeros((2, RUNNING_WIDTH), dtype=np.int64)
    table[:, R_MILLI], table[:, R_UNTIL] = 2, until
    view = SimpleNamespace(table=table, marks=[np.full(2, STOPS)], whole=2, need=need, cap=2)
    inexact = make_best_level(mark, fits, lambda *asked: (*best_of(*asked)[:3], False), lambda loop: loop)
    chosen, _, retry, definitive = inexact(view, NOW, [0], 2, 2, 10, False, True)
    assert (len(chosen), retry, definitive) == (0, -1, proven)
