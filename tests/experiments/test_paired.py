"""Intervals of means and middles, against closed forms and against what they are meant to hold."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.metrics import paired
from kant.metrics.paired import mean_interval, middle_interval, t_below, t_quantile

FIGURES = st.lists(st.floats(1, 1000), min_size=2, max_size=12)


@given(st.floats(-50, 50))
def test_t_with_one_and_two_degrees_of_freedom_has_its_closed_form(t: float) -> None:
    assert t_below(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-10)
    assert t_below(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-10)


@given(st.floats(0.001, 0.999), st.integers(1, 300))
def test_a_quantile_has_its_probability_below_it(p: float, df: int) -> None:
    assert t_below(t_quantile(p, df), df) == pytest.approx(p, abs=1e-9)
    assert t_quantile(1 - p, df) == pytest.approx(-t_quantile(p, df), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("p", "df", "t"), [(0.975, 1, 12.7062), (0.975, 4, 2.7764), (0.95, 9, 1.8331), (0.995, 30, 2.75)]
)
def test_quantiles_are_those_of_the_printed_tables(p: float, df: int, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, abs=1e-4)


@given(FIGURES, st.floats(0.5, 0.99))
def test_an_interval_of_a_mean_ends_where_t_reaches_its_quantile(values: list[float], confidence: float) -> None:
    found = mean_interval(values, confidence)
    assert found.low <= found.mean <= found.high
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert found.half == pytest.approx(t_quantile((1 + confidence) / 2, len(values) - 1) * error)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=9, unique=True), st.floats(0.05, 0.98))
def test_an_interval_of_the_middle_holds_what_signed_ranks_cannot_tell(values: list[int], confidence: float) -> None:
    """Against a count of all choices of signs, at points that no mean of a pair falls on."""
    found = middle_interval(values, confidence)
    assert found.low <= found.mean <= found.high
    n, tail = len(values), (1 - confidence) / 2
    sums = [sum(r for r, sign in enumerate(signs, 1) if sign) for signs in product((0, 1), repeat=n)]
    for point in {v + d for v in values for d in (-0.3, 0.3)}:
        above = sum((a + b) / 2 > point for i, a in enumerate(values) for b in values[i:])  # Tukey: the rank sum
        rare = min(sum(s <= above for s in sums), sum(s >= above for s in sums)) / 2**n <= tail * (1 + 1e-9)
        assert rare == (not found.low <= point <= found.high)


def test_the_normal_and_the_exact_cut_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for tail in (0.005, 0.025, 0.05):
        exact = paired._cut.__wrapped__(50, tail)
        with monkeypatch.context() as patch:
            patch.setattr(paired, "EXACT", 49)
            assert 0 <= exact - paired._cut.__wrapped__(50, tail) <= 5  # the normal one is the wider


def test_one_sample_has_no_interval() -> None:
    assert mean_interval([3.0]).half == math.inf == middle_interval([3.0]).high
