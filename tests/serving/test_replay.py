"""A recorded day served otherwise: equal where nothing changes, refused where it does harm, counted by request."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant

from kant.serving.engine import EngineSettings
from kant.serving.latency import latency_model
from kant.serving.replay import Day, Setup, by_slice, read_day, replay, whole
from kant.serving.requests import Requests
from kant.serving.summary import Objectives

SETTINGS = EngineSettings(latency_model("llama-3-8b", "a100")[0], 4000, 16, 32, 2048)


def day(path: Path, count: int = 240, rate: float = 12.0, **more: object) -> Path:
    """Questions about eight documents of 2,000 tokens, as two engines have served them in turn; in any order."""
    draw = np.random.Generator(np.random.PCG64(3))
    came, lines = np.cumsum(draw.exponential(1 / rate, count)), []
    for i in range(count):
        document, tokens = int(draw.integers(8)), 2000 + int(draw.integers(1, 100))
        ids = [1000 * document + k for k in range(2000 // 64)]
        ids += [100_000 + 100 * i + k for k in range(-(-tokens // 64) - len(ids))]
        line = {"timestamp": 1e3 * came[i], "input_length": tokens, "output_length": int(draw.integers(1, 60))}
        line |= {"hash_ids": ids, "block_size": 64, "time": "2026-11-26T00:00:00+00:00", "status": 200, "first_s": 0.5}
        lines.append({**line, "backend": i % 2, "router": "round-robin", "policy": "fcfs", "model": "m", **more})
    order = draw.permutation(count)
    path.write_text("".join(json.dumps(lines[i]) + "\n" for i in order))
    return path


def test_what_changes_nothing_passes_and_what_takes_an_engine_away_is_refused(tmp_path: Path) -> None:
    path = day(tmp_path / "day.jsonl", rate=40.0)
    same = kant("serve", "gate", path, "--strict", "--json").json()
    assert same["passes"] and same["now"] == same["then"] == "round-robin, 2 engines"
    assert all(row["now"] == row["then"] and row["change"]["value"] == 0 for row in same["figures"])
    found = kant("serve", "gate", path, "--replicas", "1")
    assert found.code == 1 and found.out.startswith("REGRESSION")
    assert "recorded first token: mean 500.0 ms" in found.out
    few = ("--router", "prefix", "--blocks", "800")  # an engine's KV has half of the documents
    better = kant("serve", "whatif", day(tmp_path / "calm.jsonl"), *few, "--json").json()
    mean = next(row for row in better["figures"] if row["figure"] == "ttft_s.mean")
    assert mean["change"]["high"] < 0 and mean["then"] < mean["now"]
    assert better["recorded_ttft_s"] == {"mean": 0.5, "p99": 0.5}


def test_the_figures_of_slices_are_those_of_their_requests(tmp_path: Path) -> None:
    found = read_day(day(tmp_path / "day.jsonl"))
    assert (np.diff(found.requests.arrival) >= 0).all()
    assert found.requests.predicted[0] == 256.0  # no output is known before it has come
    assert found.requests.predicted[-1] == pytest.approx(30, abs=25)
    served, promise = replay(found, Setup("least-tokens", 2), SETTINGS, 0), Objectives(0.2, 0.03)
    first = [served.first[i] - found.requests.arrival[i] for i in range(240)]
    lengths = found.requests.output
    each = [(served.finish[i] - served.first[i]) / (lengths[i] - 1) if lengths[i] > 1 else None for i in range(240)]
    late = [f > 0.2 or (e is not None and e > 0.03) for f, e in zip(first, each, strict=True)]
    assert 0 < sum(late) < 240
    for k in range(6):
        part = slice(40 * k, 40 * k + 40)
        known = [e for e in each[part] if e is not None]
        for name, value in (
            ("ttft_s.mean", sum(first[part]) / 40),
            ("ttft_s.p99", np.quantile(first[part], 0.99)),
            ("tpot_s.p99", np.quantile(known, 0.99)),
            ("late", sum(late[part]) / 40),
        ):
            assert by_slice(served, name, 6, promise)[k] == pytest.approx(value)
    assert whole(served, "late", promise) == pytest.approx(sum(late) / 240)


def of(arrival: list[float], prompt: list[int], output: list[int]) -> Day:
    requests = Requests("drawn", np.array(arrival), np.array(prompt), np.array(output))
    return Day(requests, requests.arrival, "round-robin", "fcfs", 2, 0, None)


@given(
    st.lists(
        st.tuples(st.floats(0, 2), st.integers(1, 5000), st.integers(1, 40)), min_size=1, max_size=12
    ),
    st.integers(1, 3),
    st.integers(1, 2),
    st.booleans(),
)  # fmt: skip
def test_outputs_apart_from_prompts_wait_for_their_kv_and_for_no_prompt(
    drawn: list[tuple[float, int, int]], prefill: int, decode: int, ahead: bool
) -> None:
    arrival, prompt, output = (list(column) for column in zip(*sorted(drawn), strict=True))
    model = SETTINGS.latency
    settings, setup = (
        replace(SETTINGS, async_scheduling=ahead),
        Setup("least-tokens", prefill + decode, "fcfs", prefill),
    )
    served = replay(of(arrival, prompt, output), setup, settings, 0)
    longest = model.step_ms(SETTINGS.max_num_seqs, SETTINGS.tokens, SETTINGS.tokens) / 1e3  # 32 tokens, no prompt
    assert ((served.finish == served.first) == (served.requests.output == 1)).all()
    assert (served.engine >= prefill).all() and (served.engine < prefill + decode).all()
    for i, tokens in enumerate(prompt):
        moves = tokens * 131072 / 25e9
        last = model.step_ms(1, 0, tokens - 0.5) / 1e3
        whole = [min(tokens - at, 2048) for at in range(0, tokens, 2048)]
        least = sum(model.step_ms(n, 0, n * (2048 * k + n / 2)) for k, n in enumerate(whole)) / 1e3
        first = arrival[i] + least + moves + last
        assert served.first[i] >= first - 1e-9
        if len(drawn) == 1:  # nobody else is there
            steps = [model.step_ms(1, tokens + k) / 1e3 for k in range(1, output[i])]
            assert served.first[i] == pytest.approx(first)
            assert served.finish[i] == pytest.approx(first + sum(steps))
        if output[i] > 1:
            assert served.gap[i] <= longest


def test_an_engine_that_only_computes_prompts_computes_nothing_in_vain() -> None:
    """Two prompts of a whole step each, at once, on engines that plan a step ahead."""
    settings, step = replace(SETTINGS, async_scheduling=True), SETTINGS.latency.step_ms(2048, 0, 2048 * 1024.0)
    served = replay(of([0.0, 0.0], [2048, 2048], [1, 1]), Setup("least-tokens", 2, "fcfs", 1), settings, 0)
    rest = 1e3 * 2048 * 131072 / 25e9 + SETTINGS.latency.step_ms(1, 0, 2047.5)
    assert 1e3 * served.first == pytest.approx([step + rest, 2 * step + rest])


@pytest.mark.parametrize("ahead", [False, True])
def test_blocks_of_a_prompt_are_held_until_its_kv_has_been_fetched(ahead: bool) -> None:
    """Each engine has room for one request of 1,600 tokens; all come at once, and a transfer takes 0.5 s.

    So a prompt is computed once the one before it has moved, and moves once the one before it has its output.
    """
    settings, outputs = replace(SETTINGS, num_blocks=120, async_scheduling=ahead), [300, 3, 1]
    setup = Setup("least-tokens", 2, "fcfs", 1, 1600 * 131072 / 0.5e9)
    all_at_once = of([0.0] * 3, [1600] * 3, outputs)
    limited = replace(all_at_once, requests=replace(all_at_once.requests, most=np.array(outputs)))
    served = replay(limited, setup, settings, 0)
    model = SETTINGS.latency
    prompt, first = model.step_ms(1600, 0, 1600 * 800.0) / 1e3, model.step_ms(1, 0, 1599.5) / 1e3
    computed = free = 0.0
    for k, output in enumerate(outputs):
        fetched = max(computed + prompt, free) + 0.5
        computed = fetched
        assert served.first[k] == pytest.approx(fetched + first)
        free = served.first[k] + sum(model.step_ms(1, 1600 + n) / 1e3 for n in range(1, output))
        assert served.finish[k] == pytest.approx(free)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 1500), st.integers(1, 60)), min_size=1, max_size=12),
    st.integers(1, 2),
    st.booleans(),
    st.sampled_from(["fcfs", "mlfq"]),
)
def test_no_request_is_lost_where_little_kv_is_held(
    drawn: list[tuple[float, int, int]], engines: int, ahead: bool, policy: str
) -> None:
    arrival, prompt, output = (list(column) for column in zip(*sorted(drawn), strict=True))
    settings = replace(SETTINGS, num_blocks=120, async_scheduling=ahead, prefix_cache=True)
    apart = [
        replay(of(arrival, prompt, output), Setup("round-robin", 2 * engines, policy, engines, gb_s), settings, 0)
        for gb_s in (0.5, 1e9)
    ]
    for served in apart:
        assert (served.finish >= served.first).all() and (served.first > served.requests.arrival).all()
    if len(drawn) == 1:
        assert apart[0].first[0] - apart[1].first[0] == pytest.approx(prompt[0] * 131072 / 0.5e9)


def test_a_day_with_prefill_and_decode_apart(tmp_path: Path) -> None:
    path = day(tmp_path / "day.jsonl", rate=40.0)
    found = kant("serve", "whatif", path, "--split", "1:1", "--json").json()
    assert found["then"] == "round-robin, 1 prefill + 1 decode engines"
    figures = {row["figure"]: row for row in found["figures"]}
    assert figures["ttft_s.mean"]["change"]["low"] > 0  # one engine has all the prompts
    assert figures["tpot_s.p99"]["then"] < figures["tpot_s.p99"]["now"]
    slow = kant("serve", "whatif", path, "--split", "1:1", "--kv-gb-s", "0.1", "--json").json()
    assert slow["figures"][0]["then"] - found["figures"][0]["then"] > 2  # 2,050 tokens of 128 KiB take 2.7 s, not 0.01
    for words, sentence in (
        (("--split", "2"), "--split: expected PREFILL:DECODE"),
        (("--split", "0:2"), "--split: expected PREFILL:DECODE"),
        (("--split", "1:1", "--replicas", "2"), "--replicas: expected none with --split"),
        (("--split", "1:1", "--kv-gb-s", "0"), "--kv-gb-s: expected a number of GB a second"),
        (("--split", "1:1", "--engine", "sglang"), "--split: expected vLLM engines"),
        (("--split", "1:1", "--swap"), "--split: expected no swap, and one KV group of full attention"),
    ):
        assert sentence in kant("serve", "whatif", path, *words).refusal()


def test_prompts_apart_are_found_in_host_memory(tmp_path: Path) -> None:
    """An engine for prompts with room for three of the eight documents, and host memory for all of them."""
    found, setup = read_day(day(tmp_path / "day.jsonl", rate=4.0)), Setup("round-robin", 2, "fcfs", 1)
    settings = replace(SETTINGS, num_blocks=400, prefix_cache=True)
    without, served = (replay(found, setup, replace(settings, host_blocks=n), 0) for n in (0, 2000))
    assert without.host_hits == 0 and served.host_hits > served.looked_up / 4
    assert whole(served, "ttft_s.mean", Objectives()) < 0.7 * whole(without, "ttft_s.mean", Objectives())


def test_what_is_no_day_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = day(tmp_path / "day.jsonl", 40)
    assert "a number of slices from 1 to 2" in kant("serve", "whatif", path, "--slices", "3").refusal()
    assert kant("serve", "whatif", path, "--json").json()["slices"] == 2
    assert "--router: expected" in kant("serve", "whatif", path, "--slices", "2", "--router", "psychic").refusal()
    several = tmp_path / "several.jsonl"
    several.write_text(path.read_text() + day(tmp_path / "other.jsonl", 40, model="n").read_text())
    assert "--served: expected one of the record's models: m, n" in kant("serve", "whatif", several).refusal()
    one = kant("serve", "whatif", several, "--served", "n", "--slices", "2", "--json").json()
    assert one["requests"] == 40
    failed = day(tmp_path / "failed.jsonl", 40, status=502)
    assert "with requests that were served" in kant("serve", "whatif", failed).refusal()
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n')
    assert "the record of a router" in kant("serve", "gate", trace).refusal()
