"""What people see: tables that keep their shape, and names that stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.command import kant

from kant.cli.show import console, print_table
from kant.cli.show_answers import table

NAMES = ("[red]:smile:", "[/]\\[x]")
TWO = ("--profile", "baseline", "--profile", "kant")


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 80)


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables in `text`."""
    return [[cell.strip() for cell in line.strip("│|").split("│")] for line in text.splitlines() if line[:1] == "│"]


def test_tables_fit_in_eighty_columns(small: Path, journal: Path, tmp_path: Path) -> None:
    tables = {
        "simulate": ["simulate", small, "--cluster", "4x8"],
        "compare": ["compare", small, "--cluster", "4x8", *TWO, "--out", tmp_path / "out"],
        "policies": ["policies"],
        "profiles": ["profiles"],
        "replay": ["replay", journal, "--profile", "kant"],
    }
    for name, arguments in tables.items():
        outcome = kant(*arguments)
        assert outcome.code == 0, name
        for line in outcome.out.splitlines():
            assert len(line) <= 80 or line.startswith("report: "), (name, line)


def test_no_row_wraps_where_people_compare(small: Path, tmp_path: Path) -> None:
    """One line for each metric: a label, and a number for each run."""
    alone = kant("simulate", small, "--cluster", "4x8", "--profile", "muri-tiresias").out
    both = kant(
        "compare",
        small,
        "--cluster",
        "4x8",
        "--profile",
        "baseline",
        "--profile",
        "tiresias",
        "--out",
        tmp_path / "out",
    ).out
    for text, width in ((alone, 2), (both, 4)):
        metrics = [row for row in rows(text) if len(row) == width]
        assert [row[0] for row in metrics][:5] == ["GAR mean", "GAR median", "SOR", "GFR mean", "GFR median"]
        assert all(row[0] and row[1] for row in metrics), metrics
        assert "…" not in text
    sizes = [row for row in rows(alone) if len(row) == 8]
    assert [row[0] for row in sizes] == ["1", "2-8", "9-64"]


def test_policies_show_every_name_whole() -> None:
    shown = "".join(row[0] for row in rows(kant("policies").out))
    known = kant("policies", "--json").json()
    for kind in known.values():
        for policy in kind:
            assert policy["policy"] in shown


@pytest.mark.parametrize("name", NAMES)
def test_markup_in_names_is_text(name: str, tmp_path: Path) -> None:
    plain = name.replace("/", "_")
    folder = tmp_path / "[dim]"
    folder.mkdir()
    path = folder / f"{plain}.csv"
    path.write_text(f"id,submit_s,runtime_s,gpus,queue\n{name},0,10,8,{name}\nb,1,10,8,q\nc,2,10,999,{name}\n")
    profile = folder / f"{plain}.toml"
    profile.write_text(kant("profiles", "show", "fifo").out.replace('"fifo"\n', f"'{name}'\n", 1))
    outcome = kant("simulate", path, "--cluster", "1x8", "--profile", profile, "--out", folder / "out")
    assert outcome.code == 0 and outcome.err == ""
    assert f"{plain}.csv on 1x8" in outcome.out
    assert name in outcome.out and f"report: {folder}/out/report.html" in outcome.out
    compared = kant(
        "compare", path, "--cluster", "1x8", "--profile", profile, "--profile", "kant", "--out", folder / "two"
    )
    assert compared.code == 0 and name in compared.out and "[green]" not in compared.out
    assert f"{plain}.csv" in kant("trace", "describe", path).out
    assert str(path) in kant("check", path).out
    assert name in kant("check", profile).out
    assert str(folder) in kant("trace", "convert", path, folder / f"{plain}2.csv").out
    cluster = folder / f"{plain}-cluster.toml"
    cluster.write_text(f"name = '{name}'\n[[nodes]]\ngpus = 8\nmodel = '{name}'\n")
    described = kant("cluster", "describe", cluster)
    assert described.code == 0 and described.out.startswith(name)
    journal = folder / "out" / "journal.jsonl"
    assert kant("replay", journal, "--profile", profile).code == 0
    content = journal.read_text().replace('"do":"start","job":"b"', '"do":"hold","job":"b","reason":{"why":"blocked"}')
    if content != journal.read_text():
        journal.write_text(content)
        kant("replay", journal).is_civil()


LONG = "a-job-whose-name-has-no-place-to-break-and-is-longer-than-its-column-" * 2


@pytest.mark.parametrize("width", [40, 80, None])
def test_a_table_loses_nothing_whatever_the_width(
    width: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_width", width)
    table("Jobs", [{"job": LONG, "queue": "research", "gpus": 8}], {"job": "job", "queue": "queue", "gpus": "GPUs"})
    said = rows(capsys.readouterr().out)
    columns = ["".join(cells) for cells in zip(*said, strict=True)]
    assert columns == [LONG, "research", "8"]
    assert (len(said) == 1) == (width is None)  # in a pipe a row is a line


def test_a_table_has_lines_between_sections_and_says_how_many_rows_follow() -> None:
    with console.recorded(0, False) as text:
        print_table(("a", "b"), [(str(row), "x") for row in range(5)], most=3, ends=[1])
    lines = text.getvalue().splitlines()
    assert [line[2] for line in lines[3:-2]] == ["0", "1", "─", "2"]
    assert lines[-1] == "and 2 more (--json has all)"
