"""`kant report`: the page of a journal, or one sentence why not."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import kant
from tests.report.test_report import data_of, unpack, unpack_names


def test_the_page_of_a_journal_has_what_its_run_left(journal: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = kant("report", journal, journal, "--out", page, "--title", "Twice <b>")
    assert outcome.code == 0 and outcome.err == "" and str(page) in outcome.out.replace("\n", "")
    data = data_of(page.read_text())
    then = data_of((journal.parent / "report.html").read_text())
    assert data["title"] == "Twice <b>" and data["zero_us"] is None and len(data["runs"]) == 2
    told, run = data["runs"][0], then["runs"][0]
    assert told["jobs"]["ids"] == run["jobs"]["ids"] and told["jobs"]["wait"] == run["jobs"]["wait"]
    assert len(unpack_names(told["jobs"]["ids"])) == 60
    assert sorted(unpack(told["fleet"]["length"]).tolist()) == sorted(unpack(run["fleet"]["length"]).tolist())
    assert told["summary"]["digest"] == run["summary"]["digest"]
    waits = unpack(told["jobs"]["wait"])
    causes = sum(unpack(column) for column in told["jobs"]["causes"].values())
    assert waits.sum() > 0 and abs(causes - waits).max() <= len(told["jobs"]["causes"])  # each is rounded down


def test_a_page_that_cannot_be_made_is_refused_in_one_sentence(journal: Path, tmp_path: Path) -> None:
    assert "can be read" in kant("report", tmp_path / "none.jsonl").refusal()
    assert "a file in an existing folder" in kant("report", journal, "--out", tmp_path).refusal()
    assert "a file in an existing folder" in kant("report", journal, "--out", tmp_path / "a" / "b.html").refusal()
    broken = tmp_path / "broken.jsonl"
    first, *rest = journal.read_bytes().splitlines(keepends=True)
    broken.write_bytes(first + b"".join(reversed(rest)))
    assert "broken.jsonl:" in kant("report", broken, "--out", tmp_path / "p.html").refusal()
    live = tmp_path / "live.jsonl"
    live.write_bytes(first.replace(b'"zero":0', b'"zero":1000000'))
    assert "at the same time" in kant("report", journal, live, "--out", tmp_path / "p.html").refusal()
    assert not (tmp_path / "p.html").exists()
