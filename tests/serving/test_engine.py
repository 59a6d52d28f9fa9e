"""The engine decides as vLLM's scheduler does, and never promises more than it has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.serving.drawn import LATENCY, Case, cases, engine_of
from tests.serving.naive import run_naively

from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving import kernel
from kant.serving.engine import Engine, EngineSettings


@given(cases())
def test_it_decides_as_vllm_written_in_plain_objects_does(case: Case) -> None:
    engine, naive = engine_of(case), run_naively(case.settings, case.requests)
    for r, request in enumerate(case.requests):
        ours = (engine.times[r, c.FIRST], engine.times[r, c.FINISH])
        assert ours == (request.first, request.finish)
        assert engine.requests[r, c.PREEMPTED] == request.preempted
        assert engine.requests[r, c.CACHED] == request.cached
    assert engine.state[c.STEPS] == naive.steps
    assert engine.state[c.PREEMPTIONS] == naive.preemptions


@given(cases())
def test_the_compiled_kernel_does_as_the_plain_one(case: Case) -> None:
    compiled = engine_of(case)
    name = "run_ahead" if case.settings.async_scheduling else "run"
    name = "run_any" if any(case.settings.sliding_windows) else name
    run = getattr(kernel, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, name, getattr(run, "py_func", run))
        plain = engine_of(case)
    assert np.array_equal(compiled.times, plain.times, equal_nan=True)
    assert np.array_equal(compiled.requests, plain.requests)
    assert np.array_equal(compiled.state, plain.state)


def check(engine: Engine) -> None:
    """The invariants of an engine between two steps."""
    live = list(engine.live())
    assert len(set(live)) == len(live)
    running = engine.running[: engine.state[c.RUNS]]
    assert len(running) <= engine.settings.max_num_seqs
    assert engine.plan[: engine.state[c.PLANNED], 1].sum() <= engine.settings.max_num_batched_tokens
    assert 0 <= engine.state[c.FREE] <= engine.limits[c.USABLE]
    assert (engine.plan[: engine.state[c.PLANNED], 1] > 0).all()
    for r in live:
        row = engine.requests[r]
        assert row[c.DONE] < row[c.OUTPUT]
        assert row[c.COMPUTED] <= row[c.HELD] * engine.settings.block_size
    groups = len(engine.settings.sliding_windows)
    held, gone = engine.requests[running, c.HELD], engine.requests[running, c.GONE :]
    if not engine.settings.prefix_cache:
        assert held.sum() * groups - gone.sum() + engine.state[c.FREE] == engine.limits[c.USABLE]
        return
    users = np.zeros(len(engine.blocks), dtype=np.int64)
    for r, count, firsts in zip(running, held, gone, strict=True):
        for group, first in enumerate(firsts):
            users[engine.held[engine.requests[r, c.BLOCK_ROW] * groups + group, first:count]] += 1
    assert (users == engine.blocks[:, c.USERS]).all()
    free, b = [], engine.state[c.HEAD]
    while b >= 0:
        free.append(b)
        b = engine.blocks[b, c.NEXT]
    assert len(free) == engine.state[c.FREE] == (users == 0).sum()
    assert sorted(free) == np.flatnonzero(users == 0).tolist()


def test_a_stop_token_is_seen_a_step_late() -> None:
    """Two tokens, then a stop token: asynchronous scheduling begins a third step, and frees blocks before it."""
    for ahead, most, steps in ((False, 9, 2), (True, 9, 3), (True, 2, 2)):
        engine = Engine(EngineSettings(LATENCY, 5, 16, async_scheduling=ahead))
        r = engine.add(0.0, 8, 2, most=most)
        engine.run()
        assert engine.state[c.STEPS] == steps and engine.state[c.FREE] == 4
        assert engine.times[r, c.FINISH] < engine.now or steps == 2


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("method", ["mtp", "ngram"])
def test_drafts_that_are_all_accepted_save_steps_and_rejected_ones_save_none(ahead: bool, method: str) -> None:
    """Ten tokens, one with the prompt and the rest four a step: with nobody else there, three steps after the first."""
    settings = EngineSettings(LATENCY, 50, async_scheduling=ahead, speculative_method=method)
    for acceptance, steps in ((1.0, 4), (0.0, 10)):
        engine = Engine(replace(settings, num_speculative_tokens=3, acceptance=acceptance))
        r = engine.add(0.0, 20, 10, most=10)
        engine.run()
        assert (engine.requests[r, c.DONE], engine.state[c.STEPS]) == (10, steps)


def test_the_longest_request_of_groups_is_the_longest_that_ever_ends() -> None:
    """A window of 5 beside full attention, four tokens a step: blocks of both, but at most three of the window's."""
    settings = EngineSettings(LATENCY, 20, 4, 1, 4, sliding_windows=(0, 5))
    assert settings.caps[1] == 3 and settings.tokens == (19 - 3) * 4
    assert EngineSettings(LATENCY, 20, 4, sliding_windows=(0, 0)).tokens == 9 * 4
    engine = Engine(settings)
    engine.add(0.0, settings.tokens - 20, 21)
    engine.run()
    assert engine.requests[0, c.DONE] == 21 and engine.state[c.PREEMPTIONS] == 0
    assert engine.state[c.MOST_HELD] in (18, 19)
    with pytest.raises(InputError, match="at most 64 tokens"):
        engine.add(0.0, settings.tokens, 2)


def test_a_block_that_the_last_token_fills_is_cached() -> None:
    """Nothing is planned after the last token, so the end of the step has to remember the block."""
    engine = Engine(EngineSettings(LATENCY, 9, 4, prefix_cache=True, async_scheduling=True))
    engine.add(0.0, 3, 2, contents=[7], most=2)
    engine.run()
    r = engine.add(engine.now, 8, 1, contents=[7, 8])
    engine.run()
    assert engine.requests[r, c.CACHED] == 4


def test_a_prompt_of_one_token_is_padded_beside_those_that_decode() -> None:
    """It takes as many tokens as they do, and outputs one, though drafts would be accepted."""
    settings = EngineSettings(LATENCY, 50, speculative_method="ngram", num_speculative_tokens=3, acceptance=1.0)
    engine = Engine(settings)
    engine.add(0.0, 20, 40)
    engine.run(until=engine.next_event, steps=2)
    engine.run(steps=1)
    r = engine.add(engine.now, 1, 40)
    engine.run(steps=1)
    assert engine.plan[: engine.state[c.RAN], c.COUNT].tolist() == [4, 4]
    assert engine.requests[r, c.DONE] == 1


@given(cases(async_scheduling=True), st.integers(1, 4), st.floats(0, 1), st.booleans())
def test_speculation_keeps_every_invariant_and_loses_nobody(case: Case, drafts: int, rate: float, ahead: bool) -> None:
    more = (3 * drafts // case.settings.block_size + 1) * len(case.settings.sliding_windows)
    blocks = case.settings.num_blocks + more
    settings = replace(case.settings, num_blocks=blocks, async_scheduling=ahead)
    engine = Engine(replace(settings, num_speculative_tokens=drafts, acceptance=rate))
    for request in case.requests:
        engine.add(request.arrival, request.prompt, request.output, request.priority, request.contents)
    while engine.run(steps=1) == c.STOPPED:
        check(engine)
    assert sorted(engine.take_ended()) == list(range(len(case.requests)))
    assert (engine.requests[: engine.count, c.DONE] == engine.requests[: engine.count, c.OUTPUT]).all()
    assert engine.state[c.FREE] == engine.limits[c.USABLE]


@given(cases(sliding_windows=(0,)), st.data())
def test_kv_from_elsewhere_holds_blocks_and_no_seat_and_loses_nobody(case: Case, data: st.DataObject) -> None:
    """Prompts whose KV comes by a connector wait for it, and need a step of their last token alone."""
    engine = Engine(replace(case.settings, kv_role="kv_consumer"), 2)
    took = [data.draw(st.sampled_from([None, 0.0, 0.03, 0.7])) for _ in case.requests]
    comes = [data.draw(st.sampled_from([0, 7, 40, 10_000])) for _ in case.requests]
    for request, remote_s, tokens in zip(case.requests, took, comes, strict=True):
        engine.run(request.arrival)
        assert engine.state[c.RUNS] <= case.settings.max_num_seqs
        assert 0 <= engine.state[c.FREE] <= engine.limits[c.USABLE]
        engine.add(
            request.arrival, request.prompt, request.output, request.priority, request.contents, remote_s=remote_s,
            remote_tokens=tokens,
        )  # fmt: skip
    engine.run()
    assert sorted(engine.take_ended()) == list(range(len(case.requests)))
    assert engine.state[c.FREE] == engine.limits[c.USABLE] and engine.state[c.LOADS] == 0
    for r, (request, remote_s, tokens) in enumerate(zip(case.requests, took, comes, strict=True)):
        if remote_s is not None:
            here = tokens // case.settings.block_size * case.settings.block_size if tokens < request.prompt else tokens
            assert min(here, request.prompt - 1) <= engine.requests[r, c.CACHED] < request.prompt
            assert engine.times[r, c.FIRST] > request.arrival + remote_s
    with pytest.raises(InputError, match="kv_role: expected no swap"):
        replace(case.settings, kv_role="kv_consumer", swap=True)


def test_a_connector_computes_one_token_of_a_prompt_once_its_kv_is_here() -> None:
    """Ten seconds for the KV, meanwhile another decodes; nobody may leave whose KV is on its way."""
    engine = Engine(EngineSettings(LATENCY, 20, 16, kv_role="kv_consumer", async_scheduling=True))
    engine.add(0.0, 30, 40)
    r = engine.add(0.0, 100, 2, remote_s=10.0)
    engine.run(5.0)
    assert engine.requests[r, c.STATE] == c.LOADING and not engine.withdraw(r)
    assert engine.state[c.RUNS] == 0 and engine.next_event == 10.0
    assert engine.state[c.FREE] == 19 - 7
    engine.run()
    assert engine.times[r, c.FIRST] == pytest.approx(10.0 + LATENCY.step_ms(1, 0, 99.5) / 1e3)


def test_of_a_prompt_whose_kv_comes_in_part_the_rest_is_computed_and_what_has_come_is_cached() -> None:
    """Two whole blocks of seven come; nothing of what the cache has; nothing at all; less than the cache has."""
    engine = Engine(EngineSettings(LATENCY, 40, 16, prefix_cache=True, kv_role="kv_consumer"))
    for tokens, first, cached in ((47, 0, 32), (0, 0, 96), (0, 90, 0), (40, 90, 96)):
        began = engine.now
        r = engine.add(began, 100, 1, contents=range(first, first + 6), remote_s=1.0, remote_tokens=tokens)
        engine.run()
        assert engine.requests[r, c.CACHED] == cached
        rest = 100 - cached
        took = LATENCY.step_ms(rest, 0, rest * (cached + rest / 2)) / 1e3
        assert engine.times[r, c.FIRST] == pytest.approx(began + 1.0 + took)


def test_a_request_of_which_no_kv_has_come_needs_few_blocks_where_others_hold_what_it_finds() -> None:
    """While a request runs a watermark keeps 5 of 15 blocks free, or 8 of 16. Seven are needed.

    Six of them are held by whoever runs, so it is admitted; or by nobody, so it waits for whoever runs.
    """
    for blocks, watermark, output, at_once in ((16, 0.32, 13, True), (17, 0.5, 1, False)):
        engine = Engine(
            EngineSettings(LATENCY, blocks, 16, prefix_cache=True, kv_role="kv_consumer", watermark=watermark)
        )
        r = engine.add(0.0, 100, 1, contents=range(6), remote_s=0.1, remote_tokens=0)
        runs = engine.add(0.0, 100, output, contents=range(6))
        if not at_once:
            engine.run(0.05)
            runs = engine.add(0.05, 32, 13)
        engine.run()
        assert engine.requests[r, c.CACHED] == 96
        assert (engine.times[r, c.FIRST] < engine.times[runs, c.FINISH]) == at_once


def test_a_request_of_which_kv_does_not_come_fails_where_the_policy_says_so() -> None:
    """At the end of the load, or of the step that is under way then; its blocks are free."""
    settings = EngineSettings(LATENCY, 20, 16, kv_role="kv_consumer", kv_load_failure_policy="fail")
    for others, remote_tokens in ((0, 99), (1, 99), (0, 100)):
        engine = Engine(settings)
        for _ in range(others):
            engine.add(0.0, 30, 100)
        r = engine.add(0.0, 100, 2, remote_s=0.1, remote_tokens=remote_tokens)
        engine.run()
        assert engine.state[c.FREE] == 19 and sorted(engine.take_ended()) == list(range(others + 1))
        fails = bool(np.isnan(engine.times[r, c.FIRST]))
        assert fails == (remote_tokens < 100) and (engine.requests[r, c.CACHED] < 0) == fails
        assert engine.times[r, c.FINISH] == 0.1 or others or not fails
        assert 0.1 <= engine.times[r, c.FINISH] < 0.1 + 2 * LATENCY.step_ms(1, 130) / 1e3
    with pytest.raises(InputError, match="kv_load_failure_policy: expected recompute or fail"):
        replace(settings, kv_load_failure_policy="ignore")
    with pytest.raises(InputError, match="kv_role: expected kv_consumer or kv_producer"):
        replace(settings, kv_role="kv_both")


def test_blocks_of_an_ended_request_are_held_until_its_kv_is_sent() -> None:
    """Two have ended and the third, which needs all blocks, waits for both; when the second is sent, one says later."""
    engine = Engine(EngineSettings(LATENCY, 20, 16, kv_role="kv_producer"))
    first, second = engine.add(0.0, 100, 1, remote_s=c.FOREVER), engine.add(0.0, 100, 1, remote_s=2.0)
    third = engine.add(0.0, 300, 1)
    engine.run(5.0)
    assert sorted(engine.take_ended()) == [first, second] and engine.state[c.FREE] == 12
    assert engine.next_event == c.FOREVER
    engine.sent(first, 6.0)
    assert engine.next_event == 6.0
    engine.run()
    assert engine.times[third, c.FIRST] == pytest.approx(6.0 + LATENCY.step_ms(300, 0, 300 * 150.0) / 1e3)
    assert engine.state[c.FREE] == 19 and engine.next_event == c.FOREVER


def test_a_prompt_of_one_token_is_not_padded_when_nobody_decodes() -> None:
    """Its KV comes from elsewhere, all of it is computed again, and vLLM pads what decodes alone."""
    engine = Engine(EngineSettings(LATENCY, 20, 16, kv_role="kv_consumer", num_speculative_tokens=3))
    engine.add(0.0, 1, 1, remote_s=0.1)
    engine.run()
    assert engine.state[c.TOKENS_DONE] == 1


def test_a_request_of_which_no_kv_has_come_finds_what_was_cached_meanwhile() -> None:
    engine = Engine(EngineSettings(LATENCY, 40, 16, prefix_cache=True, kv_role="kv_consumer"))
    r = engine.add(0.0, 100, 1, contents=range(6), remote_s=1.0, remote_tokens=15)
    engine.add(0.0, 100, 1, contents=range(6))
    engine.run()
    assert engine.requests[r, c.CACHED] == 96 and engine.state[c.MOST_HELD] == 14
    assert engine.times[r, c.FIRST] == pytest.approx(1.0 + LATENCY.step_ms(4, 0, 4 * 98) / 1e3)


@given(cases(sliding_windows=(0,), prefix_cache=True), st.sampled_from([1, 3, 40]), st.booleans(), st.booleans())
def test_host_memory_keeps_each_block_once_and_loses_nobody(case: Case, host: int, whole: bool, ahead: bool) -> None:
    """Step by step or in one go, engines with host memory do the same, and in the end nobody uses a block of it."""
    settings = replace(case.settings, host_blocks=host, offload_prompt_only=not whole, async_scheduling=ahead)
    engine, other = Engine(settings, 2), Engine(settings, 2)
    for request in case.requests:
        given = (request.arrival, request.prompt, request.output, request.priority, request.contents)
        engine.run(request.arrival)
        while other.run(request.arrival, steps=1) == c.STOPPED:
            assert 0 <= other.state[c.FREE] <= other.limits[c.USABLE] and other.state[c.STORES] <= host
        engine.add(*given)
        other.add(*given)
    engine.run()
    while other.run(steps=1) == c.STOPPED:
        pass
    assert np.array_equal(engine.times[: engine.count], other.times[: other.count], equal_nan=True)
    assert sorted(engine.take_ended()) == list(range(len(case.requests)))
    assert engine.state[c.FREE] == engine.limits[c.USABLE] and engine.state[c.LOADS] == 0
    assert engine.next_event == c.FOREVER
    usable = case.settings.num_blocks - 1
    kept = engine.blocks[usable : usable + host]
    named = kept[kept[:, c.CONTENT] != c.NOTHING, c.CONTENT]
    assert len(set(named.tolist())) == len(named)
    assert (kept[:, c.USERS] < 0).sum() == engine.state[c.STORES] and (kept[:, c.USERS] <= 0).all()


def test_a_prompt_that_the_gpu_has_forgotten_comes_from_host_memory() -> None:
    """Ten blocks on the GPU: the second prompt takes the room of the first, which then comes back, all but one token.

    A twin of the engine that is asked meanwhile ends it at the same time.
    """
    settings = EngineSettings(LATENCY, 11, 16, prefix_cache=True, host_blocks=20)
    engine = Engine(settings)
    for contents in (range(9), range(20, 29)):
        engine.add(engine.now, 144, 2, contents=contents)
        engine.run()
    r = engine.add(1.0, 144, 2, contents=range(9))
    engine.run(1.0001)
    assert engine.requests[r, c.STATE] == c.LOADING and engine.live().tolist() == [r]
    twin, live = engine.fork(np.full(3, 2.0))
    twin.run()
    engine.run()
    assert live.tolist() == [r] and twin.times[0, c.FINISH] == engine.times[r, c.FINISH]
    moves = 144 * LATENCY.kv_bytes / 25e9
    assert engine.times[r, c.FIRST] == pytest.approx(1.0 + moves + LATENCY.step_ms(1, 0, 143.5) / 1e3)
    assert engine.requests[r, c.CACHED] == 143 and engine.state[c.HOST_HITS] == 144
    for more in ({"prefix_cache": False}, {"swap": True}, {"sliding_windows": (0, 32)}, {"kv_role": "kv_consumer"}):
        with pytest.raises(InputError, match=r"host_blocks: expected 0, or a prefix cache|kv_role"):
            replace(settings, **more)


def test_the_last_block_of_an_output_is_stored_though_nothing_else_is_to_do() -> None:
    """With asynchronous scheduling its last token is known only when the next step has been planned."""
    engine = Engine(
        EngineSettings(
            LATENCY, 40, 16, prefix_cache=True, host_blocks=20, offload_prompt_only=False, async_scheduling=True
        )
    )
    engine.add(0.0, 140, 5, most=5)
    engine.run()
    assert (engine.blocks[39:59, c.CONTENT] != c.NOTHING).sum() == 144 // 16


def test_of_kv_that_is_here_the_best_priority_is_served_first() -> None:
    """One seat, and two prompts whose KV is here at once: the better one, which came later, gets it."""
    engine = Engine(EngineSettings(LATENCY, 60, 16, 1, policy="priority", kv_role="kv_consumer"))
    worse = engine.add(0.0, 20, 2, 2.0, remote_s=1.0)
    engine.run(0.25)
    better = engine.add(0.25, 20, 2, 1.0, remote_s=0.75)
    engine.run()
    assert engine.times[better, c.FINISH] < engine.times[worse, c.FIRST]


@pytest.mark.parametrize(("windows", "cached"), [((0,), 4), ((0, 0), 8), ((0, 3), 8)])
def test_a_whole_prompt_in_the_cache_lacks_the_block_that_drafts_need(windows: tuple[int, ...], cached: int) -> None:
    """vLLM leaves out the block of the last token, and one more for drafts; with several groups they are the same."""
    engine = Engine(
        EngineSettings(LATENCY, 60, 4, prefix_cache=True, num_speculative_tokens=1, sliding_windows=windows)
    )
    for _ in range(2):
        r = engine.add(engine.now, 12, 1, contents=[1, 2, 3])
        engine.run()
    assert engine.requests[r, c.CACHED] == cached


@given(cases(async_scheduling=True), st.data())
def test_whoever_leaves_takes_nothing_along(case: Case, data: st.DataObject) -> None:
    """Clients disconnect between two steps, while one is computed: the others are served, and all blocks come back."""
    engine = Engine(case.settings)
    for request in case.requests:
        engine.add(request.arrival, request.prompt, request.output, request.priority, request.contents)
    gone = set()
    while engine.run(steps=1) == c.STOPPED:
        live = list(engine.live())
        if live and data.draw(st.booleans()):
            gone.add(r := data.draw(st.sampled_from(live)))
            assert engine.withdraw(r)
        check(engine)
    assert set(engine.take_ended()) == set(range(len(case.requests))) - gone
    assert engine.state[c.FREE] == engine.limits[c.USABLE]


@given(cases(), st.booleans(), st.booleans())
def test_kv_seats_and_tokens_are_kept_at_every_step_and_nobody_is_lost(
    case: Case, preemptive: bool, swap: bool
) -> None:
    settings = EngineSettings(**{
        **{name: getattr(case.settings, name) for name in EngineSettings.__slots__},
        "preemptive": preemptive, "swap": swap and not any(case.settings.sliding_windows),
    })  # fmt: skip
    engine = Engine(settings)
    coming = list(reversed(case.requests))
    for _ in range(20_000):
        until = coming[-1].arrival if coming else float("inf")
        why = engine.run(until, steps=1)
        check(engine)
        if why in (c.REACHED, c.IDLE) and coming:
            request = coming.pop()
            engine.add(request.arrival, request.prompt, request.output, request.priority, request.contents)
        elif why == c.IDLE:
            break
    assert sorted(engine.take_ended()) == list(range(len(case.requests)))
    rows = engine.requests[: engine.count]
    assert (rows[:, c.DONE] == rows[:, c.OUTPUT]).all()
    assert engine.state[c.FREE] == engine.limits[c.USABLE]
    times = engine.times[: engine.count]
    assert (times[:, c.ARRIVAL] < times[:, c.FIRST]).all()
    assert (times[:, c.FIRST] <= times[:, c.FINISH]).all()


@given(cases(policy="fcfs"), st.integers(0, 1000))
def test_first_come_is_the_same_under_other_names_and_priorities(case: Case, shift: int) -> None:
    for k, request in enumerate(case.requests):  # no two at one instant, where names decide
        request.arrival += 1e-6 * k
    before = engine_of(case)
    for request in case.requests:
        request.priority = (request.id * 7 + shift) % 5
        request.contents = [content + 31 * shift for content in request.contents]
    after = engine_of(case)
    assert np.array_equal(before.times[:, c.FIRST], after.times[:, c.FIRST], equal_nan=True)
    assert np.array_equal(before.times[:, c.FINISH], after.times[:, c.FINISH], equal_nan=True)


@given(cases(max_num_seqs=4, sliding_windows=(0,)))
def test_a_priority_that_preempts_lets_the_best_run_as_if_it_were_alone(case: Case) -> None:
    """Of the best priority one request, all others worse: it waits for one step at most."""
    settings = EngineSettings(LATENCY, case.settings.num_blocks, case.settings.block_size, 4, 64, preemptive=True)
    engine = Engine(settings)
    for request in case.requests:
        engine.add(0.0, request.prompt, request.output, 1.0)
    engine.run(0.02)
    r = engine.add(0.02, settings.tokens, 1, 0.0)
    begins = max(engine.clock[c.END], 0.02) if engine.state[c.PLANNED] else 0.02
    alone = 0.0
    for done in range(0, settings.tokens, 64):
        count = min(64, settings.tokens - done)
        alone += LATENCY.step_ms(count, 0, count * (done + count / 2)) / 1e3
    engine.run()
    assert engine.times[r, c.FIRST] == pytest.approx(begins + alone)


@given(cases(), st.booleans())
def test_a_step_is_under_way_whenever_anybody_is_there(case: Case, preemptive: bool) -> None:
    """Work is conserved: the engine is busy exactly as long as there is a request between arrival and finish.

    With asynchronous scheduling a step more is computed for a request that ends at a stop token.
    """
    case.settings = replace(case.settings, preemptive=preemptive)
    engine = engine_of(case)
    there, end = 0.0, 0.0
    for arrival, finish in sorted(engine.times[: engine.count, [c.ARRIVAL, c.FINISH]].tolist()):
        there += max(finish - max(arrival, end), 0.0)
        end = max(end, finish)
    assert engine.clock[c.BUSY] == pytest.approx(there) or (
        case.settings.async_scheduling and engine.clock[c.BUSY] > there
    )


@pytest.mark.parametrize("longest", [1, 9])
def test_waits_are_those_of_a_queue_with_one_server(longest: int) -> None:
    """One seat and steps of constant length are M/G/1 in whole requests: the mean wait of Pollaczek and Khinchine."""
    step = 0.1
    latency = replace(LATENCY, floor=1e3 * step, slope=0.0, fixed=0.0, kv=0.0, context=0.0, overhead=0.0)
    engine = Engine(EngineSettings(latency, 4, 16, 1, 64))
    draw = np.random.Generator(np.random.PCG64(5))
    load, count = 0.7, examples(1) * 60_000
    outputs = draw.integers(1, longest, count, endpoint=True)
    service = step * outputs
    rate = load / service.mean()
    arrivals = np.cumsum(draw.exponential(1 / rate, count))
    for arrival, output in zip(arrivals.tolist(), outputs.tolist(), strict=True):
        engine.run(arrival)
        engine.add(arrival, 8, output)
    engine.run()
    waits = engine.times[: engine.count, c.FINISH] - arrivals - service
    assert waits.mean() == pytest.approx(rate * (service**2).mean() / (2 * (1 - load)), rel=0.06)


def test_a_request_that_never_fits_is_refused_in_one_sentence() -> None:
    engine = Engine(EngineSettings(LATENCY, 5, 16))
    engine.add(0.0, 64, 1)
    with pytest.raises(InputError, match="at most 64 tokens, as many as the KV holds, got 65"):
        engine.add(0.0, 64, 2)
    with pytest.raises(InputError, match="at least one token"):
        engine.add(0.0, 0, 2)
    with pytest.raises(InputError, match="at most 55 tokens, as many as the KV holds, got 60"):
        Engine(EngineSettings(LATENCY, 5, 16, num_speculative_tokens=3)).add(0.0, 60, 1)
    for field, value in (("num_speculative_tokens", -1), ("acceptance", 1.5), ("speculative_method", "oracle")):
        with pytest.raises(InputError, match=f"{field}: expected"):
            EngineSettings(LATENCY, 5, **{field: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="sliding_windows: expected only 0 with swap"):
        EngineSettings(LATENCY, 5, swap=True, sliding_windows=(0, 9))
    for windows in ((), (0, 1), (-1,), (0,) * 65):
        with pytest.raises(InputError, match="windows of 1 to 64 KV groups, each of 2 tokens or more"):
            EngineSettings(LATENCY, 5, sliding_windows=windows)
    with pytest.raises(InputError, match="policy: expected fcfs or priority"):
        EngineSettings(LATENCY, 5, policy="last")


def test_nobody_is_preempted_for_more_blocks_than_there_are() -> None:
    """Three that are worse share seven blocks, which count once: two that are better do not fit side by side."""
    engine = Engine(EngineSettings(LATENCY, 11, 16, 8, prefix_cache=True, preemptive=True))
    for _ in range(3):
        engine.add(0.0, 7 * 16 + 1, 5, 5.0, range(7))
    engine.run(steps=2)
    assert engine.state[c.RUNS] == 3 and engine.state[c.FREE] == 0
    engine.add(engine.now, 16, 2, 0.0)
    engine.add(engine.now, 10 * 16 - 2, 2, 0.0)
    engine.run()
    assert engine.state[c.FREE] == 10 and not np.isnan(engine.times[:5, c.FINISH]).any()


def test_swapped_keys_and_values_come_back_and_cost_their_way() -> None:
    """The request that loses its blocks is not computed again: it takes fewer tokens, and time for the moves."""
    runs = {}
    for swap in (False, True):
        engine = Engine(EngineSettings(LATENCY, 12, 16, 2, 64, swap=swap))
        for _ in range(2):
            engine.add(0.0, 60, 80)
        engine.run()
        runs[swap] = int(engine.state[c.TOKENS_DONE])
        assert engine.state[c.PREEMPTIONS] == 1
    assert runs[True] == 2 * (60 + 79) < runs[False]
