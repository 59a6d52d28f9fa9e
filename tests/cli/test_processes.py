"""Every verb as a process of its own, and the ends of its pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.command import KANT, Outcome, environment, kant, process

from kant.cli.app import HELP

pytestmark = pytest.mark.long


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from kant.cli.app import run; code = run(sys.argv[1:]);"
        "heavy = {'numba', 'numpy', 'polars', 'llvmlite', 'pyarrow'} & set(sys.modules);"
        "sys.exit(f'{heavy} loaded' if heavy else code)"
    )
    for arguments in ([], ["--help"], ["--version"], ["simulate", "--help"], ["nonsense"]):
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
        assert "loaded" not in done.stderr
        assert done.returncode == (2 if arguments == ["nonsense"] else 0), done


def test_help_comes_without_the_library_of_the_command_line() -> None:
    program = "import sys; from kant.cli.app import run; run(['--help']); sys.exit('cyclopts' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=True)
    for arguments in ([], ["-h"], ["help"]):
        assert process(*arguments) == process("--help") == Outcome(0, HELP.read_text(), "")


def test_a_command_seldom_looks_for_garbage_while_it_loads() -> None:
    program = (
        "import atexit, gc; from kant.cli import main;"
        "atexit.register(lambda: print(sum(each['collections'] for each in gc.get_stats()) - before));"
        "before = sum(each['collections'] for each in gc.get_stats()); main(['profiles', '--json'])"
    )
    printed = subprocess.check_output([sys.executable, "-I", "-c", program], env=environment(), text=True)
    assert int(printed.splitlines()[-1]) < 10, "by default it is more than a hundred"


def test_from_a_generator_to_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One person's way through all verbs; the last is a process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def said(*arguments: str) -> str:
        alone = arguments[0] == "replay"
        outcome = process(*arguments, cwd=tmp_path) if alone else kant(*arguments)
        assert outcome.code == 0 and outcome.err == "", outcome
        return outcome.out

    assert said("trace", "generate", "philly", "--out", "w.csv", "--jobs", "200", "--days", "2") == (
        "200 jobs written to w.csv\n"
    )
    assert "jobs: 200" in said("trace", "describe", "w.csv")
    assert said("trace", "convert", "w.csv", "w.parquet") == "200 jobs written to w.parquet\n"
    assert said("check", "w.parquet") == "w.parquet: a workload of 200 jobs\n"
    assert "gpus: 128" in said("cluster", "describe", "16x8")
    assert "tiresias" in said("profiles")
    (tmp_path / "mine.toml").write_text(said("profiles", "show", "srtf"))
    assert "consolidated" in said("policies")
    assert said("simulate", "w.parquet", "--cluster", "16x8", "--profile", "mine.toml", "--out", "one").splitlines()[
        -1
    ] == ("report: one/report.html")
    first = json.loads(said("simulate", "w.csv", "--cluster", "16x8", "--profile", "srtf", "--json"))
    assert first["digest"] == json.loads((tmp_path / "one" / "summary.json").read_text())["digest"]
    said("compare", "w.csv", "--cluster", "16x8", "--profile", "baseline", "--profile", "kant")
    assert (tmp_path / "kant-run" / "kant" / "summary.json").is_file()
    assert said("replay", "one/journal.jsonl").startswith("equal: ")
    said("demo", "--days", "1", "--nodes", "4", "--out", "demo")
    assert (tmp_path / "demo" / "report.html").is_file()


@pytest.mark.parametrize("arguments", [["policies", "--json"], ["--help"]])
def test_nobody_reads(arguments: list[str]) -> None:
    """The reader has gone before the first word: no complaint, and no answer of no."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        outcome = process(*arguments, stdout=writing)
    finally:
        os.close(writing)
    assert (outcome.code, outcome.err) == (0, "")


def test_a_reader_of_one_line() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" policies | head -n 1', KANT], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.stdout.strip() == "order" and done.stderr == ""


def test_an_answer_of_no_without_a_reader(journal: Path, tmp_path: Path) -> None:
    """The exit code of `replay` is its answer, even where nobody reads the rest."""
    path = tmp_path / "tampered.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if b'"do":"hold"' in line)
    plan = json.loads(lines[at])
    next(decision for decision in plan["decisions"] if decision["do"] == "hold")["job"] = "nobody"
    path.write_bytes(
        b"".join([*lines[:at], json.dumps(plan, separators=(",", ":")).encode() + b"\n", *lines[at + 1 :]])
    )
    reading, writing = os.pipe()
    os.close(reading)
    outcome = process("replay", path, stdout=writing)
    os.close(writing)
    assert (outcome.code, outcome.err) == (1, "")


@pytest.mark.parametrize("arguments", [["profiles", "show", "kant"], ["check", "nowhere"]])
def test_closed_streams(arguments: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", KANT, *arguments], cwd=tmp_path, env=environment(), check=False
    )
    assert done.returncode == (2 if "nowhere" in arguments else 0)
    assert not list(tmp_path.iterdir())


def test_names_beyond_ascii(small: Path, tmp_path: Path) -> None:
    """Tables say what the terminal can show; JSON is UTF-8 wherever it goes."""
    path = tmp_path / "größe.csv"
    path.write_bytes(small.read_bytes().replace(b"batch", "büro".encode()))
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    shown = process("simulate", path, "--cluster", "4x8", env=ascii_only)
    assert shown.code == 0 and shown.err == "" and shown.out.isascii()
    summary = process("simulate", path, "--cluster", "4x8", "--json", env=ascii_only).json()
    assert summary["workload"] == "größe.csv" and "büro" in summary["by_queue"]


def test_a_file_name_that_is_not_utf8(small: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.csv"
    try:
        with open(path, "wb") as file:  # noqa: PTH123 a Path would not take bytes
            file.write(small.read_bytes())
    except OSError:
        pytest.skip("this file system knows UTF-8 only")
    assert "UTF-8" in kant("simulate", os.fsdecode(path), "--cluster", "4x8", "--json").refusal()
