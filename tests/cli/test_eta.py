"""`kant eta`, and `--ledger` of simulate and compare."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from tests.cli.command import kant, without_machine

from kant.cli.show_answers import show_expectations
from kant.metrics.wait_causes import Cause


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """One node of 8 GPUs, of which one job has 6 for an hour."""
    trace = tmp_path / "jobs.csv"
    rows = ["id,submit_s,runtime_s,gpus,queue", "runs,0,3600,6,a", "head,60,600,8,b", "next,120,600,3,a"]
    trace.write_text("\n".join(rows) + "\n")
    common = ("--cluster", "1x8", "--profile", "conservative", "--out", tmp_path / "out", "--json")
    assert kant("simulate", trace, *common).json()["completed"] == 3
    return tmp_path / "out" / "journal.jsonl"


def test_it_lists_every_waiting_job_with_its_expected_start(journal: Path) -> None:
    found = kant("eta", journal, "--at", "10m")
    assert found.code == 0 and "Expected starts as of 0d 00:10:00" in found.out
    as_json = kant("eta", journal, "--at", "10m", "--json").json()
    assert as_json["time_us"] == 600_000_000
    assert [(job["job"], job["queue"], job["gpus"], job["why"]) for job in as_json["jobs"]] == [
        ("head", "b", 8.0, "no-fit"),
        ("next", "a", 3.0, "no-fit"),
    ]
    assert [job["expected_us"] for job in as_json["jobs"]] == [
        {"p50": 3_600_000_000, "p90": 3_600_000_000, "never": False},
        {"p50": 4_200_000_000, "p90": 4_200_000_000, "never": False},
    ]


def test_it_agrees_with_why_and_answers_for_one_job(journal: Path) -> None:
    (one,) = kant("eta", journal, "next", "--at", "10m", "--json").json()["jobs"]
    assert one["expected_us"] == kant("why", "next", journal, "--at", "10m", "--json").json()["expected_us"]
    shown = kant("eta", journal, "next", "--at", "10m").out
    assert "not calibrated: too few earlier answers" in shown
    assert "head │" not in shown and "next: job head ends, expected at 0d 01:10:00" in shown


def test_where_nobody_waits_it_says_so(journal: Path) -> None:
    assert kant("eta", journal).out == "no job waits at 0d 01:20:00\n"
    assert kant("eta", journal, "--json").json() == {
        "time_us": 4_800_000_000,
        "as_of_us": 4_800_000_000,
        "jobs": [],
        "budgets": [],
    }


def test_what_nobody_knows_is_called_unknown(tmp_path: Path) -> None:
    trace, profile = tmp_path / "jobs.csv", tmp_path / "blind.toml"
    trace.write_text("id,submit_s,runtime_s,gpus\nruns,0,3600,6\nnext,60,600,8\n")
    profile.write_text(
        'name = "blind"\n[order]\npolicy = "fifo"\n[discipline]\npolicy = "best-effort"\n'
        '[placement]\npolicy = "best-fit"\n[simulation]\nestimates = "none"\n'
    )
    kant("simulate", trace, "--cluster", "1x8", "--profile", profile, "--out", tmp_path / "out")
    journal = tmp_path / "out" / "journal.jsonl"
    assert "unknown" in kant("eta", journal, "--at", "10m").out
    assert "job runs ends (at an unknown time): then it fits" in kant("why", "next", journal, "--at", "10m").out


def test_bad_questions_get_one_sentence(journal: Path) -> None:
    assert "JOB: expected a job of" in kant("eta", journal, "nobody").refusal()
    assert "expected a job that waits at 0d 00:10:00" in kant("eta", journal, "runs", "--at", "10m").refusal()
    assert "ends at 0d 01:20:00" in kant("eta", journal, "--at", "3d").refusal()
    assert "expected a journal that can be read" in kant("eta", journal.parent / "none").refusal()


def test_a_ledger_adds_columns_that_add_up_and_changes_nothing_else(small: Path, tmp_path: Path) -> None:
    common = ("simulate", small, "--cluster", "4x8", "--profile", "easy", "--json")
    plain = kant(*common, "--out", tmp_path / "plain").json()
    kept = kant(*common, "--ledger", "--out", tmp_path / "kept").json()
    split = kept.pop("wait_by_cause")
    assert without_machine(kept) == without_machine(plain)
    assert (tmp_path / "plain/journal.jsonl").read_bytes() == (tmp_path / "kept/journal.jsonl").read_bytes()
    assert split["total"].keys() == {str(cause) for cause in Cause}
    assert sum(split["total"].values()) == pytest.approx(kept["wait_s"]["sum"])
    before, after = (pl.read_parquet(tmp_path / run / "jobs.parquet") for run in ("plain", "kept"))
    causes = [name for name in after.columns if name.startswith("waited_")]
    assert causes == [f"waited_{cause.replace('-', '_')}_us" for cause in Cause]
    assert after.drop(causes).equals(before)
    assert after.select(pl.sum_horizontal(causes)).to_series().to_list() == after["wait_us"].to_list()
    for cause in Cause:
        column = after[f"waited_{cause.replace('-', '_')}_us"]
        assert sum(column.to_list()) / 1e6 == pytest.approx(split["total"][cause])
        assert sum(queue[cause] for queue in split["by_queue"].values()) == pytest.approx(split["total"][cause])


def test_causes_are_shown_only_with_the_flag(small: Path, tmp_path: Path) -> None:
    common = ("compare", small, "--cluster", "4x8", "--profile", "fifo", "--profile", "easy", "--out", tmp_path / "out")
    with_causes = kant(*common, "--ledger").out
    assert "Waits by cause" in with_causes and "capacity" in with_causes and "order" in with_causes
    assert "Waits by cause" not in kant(*common).out
    alone = kant("simulate", small, "--cluster", "4x8", "--ledger").out
    assert "batch" in alone and "research" in alone


@pytest.mark.long
def test_it_says_how_good_such_answers_were_and_without_learning_it_says_what_the_futures_say(tmp_path: Path) -> None:
    """Pairs of jobs that need the whole node and take three times what their owners say, as is soon known."""
    rows = [f"{i}{letter},{i * 30000},10800,8,3600" for i in range(30) for letter in "ab"]
    trace, profile = tmp_path / "jobs.csv", tmp_path / "limits.toml"
    trace.write_text("\n".join(["id,submit_s,runtime_s,gpus,limit_s", *rows]) + "\n")
    text = kant("profiles", "show", "fifo").out.split("[simulation]")[0]
    profile.write_text(text + '[simulation]\nestimates = "limit"\n')
    kant("simulate", trace, "--cluster", "1x8", "--profile", profile, "--out", tmp_path / "out")
    journal, at = tmp_path / "out" / "journal.jsonl", ("--at", f"{29 * 30000}s", "--json")
    (learned,) = kant("eta", journal, *at).json()["jobs"]
    (plain,) = kant("eta", journal, *at, "--no-learn").json()["jobs"]
    now = 29 * 30000 * 1_000_000
    assert plain["expected_us"] == {"p50": now + 10_800_000_000, "p90": now + 10_800_000_000, "never": False}
    assert learned["expected_us"] == {"p50": now + 10_800_000_000, "p90": now + 10_800_000_000, "never": False}
    known = {"answers": 24, "kept": 24, "kept_p50": 24, "calibrated": True}
    assert plain["earlier"] is None and learned["earlier"] == known
    said = "of 24 earlier answers for about this far ahead, the P90 held for 100 %, the P50 for 100 %"
    assert f"29b: {said}" in kant("eta", journal, *at[:2]).out.replace("\n", " ")
    assert said in kant("why", "29b", journal, *at[:2]).out


def test_budgets_are_named_also_where_no_job_waits(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"p10": 0, "p50": 0, "p90": 0}
    row = {
        "queue": "q",
        "user": "",
        "limit": "hard",
        "expected_us": expected,
        "jobs": ["a"],
        "until_us": 86_400_000_000,
    }
    show_expectations([], 0, [row])
    said = " ".join(capsys.readouterr().out.split())
    assert "no job waits" in said and "q is used up now; job a then waits until" in said
