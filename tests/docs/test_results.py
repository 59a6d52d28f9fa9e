"""The page of results is what the records of the studies say, and these come from the studies' own pages."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from benchmarks.studies import __main__ as runner
from benchmarks.studies import parts, results
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.command import kant

CELLS = st.text(st.characters(categories=["L", "N"], include_characters="±.%`"), min_size=1, max_size=8)
OTHERS = ("__init__", "__main__", "parts", "results")
MODULES = sorted(path for path in results.HERE.glob("*.py") if path.stem not in OTHERS)


def test_the_page_is_what_the_records_say() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page(results.records()), (
        "docs/results.md is generated: run `python -m benchmarks.studies results`"
    )


def test_every_published_number_is_in_a_record_and_no_other() -> None:
    """As often as published.toml says, with something of ours beside it."""
    published = tomllib.loads((results.HERE / "published.toml").read_text(encoding="utf-8"))
    whats = {entry["what"] for entry in (*published["number"], *published["table"])}
    rows = [row for record in results.records() for row in record["rows"]]
    assert {row["what"].partition(": ")[0] if row["what"] not in whats else row["what"] for row in rows} == whats
    assert all(row["ours"] and row["published"] for row in rows)
    assert {"Kant", "FGD", "Helios", "Past-Future"} <= {row["system"] for row in rows}


@pytest.mark.long
def test_what_is_published_is_found_on_the_pages_as_they_are() -> None:
    """Whoever changes a table of a study says in published.toml where its number is now."""
    published = tomllib.loads((results.HERE / "published.toml").read_text(encoding="utf-8"))
    studies = results.studies()  # it reads the source of all of them
    for entry in (*published["number"], *published["table"]):
        study = studies[entry["study"]]
        assert list(results._numbers(entry, study.text())), entry["what"]


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=5), CELLS)
def test_a_table_is_read_back_as_it_was_written(rows: list[list[str]], other: str) -> None:
    table = "\n".join(f"| {a} | {b} |" for a, b in rows)
    rest = "\n\n## Three\n\n| y |\n|---|\n"
    text = f"# One\n\n| {other} |\n|---|\n\n## Two\n\nwords\n\n| x | x |\n|---|---:|\n{table}{rest}"
    assert results.tables(text, "Two") == [[{"x": a, "x (2)": b} for a, b in rows]]
    with pytest.raises(LookupError, match="no heading"):
        results.tables(text, "Four")


def test_a_study_writes_its_part_of_a_page_and_no_other(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Both\n\n<!-- study: one -->\n\nold\n\n<!-- study: two -->\n\n## Two\n\nkept\n", encoding="utf-8")
    parts.write_part(page, "one", ["# One", "", "```sh", "# a comment", "```", "", "## Table", ""])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Both\n\n<!-- study: one -->\n\n## One\n\n```sh\n# a comment\n```\n\n### Table\n\n<!--")
    assert parts.part_of(text, "two") == "\n## Two\n\nkept\n" and text.count("\n## ") == 2
    parts.write_part(page, "two", ["# Two", "", "new"])
    assert page.read_text(encoding="utf-8").endswith("### Table\n\n<!-- study: two -->\n\n## Two\n\nnew\n")
    with pytest.raises(LookupError, match="study: three"):
        parts.write_part(page, "three", ["# Three"])


def test_every_study_that_shares_a_page_has_its_part() -> None:
    for study in results.studies().values():
        for page in study.pages:
            text = (results.ROOT / "docs" / page).read_text(encoding="utf-8")
            assert "<!-- study: " not in text or parts.part_of(text, study.name) != text, study.name


def test_every_study_that_writes_a_page_is_listed() -> None:
    listed = results.studies()
    for path in MODULES:
        page = results.page_of(path)
        assert bool(page) == (path.stem in listed), path.name
        assert not page or page in listed[path.stem].pages, path.name
    assert {path.stem for path in MODULES} >= listed.keys()
    pinned = tomllib.loads((results.HERE / "studies.toml").read_text(encoding="utf-8"))["inputs"]
    for study in results.studies().values():
        assert set(study.inputs) <= set(pinned) and (
            not study.sweep or (results.HERE / "sweeps" / study.sweep).exists()
        )


@pytest.mark.parametrize("file", sorted((results.HERE / "sweeps").glob("*.toml")), ids=lambda path: path.stem)
def test_the_sweep_of_a_long_study_can_be_run(file: Path, tmp_path: Path) -> None:
    assert file.name in {study.sweep for study in results.studies().values()}
    found = kant("sweep", file, "--out", tmp_path / "out", "--dry-run", "--json").json()
    assert found["runs"] == found["to_do"] >= 100


def test_an_input_that_is_not_the_pinned_one_leaves_its_study_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "DATA", tmp_path)
    assert "no lingjun2023_topo.csv.gz in" in runner.lacks(results.studies()["topology"])
    (tmp_path / "lingjun2023_topo.csv.gz").write_bytes(b"another")
    monkeypatch.setattr(runner, "PAGE", results.ROOT / "build" / "results.md")
    runner.PAGE.parent.mkdir(exist_ok=True)
    assert runner.main(["topology"]) == 1
    assert "topology: left out: " in capsys.readouterr().err
    for words in (["nobody"], ["--only", "nobody"], []):
        with pytest.raises(SystemExit):
            runner.main(words)


def test_the_list_says_what_takes_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in results.studies()) and "CPU min" in said and "kant sweep" in said
