"""The prefix index against a plain one of sets and lists, and the router that reads it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.generate import arrivals, lognormal
from kant.serving.latency import latency_model
from kant.serving.prefix_index import BLOCK_TOKENS, BYTES, PrefixIndex, chain
from kant.serving.requests import Requests
from kant.serving.routers import router_named
from kant.serving.routers.prefix import PrefixAware
from kant.serving.routing import Incoming, decide
from kant.serving.site import ObservedSite

SETTINGS = EngineSettings(latency_model("llama-3-8b", "a100")[0], 4001, prefix_cache=True)
DRAW = np.random.Generator(np.random.PCG64(0))
PROMPTS = st.lists(st.integers(0, 1), max_size=4)
"""A prompt is a list of blocks; two of them begin alike as far as the lists do."""

EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "remove", "forget"]), st.integers(0, 1), PROMPTS), max_size=30
)


class Plain:
    """Each engine's blocks as whole beginnings of prompts, in a list, the most recently used last."""

    def __init__(self, most: int) -> None:
        self.most, self.evicted = most, 0
        self.had: dict[int, list[tuple[int, ...]]] = {}

    def add(self, number: int, prompt: list[int]) -> None:
        mine = self.had.setdefault(number, [])
        for end in range(min(len(prompt), self.most), 0, -1):
            block = tuple(prompt[:end])
            if block in mine:
                mine.remove(block)
            mine.append(block)
        while len(mine) > self.most:
            mine.pop(0)
            self.evicted += 1

    def match(self, prompt: list[int]) -> dict[int, int]:
        found = {}
        for number, mine in self.had.items():
            depth = 0
            while depth < len(prompt) and tuple(prompt[: depth + 1]) in mine:
                depth += 1
            if depth:
                found[number] = depth
        return found


def blocks_of(prompt: list[int]) -> list[int]:
    return chain([token for token in prompt for _ in range(BLOCK_TOKENS)], "m", BLOCK_TOKENS)


@given(EVENTS, st.integers(1, 6), PROMPTS)
@example([("add", 0, [0, 0, 0]), ("add", 1, [0, 0, 0]), ("remove", 0, [0, 0])], 6, [])  # a gap ends a match for good
def test_the_index_is_bounded_lru_and_matches_true_prefixes_only(
    events: list[tuple[str, int, list[int]]], most: int, asked: list[int]
) -> None:
    index, plain = PrefixIndex(), Plain(most)
    for what, number, prompt in events:
        if what == "add":
            index.add(number, blocks_of(prompt), most)
            plain.add(number, prompt)
        elif what == "remove":
            index.remove(number, blocks_of(prompt)[-1:])  # which others may go on from
            if prompt and tuple(prompt) in plain.had.get(number, []):
                plain.had[number].remove(tuple(prompt))
        else:
            index.forget(number)
            plain.had.pop(number, None)
        for each in range(4):
            assert index.size(each) == len(plain.had.get(each, [])) <= most
        for _, _, any_prompt in events:
            assert index.match(blocks_of(any_prompt)) == plain.match(any_prompt)
    assert index.match(blocks_of(asked)) == plain.match(asked)
    assert index.evicted == plain.evicted


@given(st.text(max_size=4 * BYTES), st.text(max_size=4 * BYTES), st.integers(0, 3 * BYTES))
def test_chains_agree_exactly_as_far_as_their_texts_do(a: str, b: str, shared: int) -> None:
    b = a[:shared] + b
    common = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    one, other = chain(a, "m", BYTES), chain(b, "m", BYTES)
    alike = next((k for k, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    assert alike == common // BYTES
    assert not set(chain(a, "m", BYTES)) & set(chain(a, "an adapter", BYTES))


def incoming(blocks: list[int], prompt: int, program: int = -1, adapter: bool = False) -> Incoming:
    return Incoming(0.0, prompt, 10.0, program, blocks, BLOCK_TOKENS, adapter)


def test_a_prefix_is_followed_until_that_costs_more_than_to_compute_it_elsewhere() -> None:
    sites = [ObservedSite(SETTINGS, k) for k in (3, 5)]
    router, blocks = PrefixAware(), chain(range(4096), "m", BLOCK_TOKENS)
    first = decide(router, incoming(blocks, 4100), sites, DRAW)
    assert router.sent(incoming(blocks, 4100), sites[first]) == 0
    for _ in range(20):
        assert decide(router, incoming(blocks, 4200), sites, DRAW) == first
        assert router.sent(incoming(blocks, 4200), sites[first]) == 4096
    sites[first].send(1, 100_000, 10.0)
    assert decide(router, incoming(blocks, 4200), sites, DRAW) == 1 - first
    router.forget(sites[first].number)
    assert router.index.size(sites[first].number) == 0


def test_an_adapter_goes_where_it_is_loaded_and_is_no_part_of_the_prompt() -> None:
    sites = [ObservedSite(SETTINGS, k) for k in range(4)]
    router, asks = PrefixAware(), [incoming([k], 50, adapter=True) for k in (11, 12)]
    homes = []
    for ask in asks:
        homes.append(decide(router, ask, sites, DRAW))
        assert router.sent(ask, sites[homes[-1]]) == 0
    for _ in range(5):
        assert [decide(router, ask, sites, DRAW) for ask in asks] == homes
        assert router.sent(asks[0], sites[homes[0]]) == 0


def test_a_program_stays_among_engines_that_have_its_beginning() -> None:
    sites = [ObservedSite(SETTINGS, k) for k in range(6)]
    router, blocks = PrefixAware(), chain(range(128), "m", BLOCK_TOKENS)
    for site in sites:
        router.sent(incoming(blocks, 130), site)
    router.sent(incoming(blocks, 130, program=7), sites[4])
    assert {decide(router, incoming(blocks, 130, program=7), sites, DRAW) for _ in range(20)} == {4}
    assert len({decide(router, incoming(blocks, 130), sites, DRAW) for _ in range(40)}) > 1
    sites[4].send(1, 9000, 10.0)
    assert decide(router, incoming(blocks, 130, program=7), sites, DRAW) != 4


def documents(share: float, count: int = 500) -> Requests:
    """Questions, of which a share begins with one of twenty documents."""
    draw = np.random.Generator(np.random.PCG64(1))
    group = np.where(draw.random(count) < share, draw.integers(0, 20, count), -1)
    prefix = np.where(group >= 0, 8000, 0)
    prompt = prefix + np.where(group >= 0, 300, lognormal(draw, count, 1500, 1.0, 50, 8000))
    when = arrivals(draw, count, 9.0)
    return Requests("documents", when, prompt, lognormal(draw, count, 60, 1.0, 1, 500), group=group, prefix=prefix)


@pytest.mark.long
def test_it_beats_every_rule_where_prompts_are_shared_and_loses_to_none_where_they_are_not() -> None:
    settings = replace(SETTINGS, num_blocks=8001)
    rules = ("round-robin", "shortest-queue", "least-tokens", "llumnix", "lmetric")

    def waits(name: str, requests: Requests, observed: bool = False) -> float:
        served = simulate(requests, settings, 4, router=router_named(name), observed=observed)
        return float((served.first - requests.arrival).mean())

    shared, alone = documents(0.9), documents(0.0)
    for observed in (False, True):
        assert waits("prefix", shared, observed) < 0.5 * min(waits(name, shared, observed) for name in rules)
    assert waits("prefix", alone) <= 1.02 * min(waits(name, alone) for name in rules)
