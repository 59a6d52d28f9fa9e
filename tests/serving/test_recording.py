"""The engine agrees to the bit with recorded runs of vLLM's own scheduler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tests.cli.command import kant
from tests.conftest import DataFile

GOLDEN = "vllm_scheduler_golden.json.gz"


def test_every_recorded_run_is_exact(data_file: DataFile) -> None:
    answer = kant("serve", "verify", str(data_file(GOLDEN)), "--json").json()
    assert (answer["cells"], answer["cells_exact"]) == (32, 32)
    assert (answer["requests"], answer["exact"], answer["preemptions"]) == (9920, 9920, 2296)
    assert answer["first_difference"] is None


def test_five_runs_of_our_own_recording_are_exact() -> None:
    """By `python -m benchmarks.record_vllm`: both policies, with and without prefix cache, short of memory."""
    answer = kant("serve", "verify", str(Path(__file__).with_name("recorded.json.gz")), "--json").json()
    assert (answer["cells"], answer["requests"], answer["exact"]) == (5, 720, 720)
    assert answer["preemptions"] == 305


def test_settings_that_are_seldom_are_exact_too() -> None:
    """By `benchmarks.record_vllm --odd`: cells 0, 1, 6, 9, 39 and 113."""
    answer = kant("serve", "verify", str(Path(__file__).with_name("odd.json.gz")), "--json").json()
    assert (answer["cells"], answer["requests"], answer["exact"]) == (6, 960, 960)
    assert answer["preemptions"] == 2656


@pytest.mark.long
def test_asynchronous_scheduling_speculation_windows_connectors_and_host_memory_are_exact() -> None:
    """By `benchmarks.record_vllm`: cell 207, and with `--odd` cells 0, 6, 9 and 10; most requests have a stop token.

    With `--drafts` cell 207, and with `--odd` 2 and 3; with `--sync` 312, and with `--odd` 20. With `--hybrid` cell
    7, and with `--odd` 0, 10, 17 and 7214; with `--sync --odd` 6 and 9; with `--drafts --odd` 12 and 26. With
    `--remote --odd` 9, 7305 and 7307, with `--sync` 10, 7303 and 7315, and with `--drafts` 6; with `--failing` too
    7708, with `--sync` 7702, and with `--drafts` 0, and with `--fatal` too 7723, with `--sync` 7725. With `--offload
    --odd` 0 and 3, with `--sync` 2 and 10, and with `--drafts` 7504. With `--sending --odd` 7800 and 7807, with
    `--sync` 7807, and with `--drafts` 7803. With `--sglang` 8, 10 and 7520, with `--odd` 6, 7 and 7610, with `--orders`
    too 1 and 2, and with `--sync` 7506 and 7520.
    """
    path = str(Path(__file__).with_name("modes.json.gz"))
    modes = kant("serve", "verify", path, "--json").json()["modes"]
    assert {mode: (found["cells_exact"], found["requests"], found["preemptions"]) for mode, found in modes.items()} == {
        "asynchronous": (5, 760, 1594), "asynchronous, mtp": (2, 280, 39), "asynchronous, ngram": (1, 160, 15),
        "synchronous, mtp": (1, 160, 6), "synchronous, ngram": (1, 120, 0),
        "asynchronous, sliding windows": (5, 1040, 543), "synchronous, sliding windows": (2, 320, 373),
        "asynchronous, mtp, sliding windows": (2, 320, 6), "asynchronous, KV connector": (4, 640, 90),
        "synchronous, KV connector": (4, 640, 395), "asynchronous, ngram, KV connector": (1, 160, 12),
        "asynchronous, eagle3, KV connector": (1, 160, 1),
        "asynchronous, host memory": (2, 320, 352), "synchronous, host memory": (2, 320, 94),
        "asynchronous, eagle3, host memory": (1, 160, 3), "asynchronous, KV sent": (2, 320, 348),
        "synchronous, KV sent": (1, 160, 274), "asynchronous, eagle3, KV sent": (1, 160, 6),
        "asynchronous, loads that fail, KV connector": (1, 160, 22),
        "synchronous, loads that fail, KV connector": (1, 160, 88), "SGLang, lpm": (1, 160, 0),
        "SGLang, fcfs": (1, 80, 1), "SGLang, lpm, overlap": (3, 320, 3), "SGLang, fcfs, overlap": (3, 400, 14),
        "SGLang, lof, overlap": (1, 80, 0), "SGLang, dfs-weight, overlap": (1, 160, 0),
    }  # fmt: skip
    assert all(found["exact"] == found["requests"] for found in modes.values())


def small_recording() -> dict[str, object]:
    """Two cells that the engine itself has answered."""
    request = {
        "id": 0, "arrival": 0.5, "prompt": 20, "output": 1, "priority": 0, "group": 0, "prefix": 16,
        "first": 0.512, "finish": 0.512, "preempted": 0, "cached": 0,
    }  # fmt: skip
    cell = {
        "cell": 7, "policy": "fcfs", "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_blocks": 10,
        "block_size": 16, "prefix_cache": True, "requests": [request], "long_prefill_token_threshold": 0,
        "enable_chunked_prefill": True, "watermark": 0.0,
    }  # fmt: skip
    return {"engine": "by hand", "F": 10.0, "S": 0.0, "C": 0.0, "K": 0.0, "Q": 0.0, "O": 2.0, "cells": [cell]}


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    recording = small_recording()
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(recording))
    assert kant("serve", "verify", str(path), "--json").json()["exact"] == 1
    again = dict(recording["cells"][0]["requests"][0], id=1, arrival=1.0, first=1.012, finish=1.013, cached=16)  # type: ignore[index]
    recording["cells"][0]["requests"].append(again)  # type: ignore[index]
    path.write_text(json.dumps(recording))
    done = kant("serve", "verify", str(path), "--json")
    assert done.code == 1
    assert done.json()["exact"] == 1
    assert done.json()["first_difference"] == {
        "cell": 7, "request": 1, "field": "finish", "recorded": 1.013, "ours": 1.012,
    }  # fmt: skip
    text = kant("serve", "verify", str(path)).out
    assert "first difference: cell 7, request 1: finish is 1.012" in text
    assert "│ synchronous │    1 │     0 │        2 │     1 │" in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cells": 3}, "Expected `array`, got `int` - at `$.cells`"),
        ({"F": "x"}, "$.F"),
        ({"cells": []}, "expected at least one run, and in each at least one request"),
        ({"requests": []}, "expected at least one run, and in each at least one request"),
        ({"prompt": -4}, "a shared prefix no longer than the prompt"),
        ({"prompt": 0, "prefix": 0}, "cell 7: request: expected a prompt and an output of at least one token"),
        ({"prompt": 10**15}, "at most 144 tokens, as many as the KV holds"),
        ({"watermark": 1.0}, "cell 7: watermark: expected a share of the KV from 0 to less than 1"),
        ({"long_prefill_token_threshold": -1}, "cell 7: long_prefill_token_threshold: expected a whole number from 0"),
        ({"enable_chunked_prefill": False, "prompt": 80}, "at most 64 tokens, as many as a step computes"),
        ({"num_blocks": 1}, "cell 7: num_blocks: expected a whole number from 2"),
        ({"num_blocks": 10**15}, "cell 7: num_blocks: expected a whole number from 2"),
        ({"policy": "lottery"}, "Invalid enum value 'lottery'"),
    ],
)
def test_a_bad_recording_gets_one_sentence(change: dict[str, object], says: str, tmp_path: Path) -> None:
    recording = small_recording()
    for key, value in change.items():
        part = recording if key in recording else recording["cells"][0]  # type: ignore[index]
        part = part if key in part else part["requests"][0]
        part[key] = value
    path = tmp_path / "recording.json.gz"
    path.write_bytes(gzip.compress(json.dumps(recording).encode()))
    assert says in kant("serve", "verify", str(path)).refusal()


def test_what_is_no_recording_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "half.gz").write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    (tmp_path / "text").write_text("not JSON")
    for name in ("half.gz", "text", "absent", "."):
        kant("serve", "verify", str(tmp_path / name)).refusal()
