"""Clients in a closed loop, and those that give up: everybody is answered in time, however often he asks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.studies.clients import ClosedLoop
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.serving.drawn import Case, cases
from tests.serving.test_fleet import columns_of, complete

from kant.model.errors import InputError
from kant.serving.clients import Patience
from kant.serving.fleet import simulate
from kant.serving.policies import policy_named
from kant.serving.summary import Served


def served_with(
    case: Case, engines: int, policy: str, clients: int, ttft_s: float, gap_s: float, begun: bool = True
) -> tuple[Served, ClosedLoop]:
    requests = columns_of(case)
    loop = ClosedLoop(len(requests), clients, most=50)
    patience = Patience(ttft_s, gap_s, loop.again, begun)
    served = simulate(
        requests, case.settings, engines, policy_named(policy), after=loop.after, begin=loop.begin, patience=patience
    )
    return served, loop


@given(
    cases(policy="fcfs"), st.integers(1, 2), st.sampled_from(["fcfs", "past-future", "conservative"]),
    st.integers(1, 6), st.booleans(), st.sampled_from([1.0, 1.5, 4.0]),
)  # fmt: skip
@settings(max_examples=examples(50))
def test_who_gives_up_asks_again_until_he_is_answered_in_time(
    case: Case, engines: int, policy: str, clients: int, begun: bool, times: float
) -> None:
    alone, _ = served_with(case, 1, "fcfs", 1, math.inf, math.inf)
    ttft_s = times * float((alone.first - alone.requests.arrival).max())  # in time for each of them, if it is alone
    gap_s = times * float(alone.gap.max()) + 1e-6
    try:
        served, loop = served_with(case, engines, policy, clients, ttft_s, gap_s, begun)
    except InputError:  # they are in each other's way for ever
        assume(False)
    complete(served)
    assert (served.first - served.requests.arrival <= ttft_s).all() and (served.gap <= gap_s).all()
    event("some gave up" if max(loop.sent) > 1 else "nobody gave up")


@given(cases(policy="fcfs"), st.integers(1, 2), st.integers(1, 6))
@settings(max_examples=examples(20))
def test_the_patient_are_served_as_if_there_were_no_patience(case: Case, engines: int, clients: int) -> None:
    patient, loop = served_with(case, engines, "fcfs", clients, math.inf, math.inf)
    other = ClosedLoop(len(patient.requests), clients)
    served = simulate(columns_of(case), case.settings, engines, after=other.after, begin=other.begin)
    assert np.array_equal(patient.finish, served.finish) and set(loop.sent) == {1}
    complete(served)


@given(cases(policy="fcfs"), st.integers(1, 5))
@settings(max_examples=examples(20))
def test_no_more_are_there_at_once_than_there_are_clients(case: Case, clients: int) -> None:
    served, _ = served_with(case, 1, "fcfs", clients, math.inf, math.inf)
    begin, end = np.sort(served.requests.arrival), np.sort(served.finish)
    there = np.searchsorted(begin, begin, side="right") - np.searchsorted(end, begin, side="right")
    assert there.max() <= clients


def test_what_can_never_be_in_time_is_refused_in_a_sentence() -> None:
    loop = ClosedLoop(2, 1, most=5)
    with pytest.raises(InputError, match="answered in time once in 5"):
        for _ in range(5):
            loop.again(1)
