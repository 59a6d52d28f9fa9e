"""What a router before real engines sees: as much as it needs to decide as if it saw everything."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.serving.drawn import LATENCY, Case, cases
from tests.serving.test_fleet import columns_of, complete

from kant.serving import columns as c
from kant.serving.columns import FOREVER
from kant.serving.engine import Engine, EngineSettings
from kant.serving.fleet import simulate
from kant.serving.routers import ROUTERS, router_named
from kant.serving.routers.dodoor import Dodoor
from kant.serving.routers.least_tokens import LeastTokens
from kant.serving.routing import HOLD, Draw, Incoming, Router
from kant.serving.site import EngineSite, ObservedSite, Sites

COUNTS = ("round-robin", "random", "two-choices", "shortest-queue", "least-tokens", "program-affinity")


@pytest.mark.parametrize("name", ROUTERS)
@given(case=cases(policy="fcfs"), engines=st.integers(1, 4), seed=st.integers(0, 9))
@settings(max_examples=examples(16))
def test_whoever_counts_requests_and_tokens_decides_alike_from_outside(
    name: str, case: Case, engines: int, seed: int
) -> None:
    requests = columns_of(case)
    inside, outside = (
        simulate(requests, case.settings, engines, router=router_named(name), seed=seed, observed=observed)
        for observed in (False, True)
    )
    complete(outside)
    if name in COUNTS:
        assert np.array_equal(inside.engine, outside.engine)


@given(cases(policy="fcfs", prefix_cache=False), st.floats(0, 2))
def test_a_twin_of_what_was_observed_has_what_the_engine_has(case: Case, more: float) -> None:
    """Tokens and requests are those of the engine, and all of them end in the twin."""
    engine, site = Engine(case.settings), ObservedSite(case.settings)
    for i, request in enumerate(case.requests):
        engine.run(request.arrival)
        engine.add(request.arrival, request.prompt, request.output)
        site.send(i, request.prompt, request.output)
    engine.run(case.requests[-1].arrival + more)
    for i in range(len(case.requests)):
        if engine.requests[i, c.STATE] == c.FINISHED:
            site.end(i)
        else:
            site.said(i, int(engine.requests[i, c.DONE]))
    exact = EngineSite(engine, lambda: engine.requests[:, c.OUTPUT].astype(np.float64))
    assert (site.requests, site.tokens()) == (exact.requests, exact.tokens())
    seen, known = (sorted(zip(*(column.tolist() for column in s.loads()), strict=True)) for s in (site, exact))
    assert seen == known
    twin, _ = site.twin(0.0)
    twin.run()
    assert (twin.requests[: twin.count, c.STATE] == c.FINISHED).all()
    assert twin.requests[: twin.count, c.OUTPUT].sum() == site.loads()[2].sum()


@given(cases(policy="fcfs"), st.lists(st.tuples(st.integers(0, 13), st.floats(0, 1)), max_size=8))
def test_who_is_withdrawn_leaves_nothing_behind(case: Case, gone: list[tuple[int, float]]) -> None:
    engine = Engine(case.settings)
    for request in case.requests:
        engine.run(request.arrival)
        engine.add(request.arrival, request.prompt, request.output, contents=request.contents)
    for i, later in gone:
        engine.run(engine.now + later)
        while not engine.withdraw(i % engine.count):
            engine.run(engine.next_event, steps=0)
    engine.run()
    assert engine.next_event == FOREVER
    assert engine.state[c.FREE] == case.settings.num_blocks - 1
    assert set(engine.requests[: engine.count, c.STATE].tolist()) <= {c.FINISHED, c.WITHDRAWN}


class Cautious(Router):
    """Sends nothing to an engine that has a request; holds otherwise."""

    holds = True

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        k = LeastTokens().choose(request, sites, draw)
        return HOLD if sites[k].requests else k


@given(cases(policy="fcfs"), st.integers(1, 3), st.booleans(), st.booleans())
@settings(max_examples=examples(30))
def test_who_is_held_is_served_in_order(case: Case, engines: int, observed: bool, released: bool) -> None:
    requests = columns_of(case)
    follow = (lambda i, now: [(now, i + 1)] if i + 1 < len(requests) else []) if released else None
    begin = [0] if released else None
    served = simulate(requests, case.settings, engines, router=Cautious(), after=follow, begin=begin, observed=observed)
    complete(served)
    for k in range(engines):
        mine = np.flatnonzero(served.engine == k)
        assert (served.first[mine][1:] > served.finish[mine][:-1]).all()  # one at a time


LOADS = st.tuples(st.integers(0, 12), st.integers(0, 900), st.integers(0, 900))


@given(st.lists(st.tuples(LOADS, LOADS), min_size=1, max_size=4), st.integers(1, 300))
@settings(max_examples=examples(100))
def test_dodoor_takes_the_lower_of_two_scores_whoever_has_sent_the_load(
    drawn: list[tuple[tuple[int, int, int], tuple[int, int, int]]], prompt: int
) -> None:
    """Half the share of r L / C^2 over all resources, and half that of durations (arXiv 2510.12889)."""
    options = EngineSettings(LATENCY, 61, 16, 12)
    sites, loads, pending = [], [], []
    for k, ((own, tokens, _), others) in enumerate(drawn):
        site = ObservedSite(options, k)
        for key in range(own):
            site.send(key, 1 + tokens, 1.0)
        site.beside(*others)
        sites.append(site)
        mine = own * (1 + tokens)
        loads.append(Fraction(prompt * (mine + others[1]), 960**2) + Fraction(own + others[0], 12**2))
        pending.append(Fraction(mine + others[2]))

    def score(values: list[Fraction], k: int, other: int) -> Fraction:
        return values[k] / (values[k] + values[other]) if values[k] + values[other] else Fraction(1, 2)

    pair = np.random.Generator(np.random.PCG64(prompt)).permutation(len(sites))[:2].tolist()
    first, second = pair[0], pair[-1]
    by = score(loads, first, second) + score(pending, first, second) - 1
    chosen = Dodoor().choose(Incoming(0.0, prompt, 1.0, -1), Sites(sites), np.random.Generator(np.random.PCG64(prompt)))
    assert chosen == (second if by > 0 else first) or abs(by) < 1e-9
