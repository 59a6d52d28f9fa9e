"""The page's bundle is built from what lies in web/, and people get it without Node."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kant.cli.completion import files
from kant.cli.man import pages

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
PAGE = ROOT / "src" / "kant" / "report" / "page"
LEFT_OUT = {"node_modules", "dist", ".vite"}


def digest() -> str:
    """What web/sources.mjs computes, written for itself."""
    paths = (path for path in WEB.rglob("*") if path.is_file())
    names = (path.relative_to(WEB) for path in paths)
    kept = sorted(name.as_posix() for name in names if not LEFT_OUT.intersection(name.parts))
    lines = (f"{hashlib.sha256((WEB / name).read_bytes()).hexdigest()}  {name}\n" for name in kept)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_bundle_is_that_of_its_sources() -> None:
    assert (PAGE / "SOURCES").read_text().strip() == digest(), "run make web, and commit src/kant/report/page"


def test_the_licences_of_what_is_bundled_come_along() -> None:
    text = (PAGE / "LICENSES").read_text()
    for name in ("react ", "react-dom ", "uplot "):
        assert f"{name}" in text
    assert text.count("Permission is hereby granted") == 4


def test_the_bundle_the_manual_pages_and_the_completions_are_in_the_wheel(tmp_path: Path) -> None:
    hatchling = pytest.importorskip("hatchling", reason="hatchling is not installed")
    assert hatchling is not None
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        about = [wheel.read(name).decode() for name in names if name.endswith(".dist-info/METADATA")]
        shared = {name.partition("/data/share/")[2]: wheel.read(name).decode() for name in names if "/data/" in name}
    assert [re.findall(r"^Name: (.*)$", text, re.MULTILINE) for text in about] == [["kant-scheduler"]]
    assert shared == {f"man/man1/{name}": text for name, text in pages().items()} | files()
    assert {f"kant/report/page/{name}" for name in ("page.js", "page.css", "SOURCES", "LICENSES")} <= names
