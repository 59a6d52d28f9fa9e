"""The page as one HTML file: the built bundle (`web/`) with data inside, or without data and able to ask its server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from kant.files import write_bytes
from kant.metrics.result import RunResult
from kant.report.data import as_json, report_data

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{policy}}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
<!-- This page holds:
{{licences}}-->
<style>{{style}}</style>
</head>
<body>
<noscript>This page needs JavaScript.</noscript>
{{tabs}}<div id="root"></div>
{{parts}}<script type="application/json" id="kant-data">{{data}}</script>
<script>{{script}}</script>
</body>
</html>
"""
_SLOT = re.compile(r"\{\{(\w+)\}\}")


_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_TABS = """
.tabs { display: flex; gap: .3rem 1.4rem; border: 0; margin: 0; padding: .7rem 2.2rem; }
.tabs label { cursor: pointer; }
.tabs input:checked + span { font-weight: 600; text-decoration: underline; }
.part { display: none; width: 100%; height: calc(100vh - 4rem); border: 0; }
"""


NO_PARTS: Mapping[str, str] = MappingProxyType({})


def write_report(
    path: Path, runs: Sequence[RunResult], title: str, zero: int | None = None, parts: Mapping[str, str] = NO_PARTS
) -> None:
    """Write `runs` side by side to `path`, the first as the baseline of the others.

    The page shows times as dates if `zero` is given: the run's time zero in microseconds since the Unix epoch. `parts`
    are further pages by name, each with a tab. The file is written completely or not at all.
    """
    text = render(runs, title, zero, parts)
    write_bytes(path, text.encode("utf-8", "replace"))


def render(runs: Sequence[RunResult], title: str, zero: int | None = None, parts: Mapping[str, str] = NO_PARTS) -> str:
    """Return the page as text. It depends only on its arguments."""
    if not runs:
        raise ValueError("a report needs at least one run")
    return page(title, as_json(report_data(runs, title, zero)), parts=parts)


def page(title: str, data: str, *, parts: Mapping[str, str] = NO_PARTS) -> str:
    """Return the whole page. `data` is JSON that is safe in a script element (`as_json`).

    The content security policy lets the page run its own scripts and styles, and fetch nothing.
    `parts` are further pages by name, complete HTML documents, each with a tab next to the cluster's.
    """
    script = _read("page.js")
    scripts = [script, *(found for text in parts.values() for found in _SCRIPT.findall(text))]
    sources = " ".join(map(_digest, scripts))
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {sources}"
    slots = {
        "title": escape(title),
        "policy": policy,
        "licences": _read("LICENSES").replace("--", "- -"),
        "style": _read("page.css") + (_TABS + _shown(len(parts)) if parts else ""),
        "tabs": _tabs(list(parts)) if parts else "",
        "parts": "".join(_part(k, name, text) for k, (name, text) in enumerate(parts.items(), start=1)),
        "data": data,
        "script": script,
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], _TEMPLATE)


def _digest(script: str) -> str:
    """Return the digest of a script in the form of the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _tabs(names: Sequence[str]) -> str:
    """Return radio buttons that act as tabs without a script."""
    labels = "".join(
        f'<label><input type="radio" name="tab" id="tab-{k}"{" checked" if k == 0 else ""}>'
        f" <span>{escape(name)}</span></label>"
        for k, name in enumerate(["Cluster", *names])
    )
    return f'<fieldset class="tabs" aria-label="What is shown">{labels}</fieldset>\n'


def _shown(parts: int) -> str:
    """Return CSS rules that show only the chosen tab: the cluster or one of the parts."""
    rules = (
        f"body:has(#tab-{k}:checked) {rule}"
        for k in range(1, parts + 1)
        for rule in ("#root { display: none; }", f"#part-{k} {{ display: block; }}")
    )
    return "\n".join(rules)


def _part(number: int, name: str, text: str) -> str:
    """Return a separate document, which is subject to the policy of this page and to its own."""
    return f'<iframe class="part" id="part-{number}" title="{escape(name)}" srcdoc="{escape(text)}"></iframe>\n'


def _read(name: str) -> str:
    return files("kant.report").joinpath("page", name).read_text(encoding="utf-8")
