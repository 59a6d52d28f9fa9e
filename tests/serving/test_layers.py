"""An urgent prompt between two layers of a step: nobody's tokens change, and it waits for a layer at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.drawn import LATENCY, Case, cases
from tests.serving.test_engine import check

from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.layers import interrupt

Array = np.ndarray


def test_an_urgent_prompt_waits_for_a_layer_and_the_others_for_it() -> None:
    engine = Engine(EngineSettings(LATENCY, 100, 16, 4, 64, preemptive=True))
    for _ in range(4):
        engine.add(0.0, 16, 20, 1.0)
    engine.run(0.2)
    began, ends = engine.clock[c.CLOCK], engine.clock[c.END]
    now = began + 0.4 * (ends - began)
    r = engine.add(now, 32, 3, 0.0)
    assert interrupt(engine, r, now, 10)
    alone = LATENCY.step_ms(32, 0, 32 * 16) / 1e3
    assert engine.times[r, c.FIRST] == pytest.approx(began + 0.4 * (ends - began) + alone, abs=0.1 * (ends - began))
    assert engine.clock[c.END] == pytest.approx(ends + alone)
    assert engine.requests[:4, c.PREEMPTED].sum() == 1  # for the seat
    check(engine)
    engine.run()
    assert sorted(engine.take_ended()) == [0, 1, 2, 3, 4]


@given(cases(policy="priority", async_scheduling=False), st.booleans(), st.floats(0, 1))
def test_interruptions_keep_every_invariant_and_lose_nobody(case: Case, swap: bool, when: float) -> None:
    engine = Engine(replace(case.settings, preemptive=True, swap=swap and not any(case.settings.sliding_windows)))
    for request in case.requests:
        engine.run(request.arrival)
        now = request.arrival
        if engine.state[c.PLANNED]:  # somewhere in the step under way
            now = max(now, engine.clock[c.CLOCK] + when * (engine.clock[c.END] - engine.clock[c.CLOCK]))
        r = engine.add(now, request.prompt, request.output, float(-request.id), request.contents)
        if engine.state[c.PLANNED]:
            interrupt(engine, r, now, 8)
        check(engine)
    engine.run()
    assert sorted(engine.take_ended()) == list(range(len(case.requests)))
    assert engine.state[c.FREE] == engine.limits[c.USABLE]


class TinyMixture:
    """A transformer of three layers with four experts of which each token uses two, in NumPy."""

    def __init__(self, seed: int) -> None:
        draw = np.random.Generator(np.random.PCG64(seed))
        self.layers = [
            {
                "mix": draw.standard_normal((8, 8)) / 3,
                "gate": draw.standard_normal((8, 4)),
                "experts": draw.standard_normal((4, 8, 8)) / 3,
            }
            for _ in range(3)
        ]

    def layer(self, k: int, hidden: Array, cache: list[Array]) -> Array:
        """One layer of one token, after those in the cache of its sequence; the cache grows."""
        own = self.layers[k]
        cache.append(hidden)
        past = np.stack(cache)
        attention = np.exp(past @ own["mix"] @ hidden)
        hidden = hidden + attention @ past / attention.sum()
        gate = np.exp(hidden @ own["gate"])
        best = np.argsort(-gate, kind="stable")[:2]
        outputs = [np.tanh(hidden @ own["experts"][e]) * gate[e] / gate[best].sum() for e in best]
        return hidden + sum(outputs)

    def run(self, tokens: Array, caches: list[list[Array]], between: Callable[[int], None] = lambda k: None) -> Array:
        """All layers of one token of each sequence; `between` is called before each layer."""
        hidden = tokens.copy()
        for k in range(3):
            between(k)
            hidden = np.stack([self.layer(k, h, caches[s * 3 + k]) for s, h in enumerate(hidden)])
        return hidden


@given(st.integers(0, 100), st.integers(0, 2))
def test_a_mixture_of_experts_says_the_same_however_it_is_interrupted(seed: int, at: int) -> None:
    draw = np.random.Generator(np.random.PCG64(seed))
    model = TinyMixture(seed)
    batch, urgent = draw.standard_normal((2, 3, 8)), draw.standard_normal((2, 1, 8))
    alone = {"batch": [], "urgent": []}
    caches = {"batch": [[] for _ in range(9)], "urgent": [[] for _ in range(3)]}
    for step in range(2):
        alone["batch"].append(model.run(batch[step], caches["batch"]))
        alone["urgent"].append(model.run(urgent[step], caches["urgent"]))

    again: dict[str, list[Array]] = {"batch": [], "urgent": []}
    caches = {"batch": [[] for _ in range(9)], "urgent": [[] for _ in range(3)]}

    def prompt(k: int) -> None:
        if k == at:
            again["urgent"].append(model.run(urgent[len(again["urgent"])], caches["urgent"]))

    for step in range(2):
        again["batch"].append(model.run(batch[step], caches["batch"], prompt))
    for name in alone:
        assert np.array_equal(alone[name], again[name])
