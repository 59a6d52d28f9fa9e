"""An engine of SGLang beside what its radix cache and its queue promise; recorded runs are in test_recording.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant
from tests.serving.drawn import LATENCY

from kant.model.errors import InputError, StateError
from kant.serving import columns as c
from kant.serving.engine import EngineSettings
from kant.serving.radix import Radix
from kant.serving.sglang import new_engine

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def nodes(tree: Radix) -> list[tuple[tuple[int, ...], int]]:
    """The whole text of each node, and how often it is locked."""
    found, left = [], [((), tree.root)]
    while left:
        text, node = left.pop()
        for child in node.children.values():
            whole = (*text, *child.text)
            found.append((whole, child.locks))
            left.append((whole, child))
    return found


@given(st.lists(st.tuples(st.sampled_from(["insert", "find", "lock", "unlock", "evict"]), TEXTS), max_size=30))
def test_the_tree_knows_the_beginnings_of_what_it_keeps(steps: list[tuple[str, list[int]]]) -> None:
    """Beside a set of all beginnings of texts, from which eviction takes whatever no longer is in the tree."""
    tree, known, locked = Radix(), {()}, []
    for what, text in steps:
        there = max(k for k in range(len(text) + 1) if tuple(text[:k]) in known)
        if what == "insert":
            assert tree.insert(text) == there
            known |= {tuple(text[:k]) for k in range(len(text) + 1)}
        elif what == "find":
            assert tree.find(text)[0] == there
        elif what == "lock":
            length, node = tree.find(text)
            tree.lock(node)
            locked.append((tuple(text[:length]), node))
        elif what == "unlock" and locked:
            tree.lock(locked.pop()[1], -1)
        elif what == "evict":
            had = tree.evictable
            found = tree.evict(len(text))
            assert had - found == tree.evictable and found >= min(len(text), had)
            known = {()} | {whole[:k] for whole, _ in nodes(tree) for k in range(len(whole) + 1)}
        held = {held[:k] for held, _ in locked for k in range(1, len(held) + 1)}
        assert held <= known and len(known) - 1 - len(held) == tree.evictable
        assert all(lock == sum(held[: len(whole)] == whole for held, _ in locked) for whole, lock in nodes(tree))


def test_what_an_insertion_splits_off_is_evicted_before_what_it_adds() -> None:
    for _ in range(20):  # a tie would be decided by addresses
        tree = Radix()
        tree.insert([1, 1, 1])
        tree.insert([1, 2, 2])
        assert tree.evict(2) == 2
        assert tree.find([1, 2, 2])[0] == 3


def test_the_longest_cached_prefix_goes_first_and_of_the_same_beginning_one() -> None:
    """With one seat the last, whose prompt is cached, goes second. With two, one of two new ones waits for another."""
    old, new, other = range(100), range(1000, 1100), range(2000, 2100)
    for policy, seats, prompts, order, cached in (
        ("fcfs", 1, (old, new, new, other, old), [0, 1, 2, 3, 4], [0, 0, 99, 0, 99]),
        ("lpm", 1, (old, new, new, other, old), [0, 4, 1, 2, 3], [0, 0, 99, 0, 99]),
        ("fcfs", 2, (new, new, other), [0, 1, 2], [0, 0, 0]),
        ("lpm", 2, (new, new, other), [0, 2, 1], [0, 99, 0]),
        ("lpm", 2, (new, [*new[:20], *range(80)], other), [0, 1, 2], [0, 0, 0]),  # alike for less than 32 tokens
    ):
        engine = new_engine(EngineSettings(LATENCY, 4000, 1, seats, 512, True, policy, engine="sglang"))
        for contents in prompts:
            engine.add(0.0, 100, 3, contents=contents, most=3)
        engine.run()
        assert engine.take_ended() == order
        assert engine.requests[: engine.count, c.CACHED].tolist() == cached


def test_an_admission_counts_one_token_more_than_prompt_and_output() -> None:
    """Two requests of 10 + 20 tokens: the second needs room for 31 of what the first has left, and one to spare."""
    for tokens, together in ((62, False), (63, True)):
        engine = new_engine(EngineSettings(LATENCY, tokens + 1, 1, 8, 512, True, engine="sglang"))
        for _ in range(2):
            engine.add(0.0, 10, 20, most=20)
        engine.run()
        assert (engine.times[0, c.FIRST] == engine.times[1, c.FIRST]) == together


@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 3))
def test_overlap_costs_a_step_where_an_output_ends_at_a_stop_token(prompt: int, output: int, more: int) -> None:
    """Alone a request takes a step for its prompt's chunk of 8 tokens, and one for each further token of its output."""
    steps = -(-prompt // 8) + output - 1
    for overlap in (False, True):
        settings = EngineSettings(LATENCY, 100, 1, 8, 8, True, async_scheduling=overlap, engine="sglang")
        engine = new_engine(settings)
        engine.add(0.0, prompt, output, most=output + more)
        engine.run()
        assert engine.state[c.STEPS] == steps + (overlap and more > 0)
        assert (engine.times[0, c.FINISH] < engine.now) == (overlap and more > 0)
        assert engine.next_event == c.FOREVER


def test_a_step_in_vain_is_no_idle_time() -> None:
    """The estimate of outputs has fallen; it is the first again for who comes after a step that nobody needs."""
    for late, falls in ((0.0, True), (1e-4, True), (1.0, False)):
        engine = new_engine(EngineSettings(LATENCY, 1000, 1, 8, 512, True, async_scheduling=True, engine="sglang"))
        engine.add(0.0, 10, 300, most=400)
        engine.run(stop_at_finish=True)
        end = engine.now
        engine.run(end + late)
        engine.add(end + late, 10, 2, most=400)
        assert (engine.ratio < 0.5) == falls
    engine = new_engine(EngineSettings(LATENCY, 1000, 1, 8, 512, True, engine="sglang"))
    engine.add(0.0, 10, 300, most=400)
    engine.run()
    engine.add(engine.now, 10, 2)
    assert engine.ratio < 0.5


def test_the_kv_of_a_prompt_stays_where_that_of_its_output_is_evicted() -> None:
    """Also after both were lost and computed anew at once: the second request is retracted, the third evicts it."""
    engine = new_engine(EngineSettings(LATENCY, 301, 1, 8, 512, True, engine="sglang"))
    for prompt, output, first in ((10, 150, 0), (10, 150, 1000), (297, 1, 2000)):
        engine.add(0.0, prompt, output, contents=range(first, first + prompt), most=output)
    engine.run()
    assert engine.take_ended() == [0, 2, 1] and engine.requests[1, c.PREEMPTED] == 1
    for prompt, first, cached in ((289, 3000, 0), (10, 1000, 9)):  # room for the KV of ten tokens is left
        r = engine.add(engine.now, prompt, 1, contents=range(first, first + prompt), most=1)
        engine.run()
        assert engine.requests[r, c.CACHED] == cached


def test_settings_that_sglang_has_not_are_refused(tmp_path: Path) -> None:
    for more, says in (
        ({"block_size": 16}, "block_size: expected 1 with SGLang"),
        ({"kv_role": "kv_consumer"}, "kv_role: expected .* with SGLang"),
        ({"policy": "priority"}, "policy: expected fcfs, lof, lpm or dfs-weight"),
        ({"engine": "other"}, "engine: expected vllm or sglang"),
    ):
        given = {"block_size": 1, "prefix_cache": True, "engine": "sglang", **more}
        with pytest.raises(InputError, match=says):
            EngineSettings(LATENCY, 100, **given)
    path = tmp_path / "requests.csv"
    path.write_text("t_ms,in_tok,out_tok\n0,10,2\n500,10,2\n")
    simulate = ("serve", "simulate", str(path), "--engine")
    for more, overlap in ((), True), (("--no-async-scheduling",), False):
        answer = kant(*simulate, "sglang-lpm", *more, "--json").json()
        assert (answer["finished"], answer["async_scheduling"]) == (2, overlap)
    assert (
        "--engine: expected vllm, sglang or one of sglang-fcfs, sglang-lof, sglang-lpm"
        in kant(*simulate, "tgi").refusal()
    )
    assert "expected fcfs with SGLang" in kant(*simulate, "sglang", "--policy", "mlfq").refusal()
    assert "--swap: expected False with SGLang" in kant(*simulate, "sglang", "--swap").refusal()
    assert "--router: expected a router that runs no copy" in kant(*simulate, "sglang", "--router", "block").refusal()
    engine = new_engine(EngineSettings(LATENCY, 100, 1, prefix_cache=True, engine="sglang"))
    with pytest.raises(StateError, match="are not withdrawn"):
        engine.withdraw(engine.add(0.0, 10, 2))
