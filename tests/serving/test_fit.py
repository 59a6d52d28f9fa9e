"""The latency of a step: fitted to steps, checked on others, kept in a file; and how far the table was checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant

from kant.gateway.engine_steps import Load, loads, row_of
from kant.model.errors import InputError
from kant.serving.engine import Engine, EngineSettings
from kant.serving.fit import checked, read_latency
from kant.serving.latency import (
    MEASURED,
    PUBLISHED,
    LatencyModel,
    about,
    combinations,
    latency_model,
    measured,
)  # fmt: skip
from kant.serving.shapes import SHAPES, shape_of
from kant.serving.torch_steps import grid

STEPS = np.array([(*step.row(), 0.0) for step in grid(8192, 400_000)])
DRAWN = st.builds(
    LatencyModel,
    floor=st.floats(2, 20),
    slope=st.floats(0.01, 0.2),
    fixed=st.floats(0, 10),
    kv=st.floats(1e-5, 2e-4),
    context=st.floats(1e-7, 2e-6),
    overhead=st.just(0.0),
    experts=st.sampled_from([0.0, 8.0, 30.0]),
    missed=st.sampled_from([0.75, 0.9375]),
)


def scaled(model: LatencyModel, factor: float) -> LatencyModel:
    """Return the latency of the same engine, `factor` times as slow."""
    return replace(
        model,
        floor=model.floor * factor,
        slope=model.slope * factor,
        fixed=model.fixed * factor,
        kv=model.kv * factor,
        context=model.context * factor,
        overhead=model.overhead * factor,
        experts=model.experts * factor,
    )


def by_hand(model: LatencyModel, tokens: float, decode: float, chunks: float) -> float:
    """The formula of the module, from its words: experts touched one by one."""
    untouched = 1.0
    for _ in range(int(tokens)):
        untouched *= model.missed
    reads = model.floor + model.experts * (1 - untouched)
    computes = model.slope * tokens + model.fixed
    return (reads if reads > computes else computes) + model.kv * decode + model.context * chunks + model.overhead


@given(DRAWN, st.integers(0, 2**32))
def test_a_latency_is_found_again_from_its_steps(model: LatencyModel, seed: int) -> None:
    noise = np.random.Generator(np.random.PCG64(seed)).normal(1, 0.01, len(STEPS))
    steps = STEPS.copy()
    steps[:, 3] = [by_hand(model, *row) * each for row, each in zip(STEPS[:, :3].tolist(), noise, strict=True)]
    found, held, median, p90 = checked(steps, model.missed if model.experts else 0.0, 1)
    assert (held, found.overhead, found.kv_bytes) == ((len(steps) + 1) // 3, 0.0, 1)
    assert median < 0.025 and p90 < 0.1, "noise of 1 %, and where the floor meets the line the split is not exact"
    assert min(found.floor, found.slope, found.fixed, found.kv, found.context, found.experts) >= 0
    errors = [found.step_ms(int(t), int(d), c) / by_hand(model, t, d, c) - 1 for t, d, c, _ in STEPS.tolist()]
    assert np.quantile(np.abs(errors), 0.5) < 0.025


@given(DRAWN, st.integers(1, 400))
def test_an_engine_steps_as_the_model_says(model: LatencyModel, prompt: int) -> None:
    engine = Engine(EngineSettings(model, 100, max_num_batched_tokens=512))
    engine.add(0.0, prompt, 1, 0, [])
    engine.run(1e9)
    expected = by_hand(model, prompt, 0, prompt * prompt / 2)
    assert engine.now == pytest.approx(expected / 1e3, rel=1e-12)
    assert scaled(model, 3.0).step_ms(prompt, 5, 7.0) == pytest.approx(3 * by_hand(model, prompt, 5, 7.0))


def test_errors_are_those_of_steps_that_were_held_back() -> None:
    tokens = np.arange(1, 31, dtype=np.float64)
    steps = np.column_stack([tokens, 0 * tokens, 0 * tokens, np.full(30, 10.0)])
    steps[1::3, 3] = 8.0  # those that are held back, in this order
    assert checked(steps, 0.0, 1)[1:] == (10, 0.25, 0.25)
    with pytest.raises(InputError, match="at least 15 steps, got 14"):
        checked(steps[:14], 0.0, 1)


def test_weights_and_kv_are_those_that_are_published() -> None:
    parameters = {  # billions, of the models' cards; GB in half precision are twice that
        "llama-2-7b": 6.74, "llama-2-13b": 13.02, "llama-3-8b": 8.03, "codellama-34b": 33.74, "llama-2-70b": 68.98,
        "llama-3-70b": 70.55, "mixtral-8x7b": 46.7, "qwen3-30b-a3b": 30.53,
    }  # fmt: skip
    assert parameters.keys() == SHAPES.keys()
    for name, billions in parameters.items():
        assert shape_of(name).weight_gb == pytest.approx(2 * billions, abs=0.08)
    assert shape_of("qwen3-30b-a3b").kv_bytes == 98304 and shape_of("llama-3-8b-fp8").weight_gb == 9.1


def test_a_model_is_read_from_its_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    mixtral = {
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    path.write_text(json.dumps(mixtral))
    assert shape_of(str(path)) == SHAPES["mixtral-8x7b"]
    path.write_text(json.dumps(mixtral | {"quantization_config": {"quant_method": "fp8"}}))
    assert shape_of(str(path)) == shape_of("mixtral-8x7b-fp8")
    for wrong, says in (
        ({"hidden_size": None}, "expected hidden_size, a whole number from 1 on"),
        ({"hidden_size": "big"}, "expected hidden_size, a whole number"),
        ({"num_experts_per_tok": 9}, "expected num_experts_per_tok from 1 to 8, got 9"),
    ):
        path.write_text(json.dumps(mixtral | wrong))
        with pytest.raises(InputError, match=says):
            shape_of(str(path))
    for text in ("[]", "{", None):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(InputError, match=r"expected the config\.json of a model"):
            shape_of(str(path))


def test_each_row_of_the_table_says_how_far_it_was_checked() -> None:
    said = {key: about(key) for key in combinations()}
    for key, text in said.items():
        assert ("no step checked" in text) == (key not in {*PUBLISHED, *MEASURED}), key
    for key, (who, steps) in PUBLISHED.items():
        model = latency_model(*key)[0]
        errors = [by_hand(model, *step[:3]) / step[3] - 1 for step in steps]
        assert all(f"{100 * error:+.0f} %" in said[key] for error in errors) and who in said[key]
        assert max(map(abs, errors)) < 0.15, key


@pytest.mark.parametrize("key", MEASURED)
def test_measured_rows_are_what_their_steps_give(key: tuple[str, str, int]) -> None:
    found = measured(key)
    assert (found.model, key[1].upper() in found.check.gpu) == (key[0], True)
    shape = shape_of(key[0])
    model, steps, median, p90 = checked(np.array(found.measured), shape.missed, shape.kv_bytes)
    told = found.check
    assert (steps, median, p90) == pytest.approx((told.steps, told.error_p50, told.error_p90), rel=1e-6)
    assert replace(found.latency, overhead=0.0).row() == pytest.approx(model.row(), rel=1e-6)
    assert told.sentence in about(key) and latency_model(*key)[0] is found.latency


def test_a_prompt_alone_and_tokens_together_are_steps() -> None:
    times = [[10.0, 10.030], [20.0, 20.032], [30.0, 30.1]]
    assert row_of(Load(3, 200), times) == (200.0, 0.0, 20_000.0, pytest.approx(32.0))
    # Two requests with prompts of 100: the second begins later, the first ends earlier; between, steps of 20 ms.
    first = [0.0, *(0.1 + 0.02 * k for k in range(8))]
    second = [0.0, *(0.14 + 0.02 * k for k in range(10))]
    row = row_of(Load(2, 100, 10), [first, second])
    assert row == (2.0, pytest.approx(2 * 100 + (3 + 8 + 1) / 2 + (1 + 6 + 1) / 2), 0.0, pytest.approx(20.0))
    assert row_of(Load(2, 100, 10), [first, [each + 0.11 for each in second]]) is None
    most = loads(2048, 10_000)
    assert max(load.prompt for load in most if load.output == 1) == 2048
    assert max(load.requests * load.prompt for load in most) <= 10_000


def test_the_file_is_written_read_and_used(tmp_path: Path) -> None:
    model = latency_model("llama-2-7b", "a100")[0]
    steps, out, requests = tmp_path / "steps.csv", tmp_path / "a100.json", tmp_path / "requests.csv"
    lines = [f"{t:.0f},{d:.0f},{c},{by_hand(model, t, d, c)}" for t, d, c, _ in STEPS.tolist()]
    steps.write_text("\n".join(["tokens,decode,chunks,ms", *lines]))
    fit = ("serve", "fit", steps, "--model", "llama-2-7b", "--gpu", "A100", "--out", out)
    said = kant(*fit).out
    assert (
        "llama-2-7b: 74 steps, checked with the steps of steps.csv on A100 (20" in said
        and "held-out steps half" in said
    )
    found = read_latency(out)
    assert found == read_latency(out) and (found.check.steps, len(found.measured)) == (25, 74)
    requests.write_text("arrival_s,prompt,output\n0,100,10\n0.1,200,20\n")
    simulate = ("serve", "simulate", requests, "--model", "llama-2-7b", "--json")
    fitted = kant(*simulate, "--latency", out, "--blocks", "5000").json()
    table = kant(*simulate).json()
    assert fitted["e2e_s"]["mean"] == pytest.approx(table["e2e_s"]["mean"], rel=0.05)
    assert (fitted["latency"], fitted["gpu"]) == (found.check.sentence, "A100")
    assert table["latency"].endswith("no step checked")
    assert f"latency: {found.check.sentence}" in kant(*simulate[:-1], "--latency", out, "--blocks", "5000").out
    for name, value in (("kv", -1e-9), ("missed", 1.5), ("floor", 0.0)):
        less = {"latency": {"fixed": 0.0, "slope": 0.0, "overhead": 0.0, name: value}}
        whole = json.loads(out.read_text())
        steps.write_text(json.dumps(whole | {"latency": whole["latency"] | less["latency"]}))
        assert "expected numbers from 0 on" in kant(*simulate, "--latency", steps).refusal()
    steps.write_text("{}")
    assert "--blocks: expected a number, as" in kant(*simulate, "--latency", out).refusal()
    assert "expected a latency as `kant serve fit` writes it" in kant(*simulate, "--latency", steps).refusal()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "kant serve fit: expected exactly one of a file of steps, --torch and --url"),
        (("steps.csv", "--torch"), "kant serve fit: expected exactly one of a file of steps, --torch and --url"),
        (("steps.csv",), "steps.csv: expected a CSV file of numbers with the columns tokens, decode, chunks, ms"),
        (("--url", "http://127.0.0.1:9"), "--url http://127.0.0.1:9: expected an engine that answers OpenAI's API"),
        (("--torch", "--seconds", "0"), "--seconds: expected a number above 0"),
        (("--torch", "--model", "gpt"), "--model: expected one of codellama-34b"),
        (("--torch",), "without it nothing is checked on a GPU"),
    ],
)
def test_what_cannot_be_measured_is_said(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    Path("steps.csv").write_text("tokens,ms\n1,2\n")
    assert says in kant("serve", "fit", *words, "--out", "x.json").refusal()
    assert not Path("x.json").exists()
