"""GPU-time by queue and hour: against sums over all changes, in floats where weights are powers."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.usage import HOURS, UsageHours, weights
from kant.model.errors import StateError
from kant.model.units import DAY, HOUR, SECOND, WEEK

Change = tuple[int, int, int]
ENDLESS = 10**30  # a half-life in which nothing decays
steps = st.one_of(st.integers(0, SECOND), st.integers(0, 3 * HOUR), st.integers(0, 2 * HOURS * HOUR))
half_lives = st.one_of(st.sampled_from([HOUR, DAY, WEEK]), st.integers(1, 10**14))


@st.composite
def changes(draw: st.DrawFn) -> list[Change]:
    """Changes in order of time that never give back more than is held."""
    now, running, result = draw(st.integers(0, DAY)), [0, 0, 0, 0], []
    for _ in range(draw(st.integers(0, 30))):
        queue = draw(st.integers(0, 3))
        delta = draw(st.integers(-running[queue], 10**8 - running[queue]))
        running[queue] += delta
        result.append((queue, delta, now))
        now += draw(steps)
    return result


def held(changed: list[Change], now: int) -> list[list[tuple[int, int, int]]]:
    """For each queue the spans (from, to, milli-GPUs) up to `now`."""
    spans: list[list[tuple[int, int, int]]] = [[] for _ in range(4)]
    for queue in range(4):
        own = [(at, delta) for q, delta, at in changed if q == queue]
        running = 0
        for (at, delta), (end, _) in pairwise([*own, (now, 0)]):
            running += delta
            spans[queue].append((at, end, running))
    return spans


def naive(changed: list[Change], now: int, half_life: int) -> list[float]:
    """Weighted milli-GPU-seconds of each queue, a float sum over hours."""
    sums = []
    for spans in held(changed, now):
        total = 0.0
        for begin, end, milli in spans:
            for hour in range(max(begin // HOUR, now // HOUR - HOURS + 1), end // HOUR + 1):
                overlap = min(end, (hour + 1) * HOUR) - max(begin, hour * HOUR)
                age = (now // HOUR - hour) * HOUR
                total += milli * overlap / SECOND * 0.5 ** (age / half_life)
        sums.append(total)
    return sums


def fold(changed: list[Change]) -> UsageHours:
    usage = UsageHours()
    for change in changed:
        usage.changed(*change)
    return usage


@given(changes(), steps, half_lives)
def test_decayed_usage_is_a_naive_sum_within_rounding(changed: list[Change], later: int, half_life: int) -> None:
    now = (changed[-1][2] if changed else 0) + later
    ours = fold(changed).decayed(now, half_life).tolist()
    for queue, value in enumerate(ours):
        assert value >= 0
        theirs = naive(changed, now, half_life)[queue]
        whole = naive(changed, now, ENDLESS)[queue]
        # a second's rest may count in the hour after its own; a weight is cut to 20 bits, an hour to whole units
        assert abs(value - theirs) <= whole / (1 << 20) + 2 * HOURS


@given(changes(), st.integers(0, (HOURS - 1) * HOUR))
def test_without_decay_the_sum_is_the_exact_gpu_time(changed: list[Change], later: int) -> None:
    first = changed[0][2] if changed else 0
    changed = [change for change in changed if change[2] - first < (HOURS - 1) * HOUR // 2]
    now = max((changed[-1][2] if changed else 0), min(first + later, (first // HOUR + HOURS - 1) * HOUR))
    ours = fold(changed).decayed(now, ENDLESS).tolist()
    for queue, value in enumerate(ours):
        assert value == sum((end - begin) * milli for begin, end, milli in held(changed, now)[queue]) // SECOND


@given(changes(), st.lists(st.integers(0, 30), max_size=5))
def test_asking_changes_no_later_answer(changed: list[Change], asked: list[int]) -> None:
    quiet, usage = fold(changed), UsageHours()
    for at, change in enumerate(changed):
        usage.changed(*change)
        if at in asked:
            usage.decayed(change[2], DAY)
    now = changed[-1][2] if changed else 0
    assert usage.decayed(now, DAY).tolist() == quiet.decayed(now, DAY).tolist()


def test_usage_counts_half_after_a_half_life_and_nothing_when_it_is_forgotten() -> None:
    usage = fold([(0, 8000, 0), (0, -8000, HOUR)])
    used = 8000 * 3600
    assert usage.decayed(HOUR, 5 * HOUR).tolist() == [used * int((1 << 20) * 0.5**0.2) >> 20]
    for halvings in range(1, 10):
        assert usage.decayed(5 * HOUR * halvings, 5 * HOUR).tolist() == [used >> halvings]
    assert usage.decayed((HOURS - 1) * HOUR, ENDLESS).tolist() == [used]
    assert usage.decayed(HOURS * HOUR, ENDLESS).tolist() == [0]


@given(half_lives)
def test_weights_are_powers_of_a_half_to_the_last_bit_but_one(half_life: int) -> None:
    ours = weights(half_life)
    assert ours[0] == 1 << 20
    powers = 0.5 ** (np.arange(HOURS) * HOUR / half_life) * (1 << 20)
    assert np.all(ours <= powers + 1e-3)  # the exponent is cut to 32 bits
    assert np.all(ours > powers - 1 - 1e-3)
    assert np.all(np.diff(ours) <= 0)


def test_the_largest_queue_that_is_allowed_for_does_not_overflow() -> None:
    milli = 2_400_000_000
    usage = fold([(0, milli, 0)])
    now = (HOURS - 1) * HOUR
    assert usage.decayed(now, ENDLESS).tolist() == [milli * now // SECOND]
    exact = sum(Fraction(milli * 3600 * int(w), 1 << 20) for w in weights(DAY)[1:])
    assert abs(usage.decayed(now, DAY).tolist()[0] - exact) < HOURS


def test_queues_come_as_they_come() -> None:
    usage = fold([(40, 1000, 5 * SECOND), (3, 2000, 10 * SECOND)])
    used = usage.decayed(20 * SECOND, DAY)
    assert len(used) == 41
    assert {queue: int(used[queue]) for queue in np.flatnonzero(used)} == {3: 20_000, 40: 15_000}


def test_what_makes_no_sense_is_refused() -> None:
    usage = fold([(0, 1000, 0)])
    with pytest.raises(StateError, match="cannot return 1001"):
        usage.changed(0, -1001, SECOND)
    assert usage.running == [1000]
    with pytest.raises(StateError, match="half-life"):
        usage.decayed(SECOND, 0)
