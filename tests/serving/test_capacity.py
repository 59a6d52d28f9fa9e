"""Capacity at objectives, and the cost of a replica's absence: what must hold of both."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples

from kant.serving.capacity import CapacityCurve, capacity, capacity_curve, trial
from kant.serving.engine import EngineSettings
from kant.serving.latency import LatencyModel
from kant.serving.removal import removal
from kant.serving.service import MINUTE_S, Mix, Service, kept_minutes, late, mix_named
from kant.serving.summary import Objectives

LATENCY = LatencyModel(floor=20.0, slope=0.2, fixed=15.0, kv=0.0005, context=0.0)
MIX = mix_named("sharegpt")


def service(ttft: float = 2.0, tpot: float = 0.1, router: str = "shortest-queue") -> Service:
    return Service(EngineSettings(LATENCY, 2000, max_num_seqs=32), MIX, Objectives(ttft, tpot), router)


@given(
    st.lists(
        st.tuples(st.floats(0, 299), st.booleans(), st.booleans()), max_size=60
    ),
    st.integers(0, 2), st.integers(0, 3),
)  # fmt: skip
def test_a_minute_is_kept_where_at_most_one_request_in_a_hundred_is_late(
    rows: list[tuple[float, bool, bool]], first: int, count: int
) -> None:
    arrival = np.array([when for when, _, _ in rows])
    slow_first, slow_each = (np.array([row[k] for row in rows], dtype=bool) for k in (1, 2))
    found = kept_minutes(arrival, slow_first, slow_each, range(first, first + count))
    for minute, kept in zip(range(first, first + count), found, strict=True):
        mine = [row for row in rows if minute * MINUTE_S <= row[0] < (minute + 1) * MINUTE_S]
        assert kept == all(100 * sum(row[k] for row in mine) <= len(mine) for k in (1, 2))


def test_of_a_hundred_requests_one_may_be_late_and_of_ninety_nine_none() -> None:
    for count, kept in ((99, False), (100, True)):
        slow = np.arange(count) == 0
        assert kept_minutes(np.zeros(count), slow, ~slow & False, range(1)).tolist() == [kept]


@given(st.integers(0, 5), st.integers(1, 3000), st.integers(1, 500), st.floats(0.1, 50))
@settings(max_examples=examples(30))
def test_more_requests_begin_with_the_same_and_another_rate_only_stretches_them(
    seed: int, count: int, more: int, rate: float
) -> None:
    few, many, fast = (MIX.requests(n, r, seed) for n, r in ((count, 1.0), (count + more, 1.0), (count, rate)))
    assert np.array_equal(few.prompt, many.prompt[:count]) and np.array_equal(few.output, many.output[:count])
    assert np.array_equal(few.arrival, many.arrival[:count])
    assert np.allclose(fast.arrival * rate, few.arrival) and np.array_equal(few.prompt, fast.prompt)
    during = MIX.during(float(few.arrival[-1]), 1.0, seed)
    assert (during.arrival < few.arrival[-1]).all() or len(during) == 1


@given(
    st.lists(st.integers(2, 30), unique=True, max_size=4),
    st.lists(st.floats(0.01, 100), min_size=5, max_size=5),
    st.floats(0, 500),
)
@example([26, 2, 3], [1.0, 1.0, 40.09278141700321, 1.0, 1.0], 0.0)
def test_a_curve_never_falls_and_needed_is_the_fewest_that_bear_a_rate(
    more: list[int], rates: list[float], rate: float
) -> None:
    numbers = (1, *sorted(more))
    curve = CapacityCurve(numbers, tuple(rates[: len(numbers)]))
    found = [curve.at(n) for n in range(80)]
    assert found[0] == 0 and all(a <= b for a, b in pairwise(found))
    for n, measured in zip(numbers, rates, strict=False):
        assert curve.at(n) >= measured - 1e-9
    needed = curve.needed(rate)
    assert curve.at(needed) >= rate and (needed == 0 or curve.at(needed - 1) < rate)


@pytest.mark.long
def test_the_capacity_keeps_the_objectives_and_more_replicas_or_more_patience_bear_more() -> None:
    alone = capacity(service(), 1, 1500)
    minutes = alone.trial.minutes
    again = trial(service(), MIX.during((minutes + 1) * MINUTE_S, alone.rate, 0), 1, minutes)
    assert again == alone.trial and again.kept == again.minutes >= 10
    beyond = MIX.during(11 * MINUTE_S, 1.5 * alone.rate, 0)
    assert trial(service(), beyond, 1, 10).kept < 10
    both, patient = capacity(service(), 2, 1500), capacity(service(ttft=4.0), 1, 1500)
    assert both.rate > alone.rate and patient.rate >= alone.rate * 0.98
    assert capacity_curve(service(), (1, 2), 1500).rates == (alone.rate, both.rate)


@given(st.integers(2, 4), st.floats(0.2, 6.0), st.sampled_from([0.0, 20.0, 90.0]), st.integers(0, 3), st.booleans())
@settings(max_examples=examples(24))
def test_nobody_is_lost_by_a_drain_and_whoever_was_not_begun_is_served_elsewhere(
    replicas: int, rate: float, seconds: float, seed: int, drain: bool
) -> None:
    found = removal(service(), replicas, rate, seconds, seed, drain=drain)
    assert 0 <= found.lost <= 32 and (found.lost == 0 or not drain)
    assert found.moved == 0 or not drain
    if drain and seconds == 0:
        assert found.late == 0 and found.delay_s == 0.0
    if not drain:  # who is lost leaves room to the others, so that fewer may be late
        assert found.drained_s == 0.0


@pytest.mark.long
def test_an_absence_costs_more_where_there_is_less_to_spare() -> None:
    most = capacity(service(), 3, 1500).rate
    idle, busy = (removal(service(), 3, part * most, 120.0) for part in (0.3, 0.95))
    assert idle.late == 0 < busy.late
    assert removal(service(), 3, 0.95 * most, 5.0).late < busy.late


def test_a_request_that_never_ends_is_late() -> None:
    served = service().serve(MIX.requests(3, 1.0, 0), 1)
    served.finish[1] = np.nan
    assert late(served, Objectives(1e9, 1e9))[1].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("capacity", "--ttft", "0.01"), "--ttft: expected an objective that a request alone on an engine"),
        (("capacity", "--tpot", "0.001"), "--tpot: expected an objective"),
        (("capacity", "--tpot", "0"), "tpot: expected a number of seconds above 0"),
        (("capacity", "--replicas", "1,x"), "--replicas: expected numbers separated by commas"),
        (("capacity", "--replicas", "0"), "--replicas: expected numbers from 1"),
        (("capacity", "--requests", "0"), "--requests: expected a number of requests from 1 on"),
        (("capacity", "--share", "2"), "--share: expected a share above 0"),
        (("capacity", "--mix", "nobody"), "mix: expected one of conversation"),
        (("capacity", "--router", "nobody"), "--router: expected one of"),
        (("capacity", "--burstiness", "0"), "--burstiness: expected"),
        (("removal", "--replicas", "1"), "--replicas: expected a number from 2"),
        (("removal", "--rate", "0"), "--rate: expected a number of requests a second above 0"),
        (("removal", "--seconds", "nan"), "--seconds: expected a number of seconds from 0 on"),
        (("removal", "--runs", "0"), "--runs: expected"),
        (("removal", "--router", "intelligent"), "--router: expected a router that holds back no requests"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in kant("serve", *words).refusal()


@pytest.mark.long
def test_the_commands_say_what_the_functions_find(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    kant("serve", "generate", "sharegpt", "--out", file, "--requests", "50")
    words = ("--mix", file, "--router", "shortest-queue", "--json")
    found = kant("serve", "capacity", "--replicas", "1,2", "--requests", "200", *words).json()
    assert [row["replicas"] for row in found["capacity"]] == [1, 2] and found["mix"] == "requests.csv"
    assert found["capacity"][1]["requests_per_s"] > found["capacity"][0]["requests_per_s"] > 0
    lost = kant("serve", "removal", "--replicas", "2", "--rate", "2", "--seconds", "10", "--kill", *words).json()
    assert len(lost["runs"]) == 4 and lost["mean"]["lost"] == sum(run["lost"] for run in lost["runs"]) / 4
    assert json.dumps(lost["objectives"]) == '{"ttft_s": 2.0, "tpot_s": 0.1}'


def test_a_mix_draws_the_lengths_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text("arrival_s,prompt,output\n0,7,3\n1,9,4\n")
    drawn = mix_named(str(file)).requests(100, 1.0, 0)
    assert set(zip(drawn.prompt.tolist(), drawn.output.tolist(), strict=True)) == {(7, 3), (9, 4)}
    assert isinstance(mix_named("sharegpt"), Mix)
