"""The live web page at `/`: the same bundle as in a report, but it fetches its data from Kant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html import escape
from importlib import resources

from aiohttp import web

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
FILES = {"page.js": "text/javascript", "page.css": "text/css"}
ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><rect x="2" y="2" width="9" height="9" rx="2" '
    b'fill="#0072b2"/><rect x="13" y="2" width="9" height="9" rx="2" fill="#c3c9d2"/><rect x="2" y="13" width="9" '
    b'height="9" rx="2" fill="#c3c9d2"/><rect x="13" y="13" width="9" height="9" rx="2" fill="#d55e00"/></svg>'
)


def routes(title: str) -> list[web.RouteDef]:
    """Return the routes of the page's files. They contain no data and need no token. `title` is the cluster's name."""
    bundle = resources.files("kant") / "report" / "page"
    files = {f"/{name}": ((bundle / name).read_bytes(), kind) for name, kind in FILES.items()}
    files["/icon.svg"] = ICON, "image/svg+xml"
    files["/"] = shell(title).encode(), "text/html"
    return [web.get(path, _serve(body, kind)) for path, (body, kind) in files.items()]


def shell(title: str) -> str:
    """Return the HTML of the page, without data."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} · Kant</title>
<link rel="icon" href="/icon.svg">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<div id="root"></div>
<noscript>This page needs JavaScript; <code>kant jobs</code> and the other commands do without.</noscript>
<script type="application/json" id="kant-data">{{"live": true}}</script>
<script src="/page.js"></script>
</body>
</html>
"""


def _serve(body: bytes, kind: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.Response(body=body, headers=HEADERS, content_type=kind, charset="utf-8")
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    return handler
