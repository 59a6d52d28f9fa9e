"""`kant serve simulate`, `compare`, `generate` and `policies`: what they print, and what they refuse."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from tests.cli.command import kant
from tests.conftest import DataFile

from kant.serving.policies import POLICIES
from kant.serving.read import read_requests

FIELDS = {
    "requests", "finished", "ttft_s", "tpot_s", "e2e_s", "normalised_latency_s_per_token", "max_gap_s", "preemptions",
    "evicted_share", "throughput", "goodput", "kv_use", "cache_hit_rate", "host_hit_rate", "digest",
}  # fmt: skip


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "requests.csv"
    kant(
        "serve", "generate", "conversation", "--out", path, "--requests", "200", "--rate", "20", "--groups", "3",
        "--prefix", "300",
    )  # fmt: skip
    return path


def test_a_run_prints_the_fields_that_are_promised_and_writes_a_bundle(drawn: Path, tmp_path: Path) -> None:
    found = kant("serve", "simulate", drawn, "--json", "--out", tmp_path / "out").json()
    assert found.keys() >= FIELDS
    assert found["requests"] == found["finished"] == 200
    assert found["speculation"] is None
    drafts = ("--requests", "9", "--speculative-tokens", "3", "--speculative-method", "ngram")
    assert kant("serve", "simulate", drawn, *drafts, "--json").json()["speculation"] == {
        "method": "ngram", "tokens": 3, "acceptance": 0.7,
    }  # fmt: skip
    for name in ("ttft_s", "tpot_s", "e2e_s", "normalised_latency_s_per_token"):
        assert found[name].keys() == {"mean", "p50", "p90", "p99"}
    assert 0.05 < found["cache_hit_rate"] < 0.5
    with (tmp_path / "out" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 200 and {row["engine"] for row in rows} == {"0", "1", "2", "3"}
    waits = [float(row["first_s"]) - float(row["arrival_s"]) for row in rows]
    assert np.mean(waits) == pytest.approx(found["ttft_s"]["mean"])
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == found
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("<svg") == 3 and report.count("<polyline") == 12


def test_a_comparison_serves_the_same_requests(drawn: Path, tmp_path: Path) -> None:
    found = kant(
        "serve", "compare", drawn, "--policy", "fcfs", "--policy", "plas", "--router", "round-robin", "--router",
        "dodoor", "--json", "--engines", "2", "--out", tmp_path / "out",
    ).json()["runs"]  # fmt: skip
    assert [(run["policy"], run["router"]) for run in found] == [
        ("fcfs", "round-robin"), ("fcfs", "dodoor"), ("plas", "round-robin"), ("plas", "dodoor"),
    ]  # fmt: skip
    assert {run["finished"] for run in found} == {200}
    alone = kant("serve", "simulate", drawn, "--router", "dodoor", "--engines", "2", "--json").json()
    assert alone["digest"] == found[1]["digest"]
    assert "fcfs, block" in kant("serve", "compare", drawn, "--router", "block", "--router", "random").out


def test_policies_are_listed_with_what_they_do() -> None:
    found = kant("serve", "policies", "--json").json()
    assert [row["policy"] for row in found["policies"]] == list(POLICIES)
    assert all(len(row["about"]) > 20 for row in found["policies"] + found["routers"])
    row = next(row for row in found["models"] if (row["model"], row["gpu"]) == ("llama-3-8b", "a100"))
    assert (row["tensor_parallel"], row["kv_tokens"]) == (1, 415039)
    assert "past-future" in kant("serve", "policies").out


@pytest.mark.parametrize(
    ("name", "hits"),
    [
        ("azure_llm2023_conv.csv.gz", False),
        ("mooncake_conversation.jsonl.gz", True),
        ("servegen_client_rates.csv.gz", False),
    ],
)
def test_real_requests_are_understood(name: str, hits: bool, data_file: DataFile) -> None:
    found = kant("serve", "simulate", data_file(name), "--requests", "500", "--rate", "4", "--json").json()
    assert found["finished"] == 500
    assert (found["cache_hit_rate"] > 0.02) == hits


def test_published_columns_of_azure_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,0\n"
    )
    found = read_requests(path)
    assert found.prompt.tolist() == [374, 396] and found.output.tolist() == [44, 1]
    assert found.arrival.tolist() == pytest.approx([0, 4.314579], abs=1e-6)


@pytest.mark.parametrize("session", [False, True])
def test_published_columns_of_burstgpt_are_understood(tmp_path: Path, session: bool) -> None:
    more = (",Session ID,Elapsed time", *(f",{name},1.5" for name in ("b", "a", "b", "a"))) if session else [""] * 5
    rows = ("Timestamp", "118", "45", "5", "120")
    rest = (
        ",Model,Request tokens,Response tokens,Total tokens,Log Type", ",GPT-4,417,276,693,Conversation log",
        ",ChatGPT,1087,230,1317,Conversation log", ",ChatGPT,472,18,490,API log", ",GPT-4,300,0,300,API log",
    )  # fmt: skip
    path = tmp_path / "BurstGPT_1.csv"
    path.write_text("".join(f"{a}{b}{c}\n" for a, b, c in zip(rows, more, rest, strict=True)))
    found = read_requests(path)
    assert found.arrival.tolist() == [0, 40, 113] and found.prompt.tolist() == [472, 1087, 417]
    assert found.output.tolist() == [18, 230, 276] and found.place(0) == f"{path}:4"
    assert found.program.tolist() == ([2, 1, 2] if session else [-1] * 3)


def test_rates_of_clients_become_requests_at_those_rates(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    scale = 0.5 / math.gamma(1 + 1 / 0.7)
    path.write_text(
        "model,client,window_s,rate,cv,dist,p1,p2\n"
        + "".join(f"m,1,{w},4,1,Gamma,0.5,0.5\nm,2,{w},2,1,Weibull,0.7,{scale}\nother,1,{w},900,1,Gamma,1,0.1\n"
                  for w in range(0, 6000, 600))
    )  # fmt: skip
    found = read_requests(path, "servegen", 3, 30_000)
    assert len(found) / found.arrival[-1] == pytest.approx(6, rel=0.05)
    assert (found.program == 1).mean() == pytest.approx(2 / 3, abs=0.03)
    assert np.array_equal(found.prompt, read_requests(path, "servegen", 3, 30_000).prompt)
    assert len(read_requests(path, "servegen", 3, 100)) == 100


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("0,5,5\n1,-4,5", "", ":3: prompt: expected a number from 1"),
        ("0,5,5\n1,4,0", "", ":3: output: expected a number from 1"),
        ("0,5,5\n1,4,x", "", ":3: output: expected a whole number"),
        ("3,5,5\n1,4,5", "", ":3: arrival: expected requests in order"),
        ("0,500000,5", "", ":2: expected a request of at most 415024 tokens, as many as the KV holds, got 500004"),
        ("0,5,5", "--model gpt", "--model: expected one of"),
        ("0,5,5", "--gpu tpu", "--gpu: expected one of a100"),
        ("0,5,5", "--tensor-parallel 3", "--tensor-parallel: expected one of 1"),
        ("0,5,5", "--policy best", "--policy: expected one of fcfs"),
        (
            "0,5,5",
            "--policy preemptive-priority --kv-offloading-size 1",
            "--policy: expected a policy that does not preempt, with host memory",
        ),
        ("0,5,5", "--router best", "--router: expected one of round-robin"),
        ("0,5,5", "--engines 0", "--engines: expected a number of engines"),
        ("0,5,5", "--blocks 1", "--blocks: expected a whole number from 2"),
        ("0,5,5", "--block-size 0", "--block-size: expected"),
        ("0,5,5", "--max-seqs 0", "--max-seqs: expected"),
        ("0,5,5", "--max-tokens 0", "--max-tokens: expected"),
        ("0,5,5", "--blocks 9 --block-size 99999999", "--block-size: expected"),
        ("0,5,5", "--speculative-tokens 65", "--speculative-tokens: expected a whole number from 0 to 64"),
        ("0,5,5", "--acceptance 0.5", "--acceptance: expected --speculative-tokens as well, got 0.5"),
        ("0,5,5", "--speculative-tokens 3 --speculative-method medusa", "--speculative-method: expected mtp"),
        ("0,5,5", "--speculative-tokens 3 --acceptance 1.5", "--acceptance: expected a share"),
        ("0,5,5", "--rate 0", "--rate: expected"),
        ("0,5,5", "--ttft -1", "--ttft: expected"),
        ("0,5,5", "--requests 0", "--requests: expected"),
        ("0,5,5", "--format parquet", "--format: expected one of azure"),
        ("0,5,5", "--format azure", "expected the columns t_ms, in_tok, out_tok"),
        ("", "", "at least one request"),
    ],
)
def test_bad_input_gets_one_sentence(text: str, options: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,output\n" + text)
    assert says in kant("serve", "simulate", path, *options.split()).refusal()


def test_bad_lines_of_traces_get_one_sentence(tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}
    for change, says in (
        ({"hash_ids": [1]}, ":2: hash_ids: expected 2, one for each 512 tokens"),
        ({"output_length": -5}, ":2: output: expected a number from 1"),
        ({"input_length": "x"}, ":2: expected a request of Mooncake's trace"),
        ({"hash_ids": [-1, 2]}, ":2: hash_ids: expected numbers from 0"),
    ):
        path = tmp_path / "mooncake.jsonl.gz"
        path.write_bytes(gzip.compress((json.dumps(good) + "\n" + json.dumps({**good, **change})).encode()))
        assert says in kant("serve", "simulate", path).refusal()
    path = tmp_path / "rates.csv"
    path.write_text("model,client,window_s,rate,cv,dist,p1,p2\nm,1,0,4,1,Normal,0.5,0.5\n")
    assert ":2: dist: expected Gamma or Weibull" in kant("serve", "simulate", path).refusal()
    path.write_text("who,knows\n1,2\n")
    assert "requests in one of the formats" in kant("serve", "simulate", path).refusal()
    path.write_bytes(b"\x00\xff\xfe,\n")
    kant("serve", "simulate", path, "--format", "csv").refusal()


def test_what_cannot_be_generated_is_refused(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "x.csv"))
    wrong = ("poem", "balanced --rate 0", "balanced --requests 0", "balanced --groups -1", "balanced --burstiness nan")
    for options in wrong:
        kant("serve", "generate", *options.split(), *out).refusal()
    kant("serve", "generate", "balanced", "--out", tmp_path / "no" / "x.csv").refusal()
