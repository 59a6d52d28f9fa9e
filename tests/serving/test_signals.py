"""What a policy or router goes by is said, and is what it goes by."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import kant

from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.latency import latency_model
from kant.serving.policies import POLICIES, policy_named
from kant.serving.requests import Requests
from kant.serving.routers import ROUTERS, router_named
from kant.serving.signals import said
from kant.serving.summary import digest

SETTINGS = EngineSettings(latency_model("llama-3-8b", "a100")[0], 400, max_num_seqs=8, prefix_cache=True)


def drawn() -> Requests:
    """Requests with every signal, on engines that are short of seats and blocks."""
    draw, count = np.random.default_rng(3), 90
    output = draw.integers(1, 300, count)
    prompt = np.where(draw.random(count) < 0.3, 2100, draw.integers(160, 400, count))
    group = draw.integers(0, 8, count)
    return Requests(
        "drawn", np.cumsum(draw.exponential(0.02, count)), prompt, output, draw.integers(0, 3, count).astype(float),
        output * draw.choice([0.5, 2.0], count), draw.integers(0, 6, count), group, np.full(count, 130),
    )  # fmt: skip


def changed(requests: Requests, signal: str) -> Requests:
    if signal == "program":
        return replace(requests, program=np.arange(len(requests)))
    return replace(requests, **{signal: getattr(requests, signal)[::-1].copy()})


PARTS = [*((name, "least-tokens") for name in POLICIES), *(("fcfs", name) for name in ROUTERS)]


@pytest.mark.long
@pytest.mark.parametrize(("policy", "router"), PARTS)
def test_a_part_goes_by_the_signals_that_it_declares_and_no_others(policy: str, router: str) -> None:
    requests = drawn()
    declared = {*policy_named(policy).signals, *router_named(router).signals} - {"prefix", "ended"}

    def run(of: Requests) -> str:
        return digest(simulate(of, SETTINGS, 3, policy_named(policy), router_named(router)))

    first = run(requests)
    assert {name for name in ("predicted", "priority", "program") if run(changed(requests, name)) != first} == declared


def test_an_oracle_and_an_unused_signal_are_said(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,output,priority\n0,50,4,0\n0.1,50,9,1\n")
    done = kant("serve", "compare", str(path), "--policy", "fcfs", "--policy", "srpt", "--engines", "1")
    assert "srpt uses the true outputs as an oracle, as the requests have no prediction" in done.out
    assert "neither fcfs nor least-tokens uses the requests' priority" in done.out
    path.write_text("arrival_s,prompt,output,predicted\n0,50,4,5\n0.1,50,8,10\n")
    found = kant("serve", "simulate", str(path), "--policy", "past-future", "--router", "block", "--json").json()
    assert found["signals"] == [
        "past-future predicts from the outputs of the requests that have ended",
        "block uses the requests' own predictions, on average 25% off",
    ]


def test_what_the_requests_lack_is_said() -> None:
    plain = Requests("plain", np.zeros(2), np.full(2, 9), np.full(2, 9))
    parts = {"plas": policy_named("plas"), "prefix": router_named("prefix")}
    assert said(plain, True, parts) == [
        "plas uses programs, but no request has one",
        "prefix uses prefixes, but no two requests share one",
        "prefix uses programs, but no request has one",
    ]
    parts = {"fcfs": policy_named("fcfs"), "random": router_named("random")}
    shared = replace(plain, group=np.zeros(2, dtype=np.int64), prefix=np.full(2, 4))
    assert said(shared, True, parts) == []
    assert said(shared, False, parts) == ["neither fcfs nor random uses the requests' prefix"]


def test_a_forecast_of_an_engine_with_limited_admissions_ends() -> None:
    requests = drawn()
    served = simulate(requests, SETTINGS, 2, policy_named("past-future"), router_named("block"))
    assert not np.isnan(served.finish).any()
