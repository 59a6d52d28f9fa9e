"""Shortest first with a bound: nobody goes before who came so many seconds earlier."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.drawn import Case, cases
from tests.serving.test_fleet import columns_of, complete

from kant.serving.engine import Engine, EngineSettings
from kant.serving.fleet import simulate
from kant.serving.latency import latency_model
from kant.serving.policies import policy_named
from kant.serving.policies.ranked import Ranked
from kant.serving.policies.ranked_bounded import RankedBounded
from kant.serving.policy import Job

BOOK = Engine(EngineSettings(latency_model("llama-3-8b", "a100")[0], 10))
TOKENS = st.floats(-1e6, 1e6) | st.floats(0, 600)
TIMES = st.floats(0, 1e6)


def priority(policy: Ranked, predicted: float, now: float) -> float:
    return policy.arrived(BOOK, Job(10, predicted, 0.0, -1, now), 0)


@given(TOKENS, TOKENS, TIMES, TIMES, st.floats(0.1, 1e4), st.floats(1, 4096))
def test_nobody_goes_before_who_came_longer_ago_than_the_bound(
    first: float, second: float, now: float, later: float, bound_s: float, longest: float
) -> None:
    policy = RankedBounded(bound_s, longest)
    slack = 1e-9 * longest * (now + later) / bound_s
    assert priority(policy, first, now) <= priority(policy, second, now + later + bound_s) + slack


@given(TOKENS, TOKENS, TIMES)
def test_who_comes_at_once_is_ordered_by_the_prediction_and_who_is_predicted_alike_by_arrival(
    first: float, second: float, now: float
) -> None:
    policy = RankedBounded()
    clipped = [min(max(tokens, 0.0), policy.longest) for tokens in (first, second)]
    assert (priority(policy, first, now) <= priority(policy, second, now)) >= (clipped[0] <= clipped[1])
    assert priority(policy, first, now) <= priority(policy, first, now + 1)


@given(cases(policy="fcfs"), st.integers(1, 2), st.sampled_from([0.05, 0.5, 5.0]))
def test_on_an_engine_the_bound_orders_first_tokens_unless_blocks_run_out(
    case: Case, engines: int, bound_s: float
) -> None:
    requests = columns_of(case)
    made: Callable[[], RankedBounded] = lambda: RankedBounded(bound_s, 64.0)  # noqa: E731
    served = simulate(requests, case.settings, engines, made())
    complete(served)
    if engines > 1 or served.preempted.any() or case.settings.max_num_batched_tokens < int(requests.prompt.max()):
        return  # who lost his blocks, or whose prompt takes several steps, may be passed
    order = np.argsort(served.first, kind="stable")
    came = served.requests.arrival[order]
    assert (np.maximum.accumulate(came) - came).max() <= bound_s + 1e-9


@pytest.mark.parametrize("name", ["ranked", "ranked-bounded"])
def test_it_has_a_name(name: str) -> None:
    assert isinstance(policy_named(name), Ranked)
