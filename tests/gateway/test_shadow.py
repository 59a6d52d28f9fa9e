"""A shadow says what it would have done with the same engines, and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.examples import examples
from tests.gateway.engines import engines, well
from tests.gateway.rig import SETTINGS, dispatcher, routing

from kant.gateway.ask import read_ask
from kant.gateway.backend import Limits, Opinion, Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.record import Record
from kant.gateway.shadow import ShadowedDispatcher
from kant.serving.engine import EngineSettings
from kant.serving.policies import policy_named
from kant.serving.routers import router_named
from kant.serving.routers.prefix import PrefixAware

URLS = ("http://a", "http://b", "http://c")
RULES = st.sampled_from(["random", "two-choices", "least-tokens", "prefix", "program-affinity", "impact"])
STEPS = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 3), st.integers(0, 9)), max_size=14)
"""Of each request: its prompt, which of three others begins alike, and which earlier one ends before it comes."""


def shadowed(urls: Sequence[str], router: str, shadow: str, settings: EngineSettings = SETTINGS) -> ShadowedDispatcher:
    given_router, other = router_named(router), router_named(shadow)
    return ShadowedDispatcher(list(urls), settings, policy_named("fcfs"), given_router, Limits(), shadow=other)


def played(chosen: Dispatcher, steps: list[tuple[int, int, int]]) -> tuple[list[int], list[Opinion | None]]:
    """Where the requests went, and what the shadow said of each."""
    flying: list[Placement] = []
    where, said = [], []
    for k, (prompt, alike, ends) in enumerate(steps):
        body = json.dumps({"prompt": [alike] * prompt}).encode()
        placed = chosen.come(read_ask("/v1/completions", body), 10.0)
        if ends < len(flying):
            chosen.end(flying[ends], k)
        assert chosen.offer(placed) and placed.backend is not None
        flying.append(placed)
        where.append(placed.backend.number)
        said.append(placed.opinion)
    return where, said


@given(RULES, RULES, STEPS)
@settings(max_examples=examples(30))
def test_a_shadow_changes_no_decision(router: str, shadow: str, steps: list[tuple[int, int, int]]) -> None:
    alone, said = played(dispatcher(URLS, router=router), steps)
    assert said == [None] * len(steps)
    beside, opinions = played(shadowed(URLS, router, shadow), steps)
    assert beside == alone
    for number, opinion in zip(beside, opinions, strict=True):
        assert opinion is not None and opinion.agrees == (opinion.backend == number)
        assert opinion.later_s == 0.0 or not opinion.agrees


@given(STEPS)
@settings(max_examples=examples(30))
def test_it_goes_by_what_the_engines_have(steps: list[tuple[int, int, int]]) -> None:
    """Least tokens, counted here; a prompt behind fewer tokens of no more requests is expected earlier."""
    where, said = played(shadowed(URLS, "round-robin", "least-tokens"), steps)
    have = [dict[int, int]() for _ in URLS]
    for k, ((prompt, _, ends), number, opinion) in enumerate(zip(steps, where, said, strict=True)):
        if ends < k:
            have[where[ends]].pop(ends, None)
        tokens = [sum(each.values()) for each in have]
        assert opinion is not None and opinion.backend is not None
        assert tokens[opinion.backend] == min(tokens)
        if len(have[opinion.backend]) <= len(have[number]):
            assert opinion.later_s < 0.0 if tokens[number] > min(tokens) else opinion.later_s == 0.0
        have[number][k] = prompt


def test_a_prefix_that_only_the_shadow_knows_counts_until_its_engine_is_away() -> None:
    chosen = shadowed(URLS, "round-robin", "prefix", replace(SETTINGS, prefix_cache=True))
    _, said = played(chosen, [(300, 1, 9), (300, 1, 0), (300, 1, 1)])
    opinion = said[1]
    assert opinion is not None and opinion.backend == 0 and opinion.later_s < 0, "it is computed there already"
    assert isinstance(chosen.shadow, PrefixAware)
    blocks, _ = read_ask("/v1/completions", json.dumps({"prompt": [1] * 300}).encode()).blocks("", 4.0)
    assert chosen.shadow.index.match(blocks) == {0: 4, 1: 4, 2: 4}
    chosen.replace_backends({"http://b": True, "http://c": True})
    assert chosen.shadow.index.match(blocks) == {1: 4, 2: 4}, "it has left"
    chosen.unreachable(chosen.backends[0])
    assert chosen.shadow.index.match(blocks) == {2: 4}, "it may come back with an empty cache"


def test_the_first_decision_about_a_request_counts() -> None:
    chosen = shadowed(URLS, "round-robin", "random")
    placed = chosen.come(read_ask("/v1/completions", b'{"prompt": [1]}'), 10.0)
    assert chosen.offer(placed)
    first = placed.opinion
    chosen.take_back(placed)
    assert chosen.offer(placed) and placed.opinion is first is not None


def test_metrics_and_the_record_say_how_often_it_agrees(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"

    async def run() -> str:
        async with engines(well, well) as (_, urls), aiohttp.ClientSession() as session:
            record = Record(path, "round-robin", "fcfs", "shortest-queue")
            chosen = shadowed(urls, "round-robin", "shortest-queue")
            async with routing(chosen, record=record) as (_, url):
                for _ in range(4):
                    async with session.post(url + "/v1/completions", json={"prompt": [1] * 9}) as answer:
                        assert answer.status == 200
                async with session.get(url + "/metrics") as answer:
                    return await answer.text()

    text = asyncio.run(run())
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    agrees = [line["shadow_agrees"] for line in lines]
    assert agrees == [line["shadow_backend"] == line["backend"] for line in lines] and len(lines) == 4
    for decision, count in (("same", sum(agrees)), ("other", 4 - sum(agrees))):
        assert f'kant_router_shadow_total{{decision="{decision}"}} {float(count)}' in text or not count
    told = kant("serve", "whatif", path, "--slices", "1", "--json").json()["shadow"]
    assert told == {"router": "shortest-queue", "requests": 4, "agrees": sum(agrees), "held": 0, "later_s": 0.0}
    said = kant("serve", "whatif", path, "--slices", "1").out
    assert f"shadow shortest-queue: the same decision for {sum(agrees) / 4:.1%} of 4 requests" in said


@pytest.mark.parametrize("verb, more, said", [
    ("route", "psychic", "--shadow: expected one of"), ("pick", "prefix", "--shadow: expected --otlp as well"),
    ("route", "block", "--shadow: expected a router that decides at once"),
])  # fmt: skip
def test_a_shadow_that_nobody_knows_or_hears_is_refused(verb: str, more: str, said: str) -> None:
    assert said in kant("serve", verb, "--backends", "http://a:1", "--shadow", more).refusal()
