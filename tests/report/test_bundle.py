"""The page's bundle is built from what lies in web/, and people get it without Node."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

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
