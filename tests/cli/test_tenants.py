"""Queues on the command line: the file goes in, its quotas hold, and what does not fit together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant
from tests.report.test_report import data_of

from kant.workload.tenants_file import read_tenants


@pytest.fixture
def queues(small: Path, tmp_path: Path) -> Path:
    path = tmp_path / "queues.toml"
    assert kant("trace", "tenants", small, "--cluster", "4x8", "--out", path).out.startswith("2 queues with 32 GPUs")
    return path


def test_a_drafted_file_holds_the_cluster(small: Path, queues: Path) -> None:
    queue_config = read_tenants(queues)
    assert {queue.name for queue in queue_config.queues} == {"cluster", "batch", "research"}
    assert kant("trace", "tenants", small, "--cluster", "4x8").out == queues.read_text()


def test_quotas_change_what_is_decided_and_the_journal_knows_them(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    path.write_text('[[queue]]\nname = "batch"\ngpus = 16\n[[queue]]\nname = "research"\ngpus = 16\n')
    plain = kant("simulate", small, "--cluster", "4x8", "--json").json()
    out = tmp_path / "out"
    shared = kant("simulate", small, "--cluster", "4x8", "--queues", path, "--out", out, "--json").json()
    assert plain["fairness"]["worst"] is None and shared["fairness"]["worst"] > 1
    assert shared["digest"] != plain["digest"] and shared["sor"] < plain["sor"]
    again = kant("replay", out / "journal.jsonl", "--profile", "fifo", "--json").json()
    assert again["equal"] is True
    assert all(run["fairness"]["worst"] > 1 for run in again["runs"])
    assert "discipline" in kant("replay", out / "journal.jsonl", "--profile", "srtf").refusal()
    told = data_of((out / "report.html").read_text())["runs"][0]["summary"]
    assert told["fairness"] == shared["fairness"]


def test_compare_shows_the_rows_of_tenants_only_where_there_are_queues(
    small: Path, queues: Path, tmp_path: Path
) -> None:
    common = ("compare", small, "--cluster", "4x8", "--profile", "fifo", "--profile", "kant", "--out", tmp_path / "out")
    assert "finish-time fairness, worst" in kant(*common, "--queues", queues).out
    assert "finish-time fairness" not in kant(*common).out


def test_a_queue_that_the_file_lacks_is_named(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.toml"
    path.write_text('[[queue]]\nname = "batch"\ngpus = 8\n')
    sentence = kant("simulate", small, "--cluster", "4x8", "--queues", path, "--out", tmp_path / "out").refusal()
    assert f"{path}: expected the queue 'research', which small.csv uses" in sentence
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("profile", ["srtf", "muri-srsf", "openb-fgd"])
def test_a_discipline_without_quotas_is_refused(profile: str, small: Path, queues: Path, tmp_path: Path) -> None:
    sentence = kant("simulate", small, "--cluster", "4x8", "--queues", queues, "--profile", profile).refusal()
    assert f"profile {profile}: discipline: expected one that respects the quotas" in sentence
    assert kant("compare", small, "--queues", queues, "--profile", "kant", "--profile", profile).code == 2


def test_a_file_that_is_none_is_refused(small: Path, tmp_path: Path) -> None:
    assert "nowhere.toml" in kant("simulate", small, "--queues", tmp_path / "nowhere.toml").refusal()
    assert "demo" not in kant("demo", "--queues", tmp_path / "nowhere.toml", "--nodes", "2").out


def test_a_trace_with_services(tmp_path: Path) -> None:
    path = tmp_path / "mixed.csv"
    flags = ("--gpus", "64", "--load", "1.0", "--days", "2", "--services", "0.3", "--tenants", "3", "--seed", "1")
    assert kant("trace", "generate", "philly", *flags, "--out", path).code == 0
    found = kant("simulate", path, "--cluster", "8x8", "--until", "2d", "--json").json()
    assert found["jobs"] > 100 and found["rejected"] == 0
    assert "services" in kant("trace", "generate", "philly", "--services", "0.3", "--out", path).refusal()
