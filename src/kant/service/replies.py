"""HTTP responses: one JSON object, or one sentence of error."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web


def answer(value: Any, status: int = 200) -> web.Response:
    """Return a response with one JSON object."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def failure(sentence: str, status: int, **headers: str) -> web.Response:
    """Return a response with an error message."""
    reply = answer({"error": sentence}, status)
    reply.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return reply
