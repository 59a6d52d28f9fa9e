"""Moments for people: on the run's clock, or as dates where the journal of a real cluster says when its zero was."""

from __future__ import annotations

from contextvars import copy_context
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kant.model.units import FOREVER, SECOND, clock, count_from


@given(st.integers(0, 4_000_000_000), st.integers(-1_000_000_000, 4_000_000_000))
def test_dates_are_those_of_the_calendar(zero_s: int, seconds: int) -> None:
    def shown() -> str:
        count_from(zero_s * SECOND + 1)
        return clock(seconds * SECOND)

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=zero_s + seconds)
    assert copy_context().run(shown) == moment.strftime("%Y-%m-%d %H:%M:%SZ")
    assert copy_context().run(lambda: (count_from(zero_s * SECOND + 1), clock(FOREVER))[1]) == "for ever"


def test_without_a_zero_it_is_the_time_since_the_run_began() -> None:
    def shown() -> tuple[str, str]:
        count_from(0)
        return clock(3 * 86_400 * SECOND + 4 * 3600 * SECOND + 5 * 60 * SECOND + 6 * SECOND), clock(-5)

    assert copy_context().run(shown) == ("3d 04:05:06", "0d 00:00:00")
