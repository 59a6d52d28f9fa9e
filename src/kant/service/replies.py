"""What goes back over HTTP: one JSON object, or one sentence."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web


def answer(value: Any, status: int = 200) -> web.Response:
    """One JSON object."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def failure(sentence: str, status: int, **headers: str) -> web.Response:
    """What was wrong."""
    reply = answer({"error": sentence}, status)
    reply.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return reply
