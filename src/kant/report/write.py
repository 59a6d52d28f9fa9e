"""The page as one file: the template with its style, scripts, words and data put in, written in one step."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from kant.metrics.result import RunResult
from kant.report import breakdown, page, scoreboard
from kant.report.data import as_json, labels, report_data

STYLES = ("vendor/uPlot.min.css", "report.css")
SCRIPTS = (
    "vendor/uPlot.iife.min.js",
    "codec.js",
    "charts.js",
    "layout.js",
    "map.js",
    "pick.js",
    "player.js",
    "report.js",
)

_SLOT = re.compile(r"\{\{(\w+)\}\}")


def write_report(path: Path, runs: Sequence[RunResult], title: str) -> None:
    """Write `runs` side by side to `path`, the first as the baseline of the others.

    The file is whole or is not there: it is written beside `path` and then renamed.
    """
    text = render(runs, title)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(text.encode("utf-8", "replace"))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def render(runs: Sequence[RunResult], title: str) -> str:
    """The page as text. It depends on nothing but its arguments."""
    if not runs:
        raise ValueError("a report needs at least one run")
    names = labels(runs)
    scripts = [_read(name) for name in SCRIPTS]
    slots = {
        "title": escape(title),
        "policy": _policy(scripts),
        "licence": _read("vendor/uPlot.LICENSE"),
        "style": "\n".join(_read(name) for name in STYLES),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
        "header": page.header(runs, names),
        "banner": page.banner(runs, names),
        "cards": scoreboard.cards(runs, names),
        "metrics": scoreboard.metrics_table(runs, names),
        "breakdown": breakdown.breakdowns(runs, names),
        "waits": scoreboard.waits_table(runs, names),
        "definitions": page.definitions(),
        "repeat": page.repeat(runs, names),
        "data": as_json(report_data(runs)),
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], _read("template.html"))


def _policy(scripts: Sequence[str]) -> str:
    """What the page may do: run exactly these scripts and style itself; above all, fetch nothing."""
    sums = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in sums)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _read(name: str) -> str:
    return files("kant.report").joinpath(name).read_text(encoding="utf-8")
