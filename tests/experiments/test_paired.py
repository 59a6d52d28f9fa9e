"""Student's t and Fieller's interval, against closed forms and against what they are meant to hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kant.metrics.paired import mean_interval, ratio_interval, t_below, t_of, t_quantile

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
    assume(np.std(values) > 1e-6)
    for end in (found.low, found.high):
        assert abs(t_of(np.array(values) - end)) == pytest.approx(
            t_quantile((1 + confidence) / 2, len(values) - 1), rel=1e-6
        )


@given(FIGURES, st.integers(0, 10**6))
def test_an_interval_of_a_ratio_ends_where_t_reaches_its_quantile(below: list[float], seed: int) -> None:
    b = np.array(below)
    a = b * np.random.Generator(np.random.PCG64(seed)).uniform(0.5, 1.5, len(b))
    found = ratio_interval(a, b, 0.9)
    assume(math.isfinite(found.low) and found.high - found.low > 1e-6)
    assert found.low <= found.mean <= found.high
    for end in (found.low, found.high):
        assert abs(t_of(a - end * b)) == pytest.approx(t_quantile(0.95, len(b) - 1), rel=1e-4)


def test_one_sample_has_no_interval_and_nothing_has_no_ratio() -> None:
    assert mean_interval([3.0]).half == math.inf
    assert ratio_interval([3.0], [2.0]).high == math.inf
    assert math.isnan(ratio_interval([0.0, 0.0], [0.0, 0.0]).mean)
    assert ratio_interval([1.0, 2.0, 3.0], [1.0, -1.0, 0.5]).low == -math.inf


def test_equal_figures_are_told_from_0_at_once() -> None:
    assert t_of([2.0, 2.0]) == math.inf and t_of([-2.0, -2.0]) == -math.inf and t_of([0.0, 0.0]) == 0
