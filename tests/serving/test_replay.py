"""A recorded day served otherwise: equal where nothing changes, refused where it does harm, counted by request."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import kant

from kant.serving.engine import EngineSettings
from kant.serving.latency import latency_model
from kant.serving.replay import Setup, by_slice, read_day, replay, whole
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


def test_what_is_no_day_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = day(tmp_path / "day.jsonl", 40)
    assert "--slices: expected 1 to 2" in kant("serve", "whatif", path).refusal()
    assert "--router: expected" in kant("serve", "whatif", path, "--slices", "2", "--router", "psychic").refusal()
    several = tmp_path / "several.jsonl"
    several.write_text(path.read_text() + day(tmp_path / "other.jsonl", 40, model="n").read_text())
    assert "--served: expected which of the record's models: m, n" in kant("serve", "whatif", several).refusal()
    one = kant("serve", "whatif", several, "--served", "n", "--slices", "2", "--json").json()
    assert one["requests"] == 40
    failed = day(tmp_path / "failed.jsonl", 40, status=502)
    assert "with requests that were served" in kant("serve", "whatif", failed).refusal()
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n')
    assert "the record of a router" in kant("serve", "gate", trace).refusal()
