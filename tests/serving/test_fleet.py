"""Engines side by side: nobody is lost, whoever routes and whoever goes first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.serving.drawn import Case, cases, engine_of

from kant.serving import columns as c
from kant.serving.engine import NO_LIMIT, Engine, EngineSettings
from kant.serving.fleet import settings_under, simulate
from kant.serving.generate import generate
from kant.serving.latency import latency_model
from kant.serving.policies import POLICIES, policy_named
from kant.serving.requests import Requests
from kant.serving.routers import ROUTERS, router_named
from kant.serving.routers.block import Block
from kant.serving.routing import Incoming
from kant.serving.site import EngineSite
from kant.serving.summary import Objectives, Served, summarise


def columns_of(case: Case) -> Requests:
    block = case.settings.block_size
    return Requests(
        "drawn",
        np.array([request.arrival for request in case.requests]),
        np.array([request.prompt for request in case.requests]),
        np.array([request.output for request in case.requests]),
        priority=np.array([request.priority for request in case.requests], dtype=np.float64),
        group=np.array([request.contents[0] // 1000 if request.contents else -1 for request in case.requests]),
        prefix=np.array([len(request.contents) * block for request in case.requests]),
    )


def complete(served: Served) -> None:
    """Every request was served once, in time, and the tokens of the outputs are those that were asked for."""
    assert not np.isnan(served.finish).any()
    assert (served.requests.arrival < served.first).all()
    assert (served.first <= served.finish).all()
    assert ((served.gap > 0) == (served.requests.output > 1)).all()


@given(cases(policy="fcfs"))
def test_one_engine_alone_is_the_engine(case: Case) -> None:
    for request in case.requests:
        request.most = NO_LIMIT  # a simulated request ends at a stop token
    served, engine = simulate(columns_of(case), case.settings), engine_of(case)
    assert np.array_equal(served.first, engine.times[: engine.count, c.FIRST])
    assert np.array_equal(served.finish, engine.times[: engine.count, c.FINISH])
    assert np.array_equal(served.cached, engine.requests[: engine.count, c.CACHED])


@pytest.mark.parametrize("name", POLICIES)
@given(case=cases(policy="fcfs"), engines=st.integers(1, 3), released=st.booleans())
@settings(max_examples=examples(16))
def test_under_every_policy_everybody_is_served(name: str, case: Case, engines: int, released: bool) -> None:
    requests = columns_of(case)
    follow = (lambda i, now: [(now, i + 1)] if i + 1 < len(requests) else []) if released else None
    served = simulate(
        requests, case.settings, engines, policy_named(name), after=follow, begin=[0] if released else None
    )
    complete(served)
    assert len(served.requests) == len(case.requests)


@pytest.mark.parametrize("name", ROUTERS)
@given(case=cases(policy="fcfs"), engines=st.integers(1, 4), seed=st.integers(0, 9))
@settings(max_examples=examples(16))
def test_under_every_router_everybody_is_served_and_a_seed_says_all(
    name: str, case: Case, engines: int, seed: int
) -> None:
    runs = [simulate(columns_of(case), case.settings, engines, router=router_named(name), seed=seed) for _ in range(2)]
    complete(runs[0])
    assert ((runs[0].engine >= 0) & (runs[0].engine < engines)).all()
    digests = {summarise(run, Objectives())["digest"] for run in runs}
    assert len(digests) == 1


@given(case=cases(policy="fcfs"))
def test_requests_that_release_each_other_run_one_by_one(case: Case) -> None:
    """A chain on an idle engine: each is served as if it were alone, from the end of the one before."""
    requests = columns_of(case)
    served = simulate(
        requests, case.settings, 2, after=lambda i, now: [(now, i + 1)] if i + 1 < len(requests) else [], begin=[0]
    )
    assert (served.requests.arrival[1:] == served.finish[:-1]).all()


def test_a_prediction_by_block_is_what_happens_when_nobody_else_comes() -> None:
    """The fork of an engine with the true outputs is the engine itself."""
    requests = generate("sharegpt", 60, 40.0, 3)
    engine_settings = EngineSettings(latency_model("llama-2-7b", "a30")[0], 200, max_num_seqs=8)
    engine = Engine(engine_settings)
    for i in range(len(requests)):
        engine.run(requests.arrival[i])
        engine.add(requests.arrival[i], int(requests.prompt[i]), int(requests.output[i]))
    now = float(requests.arrival[-1]) + 9
    engine.run(now)
    assert engine.state[c.WAITS] > 5 and engine.state[c.PREEMPTIONS] > 0
    site = EngineSite(engine, lambda: requests.output.astype(np.float64))
    said, _ = Block().predict(Incoming(now, 300, 50, -1), site)
    r = engine.add(now, 300, 50)
    engine.run()
    assert said == engine.times[r, c.FIRST]


def test_the_summary_counts_what_it_says() -> None:
    requests = Requests("two", np.array([0.0, 0.0]), np.array([16, 16]), np.array([3, 1]))
    latency = latency_model("llama-3-8b", "a100")[0]
    served = simulate(requests, EngineSettings(latency, 100, max_num_seqs=1))
    first = latency.step_ms(16, 0, 16 * 8) / 1e3
    second = first + latency.step_ms(1, 17) / 1e3
    third = second + latency.step_ms(1, 18) / 1e3
    assert served.first.tolist() == pytest.approx([first, third + first])
    found = summarise(served, Objectives(ttft_s=third, tpot_s=0.1))
    assert found["ttft_s"]["mean"] == pytest.approx((first + third + first) / 2)
    assert found["tpot_s"]["mean"] == pytest.approx((third - first) / 2)
    assert found["e2e_s"]["p50"] == pytest.approx((third + third + first) / 2)
    assert found["normalised_latency_s_per_token"]["mean"] == pytest.approx((third / 3 + third + first) / 2)
    assert found["goodput"]["share"] == 0.5
    assert found["throughput"]["output_tokens_per_s"] == pytest.approx(4 / (third + first))
    assert found["max_gap_s"] == pytest.approx(third - second)
    assert found["preemptions"] == 0 and found["engine_steps"] == 4


def test_least_tokens_balances_what_round_robin_does_not() -> None:
    """Every other request is long: round robin sends all of them to one of two engines."""
    count = 60
    prompt = np.where(np.arange(count) % 2 == 0, 4000, 20)
    requests = Requests("odd", np.arange(count) * 0.05, prompt, np.full(count, 50))
    engine_settings = EngineSettings(latency_model("llama-2-7b", "a100")[0], 6000)
    means = {}
    for name in ("round-robin", "least-tokens", "block"):
        served = simulate(requests, engine_settings, 2, router=router_named(name))
        means[name] = summarise(served, Objectives())["ttft_s"]["mean"]
    assert means["least-tokens"] < 0.8 * means["round-robin"]
    assert means["block"] < 0.8 * means["round-robin"]


def test_a_policy_that_acts_within_a_step_has_steps_planned_one_by_one() -> None:
    ahead = EngineSettings(latency_model("llama-2-7b", "a30")[0], 200, async_scheduling=True)
    assert settings_under(ahead, policy_named("mlfq")).async_scheduling
    assert not settings_under(ahead, policy_named("layered-priority")).async_scheduling
