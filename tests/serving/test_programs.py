"""Programs call one call after the other, and who has had least goes first."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from benchmarks.studies.programs import KINDS, WIDTH, Programs, draw_programs
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.model.errors import InputError
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.latency import latency_model
from kant.serving.policies import policy_named
from kant.serving.summary import Served


def served_by(name: str, programs: Programs, cache: bool = True, engines: int = 1, pause_s: float = 0.0) -> Served:
    engine = EngineSettings(latency_model("llama-3-8b", "a100")[0], 25_225, 16, 64, 2048, prefix_cache=cache, swap=True)
    return simulate(
        programs.requests, engine, engines, policy_named(name), after=programs.after(pause_s), begin=programs.begin()
    )


@given(
    st.sampled_from(KINDS), st.sampled_from(["fcfs", "plas", "atlas", "mlfq"]), st.integers(0, 50), st.integers(1, 2)
)
@settings(max_examples=examples(20))
def test_a_call_waits_for_the_answers_before_it(kind: str, policy: str, seed: int, engines: int) -> None:
    programs = draw_programs((kind,), 4, 2.0, seed)
    served = served_by(policy, programs, engines=engines, pause_s=0.5)
    assert not np.isnan(served.finish).any()
    for program in programs.programs:
        came, went = served.requests.arrival[list(program.calls)], served.finish[list(program.calls)]
        for k in range(program.width, len(came)):
            assert came[k] >= np.sort(went)[k - program.width] + 0.5  # so many answers were there
        under_way = [(came <= t).sum() - (went <= t).sum() for t in came]
        assert max(under_way) <= (WIDTH if kind == "search" else 1)
    assert all(programs.over(p) for p in range(4))


def test_a_chain_finds_all_that_was_said_before_in_the_cache() -> None:
    programs = draw_programs(("conversation",), 12, 0.2, 3)
    served = served_by("fcfs", programs)
    for program in programs.programs:
        calls = list(program.calls)
        for before, call in pairwise(calls):
            said = int(served.requests.prompt[before] + served.requests.output[before])
            if served.requests.prompt[call] > said:  # not cut at the longest prompt
                assert served.cached[call] >= (said - 1) // 16 * 16 > 0


@pytest.mark.long
def test_on_the_published_mix_programs_order_calls_better_than_arrivals_and_calls_worse() -> None:
    """Autellix: PLAS far below first come with a prefix cache, which is far below none; MLFQ above first come."""
    found = {}
    for name, cache in (("fcfs", True), ("fcfs", False), ("plas", True), ("mlfq", True)):
        programs = draw_programs(KINDS, 60, 1.0, 0)
        found[name, cache] = programs.latency_per_token(served_by(name, programs, cache)).mean()
    assert found["plas", True] < found["fcfs", True] / 1.2
    assert found["fcfs", True] < found["fcfs", False] / 3
    assert found["mlfq", True] > found["fcfs", True]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="kind of program: expected one of conversation, agent, search"):
        draw_programs(("poem",), 1, 1.0, 0)
