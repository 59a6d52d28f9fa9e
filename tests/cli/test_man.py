"""Manual pages: every verb has one, man(1)'s language is kept, and what `--help` says stands in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.command import kant

from kant.cli.man import _plain, pages
from kant.cli.verbs import VERBS


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    return pages()


@pytest.mark.long
def test_every_verb_has_a_page_with_all_its_options(tmp_path: Path, found: dict[str, str]) -> None:
    assert {f"kant-{verb}.1" for verb in VERBS} | {"kant.1", "kant-token-new.1"} <= set(found)
    text = found["kant-submit.1"]
    for word in ("\\-\\-after, \\-\\-after\\-any", "\\-\\-output, \\-o", "Queue a command and print its id"):
        assert word in text
    written = kant("man", "--to", tmp_path / "man1")
    assert written.code == 0 and f"{len(found)} pages" in written.out
    assert {path.name: path.read_text() for path in (tmp_path / "man1").iterdir()} == found
    assert kant("man", "token", "new").out == found["kant-token-new.1"]
    assert kant("man").out == found["kant.1"]
    assert "a verb of `kant --help`" in kant("man", "nonsense").refusal()


@pytest.mark.long
def test_no_line_of_a_page_is_a_request_by_accident(found: dict[str, str]) -> None:
    known = {"TH", "SH", "B", "BR", "TP", "PP"}
    for name, text in found.items():
        for line in text.splitlines():
            assert not line.startswith("'") and (not line.startswith(".") or line[1:3].strip() in known), (name, line)
    assert _plain("a\\b -x") == "a\\eb \\-x" and _plain(".profile") == "\\&.profile"


@pytest.mark.long
def test_man_reads_them(found: dict[str, str]) -> None:
    roff = shutil.which("groff") or shutil.which("mandoc")
    if roff is None:
        pytest.skip("neither groff nor mandoc")
    options = ["-man", "-Tutf8", "-ww"] if roff.endswith("groff") else ["-Tlint"]
    for text in (found["kant.1"], found["kant-submit.1"]):
        done = subprocess.run([roff, *options], input=text, capture_output=True, text=True, check=True)
        assert not re.search("error|warning", done.stderr), done.stderr
