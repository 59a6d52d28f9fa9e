"""Profiles in processes of their own: the same results, progress while they run, and errors as from one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.command import kant, trace, without_machine

from kant.cli import progress
from kant.cli.progress import Lines
from kant.model.units import DAY, SECOND

PROFILES = ("--profile", "fifo", "--profile", "tiresias", "--profile", "kant")


def test_side_by_side_and_in_turn_are_the_same(small: Path, tmp_path: Path) -> None:
    found = {}
    for jobs in ("1", "2", "7"):
        out = tmp_path / jobs
        outcome = kant("compare", small, "--cluster", "4x8", *PROFILES, "--jobs", jobs, "--out", out, "--json")
        assert (outcome.code, outcome.err) == (0, "")
        found[jobs] = [without_machine(run) for run in outcome.json()["runs"]]
        found[jobs] += [(out / name / "journal.jsonl").read_bytes() for name in ("fifo", "tiresias", "kant")]
        assert json.loads((out / "kant" / "summary.json").read_text())["profile"] == "kant"
    assert [run["profile"] for run in found["1"][:3]] == ["fifo", "tiresias", "kant"]
    assert found["1"] == found["2"] == found["7"]


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_a_number_of_runs_that_is_none_is_refused(jobs: str, small: Path, tmp_path: Path) -> None:
    outcome = kant("compare", small, "--cluster", "4x8", *PROFILES, "--jobs", jobs, "--out", tmp_path / "out")
    assert "--jobs" in outcome.refusal()


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_what_goes_wrong_in_one_run_is_said_in_one_sentence(jobs: str, small: Path, tmp_path: Path) -> None:
    """A folder stands where a journal should be written."""
    (tmp_path / "tiresias" / "journal.jsonl").mkdir(parents=True)
    outcome = kant("compare", small, "--cluster", "4x8", *PROFILES, "--jobs", jobs, "--out", tmp_path)
    assert "journal.jsonl: expected a file that can be read and written" in outcome.refusal()


def test_progress_names_the_day_the_jobs_and_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines = Lines(jobs=4000, days=14)
    lines.begin("kant")
    now += 3
    lines.update("kant", 10, DAY)
    assert capsys.readouterr().err == ""
    now += 10
    lines.begin("fifo")
    lines.update("kant", 1000, 3 * DAY + 43200 * SECOND)
    assert capsys.readouterr().err.splitlines() == [
        "kant: day 3.5 of 14.0, 1,000 of 4,000 jobs done, about 30s left",
        "fifo: kernels are compiled, or read from their cache",
    ]
    now += 4
    lines.update("kant", 1500, 4 * DAY)
    assert capsys.readouterr().err == ""
    now += 1
    lines.end("kant")
    lines.update("fifo", 0, 0)
    assert capsys.readouterr().err == "fifo: day 0.0 of 14.0, 0 of 4,000 jobs done\n"


def test_a_run_without_jobs_has_progress_too(tmp_path: Path) -> None:
    empty = trace(tmp_path / "empty.csv", 0)
    assert kant("compare", empty, "--cluster", "4x8", *PROFILES, "--out", tmp_path / "out").code in (0, 2)
