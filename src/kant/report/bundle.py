"""The page as one HTML file: the built bundle (`web/`) with data inside, or with none and leave to ask its server."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from importlib.resources import files

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
<div id="root"></div>
<script type="application/json" id="kant-data">{{data}}</script>
<script>{{script}}</script>
</body>
</html>
"""
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def page(title: str, data: str, *, connect: bool = False) -> str:
    """The whole page. `data` is JSON that is safe in a script element (`as_json`).

    It may run its one script and style itself. It may fetch nothing, or with `connect` only from where it came from.
    """
    script = _read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    slots = {
        "title": escape(title),
        "policy": policy + ("; connect-src 'self'" if connect else ""),
        "licences": _read("LICENSES").replace("--", "- -"),
        "style": _read("page.css"),
        "data": data,
        "script": script,
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], _TEMPLATE)


def live_page(title: str = "Kant") -> str:
    """The page that a live Kant serves: it asks the server that it came from."""
    return page(title, '{"live": true}', connect=True)


def _read(name: str) -> str:
    return files("kant.report").joinpath("page", name).read_text(encoding="utf-8")
