"""The estimates of a router against the latency model's own steps, and against plain lists."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from kant.serving.engine import EngineSettings
from kant.serving.first_token import prefix_costs, with_room
from kant.serving.latency import latency_model
from kant.serving.routers.prefix import first_token_ms
from kant.serving.site import LoadTable, ObservedSite, Sites

LATENCY = replace(latency_model("llama-3-8b", "a100")[0], experts=0.0)
SETTINGS = EngineSettings(LATENCY, 4001, max_num_batched_tokens=512)
LOADS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20_000), st.integers(0, 900)), min_size=1, max_size=5)
"""Of each engine: its requests, the prompt of each, and the tokens of other clients."""


def sites_of(loads: list[tuple[int, int, int]]) -> tuple[list[ObservedSite], LoadTable]:
    table = LoadTable(8)
    sites = [ObservedSite(SETTINGS, 7 + k, table) for k in range(len(loads))]
    for site, (requests, prompt, others) in zip(sites, loads, strict=True):
        for key in range(requests):
            site.send(key, prompt, 10.0)
        site.beside(int(others > 0), others)
    return sites, table


@given(st.integers(1, 6), st.integers(0, 5), st.integers(0, 200))
def test_a_first_token_takes_as_long_as_the_steps_that_it_needs(steps: int, pending: int, decoding: int) -> None:
    """Steps that are full: those of the requests before it, then its own, beside requests that decode."""
    (site,), _ = sites_of([(0, 1, 0)])
    for key in range(decoding):
        site.send(key, 1000, 10.0)
        site.said(key, 1)
    room = SETTINGS.max_num_batched_tokens - decoding - (pending > 0)
    if pending:
        site.send(99, pending * room, 10.0)
    prompt = steps * room
    own = LATENCY.context * prompt * prompt / 2
    each = LATENCY.step_ms(room, decode=site.tokens())
    found = first_token_ms(Sites([site]), 0.0, prompt, float(prompt))[0]
    assert math.isclose(found, (steps + pending) * each + own)


@given(LOADS, st.integers(1, 9000), st.integers(1, 4), st.sampled_from([math.inf, 50.0, 500.0]))
@example([(1, 60_000, 0)], 4000, 2, 1e6)  # the KV is full to the last token
@example([(0, 1, 63_000), (1, 1, 63_000)], 4000, 2, 1e6)  # who has no request gets one
def test_room_is_where_few_requests_are_and_the_prompt_fits_in_time(
    loads: list[tuple[int, int, int]], prompt: int, in_flight: int, most_ms: float
) -> None:
    sites, table = sites_of(loads)
    sites = sites[::-1]
    rows, out = np.array([site.row for site in sites], dtype=np.int64), np.zeros(8, dtype=np.int64)
    first = first_token_ms(Sites(sites), 0.0, prompt, float(prompt))
    count = with_room(
        table.array, rows, in_flight, most_ms, LATENCY.row(), SETTINGS.max_num_batched_tokens, prompt, out
    )
    assert out[:count].tolist() == [
        k
        for k, (site, ms) in enumerate(zip(sites, first.tolist(), strict=True))
        if len(site.live) < in_flight
        and (most_ms == math.inf or not site.live or (ms <= most_ms and site.tokens() + prompt <= SETTINGS.tokens))
    ]


@given(LOADS, st.integers(1, 9000), st.lists(st.integers(0, 30), min_size=5, max_size=5), st.integers(0, 1))
def test_the_cost_with_a_prefix_is_the_wait_and_what_is_computed_times_the_requests(
    loads: list[tuple[int, int, int]], prompt: int, had: list[int], adapter: int
) -> None:
    """The rows of the table, in any order, and the same engines that are asked one by one, cost the same."""
    sites, table = sites_of(loads)
    sites = sites[::-1]
    rows = np.array([site.row for site in sites], dtype=np.int64)
    blocks = np.array(had[: len(sites)])
    expected = []
    for site, n in zip(sites, blocks.tolist(), strict=True):
        cached = min(max(n - adapter, 0) * 64, prompt - 1)
        wait = float(first_token_ms(Sites([site]), 0.0, prompt, float(prompt - cached))[0])
        cost = wait + LATENCY.slope * (prompt - cached) + (100.0 if adapter and n == 0 else 0.0)
        expected.append(cost * (site.requests + 24))
    for seen in (Sites(sites), Sites(sites, table, rows)):
        out = np.zeros(len(sites))
        late = seen.under_way_ms(0.0)
        row, budget = LATENCY.row(), SETTINGS.max_num_batched_tokens
        prefix_costs(*seen.loads(), late, blocks, 64.0, adapter, 100.0, 24, row, budget, prompt, out)
        assert np.allclose(out, expected, rtol=1e-12)
        assert seen.tokens.tolist() == [site.tokens() for site in sites]
        assert seen.requests.tolist() == [site.requests for site in sites]
        assert seen.pending.tolist() == [site.pending_prefill() for site in sites]


SAID = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 90), st.integers(1, 900), st.integers(0, 300)), max_size=150
)


@given(SAID, st.integers(1, 900))
@example([(0, 0, 5, 0), (0, 1, 6, 0), (0, 2, 7, 0), (0, 0, 1, 0), (0, 2, 1, 0)], 9)  # one that was moved ends
def test_requests_are_summed_up_by_engine_however_they_came_and_went(
    said: list[tuple[int, int, int, int]], heavy: int
) -> None:
    """Each step is a request of an engine: one that is there ends, else it comes; the table grows and closes gaps."""
    table = LoadTable(8)
    sites, there = (
        [ObservedSite(SETTINGS, k, table) for k in range(4)],
        [dict[int, tuple[int, float, int]]() for _ in "1234"],
    )
    for engine, key, prompt, done in said:
        if key in there[engine]:
            del there[engine][key]
            sites[engine].end(key)
            continue
        predicted = float(prompt * 7 % 900)
        sites[engine].send(key, prompt, predicted)
        sites[engine].said(key, done)
        there[engine][key] = prompt, predicted, done
    expected = []
    for k in (2, 0, 3):
        rest = [max(predicted - done, 10.0) for _, predicted, done in there[k].values()]
        long = sum(predicted >= heavy for _, predicted, _ in there[k].values())
        have = sum(prompt + done for prompt, _, done in there[k].values())
        expected.append([len(rest), long, have, sum(rest), min(rest, default=math.inf)])
    seen = [sites[k] for k in (2, 0, 3)]
    rows = np.array([site.row for site in seen], dtype=np.int64)
    for found in (Sites(seen), Sites(seen, table, rows), Sites(seen, table, rows)):
        assert found.sums(float(heavy)).tolist() == expected
