"""A proxy before the API server that does to requests what networks and busy servers do to them.

Kant speaks plain HTTP to it (`plane.kubeconfig(server=proxy.url)`), it speaks TLS to the API server. What it does is
drawn from a seeded random, in the order in which requests arrive.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from tests.kube.control_plane import ControlPlane
from yarl import URL

REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
REFUSE, DROP, DELAY, DUPLICATE, CLOSE, STALL, SLOW = "refuse", "drop", "delay", "duplicate", "close", "stall", "slow"
LATE = "late"
ON_REPLIES, ON_WATCHES = (DROP, DELAY, DUPLICATE, LATE), (CLOSE, STALL, SLOW)
KINDS = (REFUSE, *ON_REPLIES, *ON_WATCHES, *map(str, REASONS))
TICK_S = 0.05
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "te", "upgrade"}
PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/[^/]))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>.+))?)?"
)


@dataclass(frozen=True)
class Fault:
    """What happens to a share of the requests whose verb is `verb` and whose resource matches `resource`.

    kind: "refuse" (the request is lost), "drop" (carried out, the reply is lost), "delay" (the reply comes `seconds`
    late), "late" (the request itself does, though its sender be gone by then), "duplicate" (sent twice, the second
    reply counts), a code such as "429" (not carried out, or carried out all
    the same with `after`); of watches "close" (silently, within `seconds`), "stall" (silent but open, from within
    `seconds`), "slow" (`rate` bytes a second), "410" (as an event of the stream).
    """

    kind: str
    share: float = 1.0
    verb: str = ""
    resource: str = ""
    seconds: float = 1.0
    rate: int = 2_000
    after: bool = False

    def __post_init__(self) -> None:
        assert self.kind in KINDS, f"expected one of {KINDS}, not {self.kind!r}"

    def concerns(self, verb: str, resource: str) -> bool:
        """verb: get, list, watch, create, patch, update, delete. resource: "pods", "pods/binding"."""
        if self.kind in (ON_REPLIES if verb == "watch" else ON_WATCHES):
            return False
        return (not self.verb or verb == self.verb) and bool(re.fullmatch(self.resource or ".*", resource))


class FaultProxy:
    """`async with FaultProxy(plane, [Fault("drop", 0.02)], seed=1) as proxy`; `faults` may change at any time."""

    def __init__(self, plane: ControlPlane, faults: Sequence[Fault] = (), *, seed: int = 0) -> None:
        self.plane, self.faults = plane, list(faults)
        self.requests: Counter[tuple[str, str]] = Counter()
        self.replies: Counter[tuple[str, str, int]] = Counter()
        self.injected: Counter[str] = Counter()
        self._random = random.Random(seed)
        self._open: set[asyncio.Transport] = set()
        self._away = False
        self._late: set[asyncio.Task[tuple[int, dict[str, str], bytes]]] = set()
        self.deliver = asyncio.Event()
        """Until this is set, the requests that are "late" are under way."""
        self.late_refused = 0
        """Those of them that the API server refused."""

    async def __aenter__(self) -> FaultProxy:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self.plane.tls(), limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=["Accept-Encoding"],  # it would get compressed what its client has not asked for
        )
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._cut()
        for late in self._late:
            late.cancel()
        await self._runner.cleanup()
        await self._http.close()

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """Everything that is open breaks, and nothing is answered until the end of the block."""
        self._away = True
        self._cut()
        try:
            yield
        finally:
            self._away = False

    def cut_watches(self) -> None:
        """Break all that is open now, watches too."""
        self._cut()

    def count(self, verb: str = "", resource: str = "") -> int:
        """Requests that arrived so far."""
        return sum(n for (v, r), n in self.requests.items() if (not verb or v == verb) and resource in ("", r))

    # --- one request ---------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        verb, resource = classify(request.method, request.path, request.query)
        self.requests[verb, resource] += 1
        if transport is None or self._away:
            return _abort(transport)
        self._open.add(transport)
        try:
            return await self._answer(request, transport, verb, resource)
        except (aiohttp.ClientError, ConnectionError):  # the server or the client went away
            return _abort(transport)
        finally:
            self._open.discard(transport)

    async def _answer(
        self, request: web.Request, transport: asyncio.Transport, verb: str, resource: str
    ) -> web.StreamResponse:
        body = await request.read()
        fault = self._draw(verb, resource)
        kind = fault.kind if fault else ""
        if kind == REFUSE:
            return _abort(transport)
        if fault and kind.isdigit() and not fault.after:
            return _in_stream(fault) if verb == "watch" and kind == "410" else _refusal(fault)
        if verb == "watch":
            return await self._stream(request, transport, fault)
        if kind == DUPLICATE:
            await self._forward(request, body)
        if fault and kind == LATE:
            late = asyncio.create_task(self._forward_late(request, body))
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            status, headers, text = await asyncio.shield(late)
        else:
            status, headers, text = await self._forward(request, body)
        self.replies[verb, resource, status] += 1
        if kind == DROP:
            return _abort(transport)
        if fault and kind.isdigit():
            return _refusal(fault)
        if fault and kind == DELAY:
            await asyncio.sleep(fault.seconds)
        return web.Response(status=status, headers=headers, body=text)

    def _draw(self, verb: str, resource: str) -> Fault | None:
        """The first fault that concerns the request and whose die falls; every such fault has a throw of its own."""
        for fault in self.faults:
            if fault.concerns(verb, resource) and self._random.random() < fault.share:
                self.injected[fault.kind] += 1
                return fault
        return None

    async def _forward(self, request: web.Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        async with self._send(request, body) as reply:
            return reply.status, _kept(reply.headers), await reply.read()

    async def _forward_late(self, request: web.Request, body: bytes) -> tuple[int, dict[str, str], bytes]:
        await self.deliver.wait()
        answer = await self._forward(request, body)
        self.late_refused += answer[0] >= 400
        return answer

    def _send(self, request: web.Request, body: bytes = b"") -> aiohttp.client._RequestContextManager:
        target = URL(self.plane.url + request.raw_path, encoded=True)
        return self._http.request(request.method, target, headers=_kept(request.headers), data=body or None)

    async def _stream(
        self, request: web.Request, transport: asyncio.Transport, fault: Fault | None
    ) -> web.StreamResponse:
        """A watch, chunk by chunk as it comes."""
        loop = asyncio.get_running_loop()
        end = None
        if fault and fault.kind in (CLOSE, STALL):
            end = loop.time() + self._random.uniform(0, fault.seconds)
        async with self._send(request) as reply:
            answer = web.StreamResponse(status=reply.status, headers=_kept(reply.headers))
            await answer.prepare(request)
            try:
                async with asyncio.timeout_at(end):
                    async for piece in reply.content.iter_any():
                        if end is not None and loop.time() >= end:
                            raise TimeoutError
                        for drop in _drops(piece, fault):
                            await answer.write(drop)
                            await asyncio.sleep(TICK_S if len(drop) < len(piece) else 0)
            except TimeoutError:
                if fault and fault.kind == STALL:
                    while not transport.is_closing():
                        await asyncio.sleep(0.05)
            await answer.write_eof()
            return answer

    def _cut(self) -> None:
        for transport in self._open:
            transport.abort()


def classify(method: str, path: str, query: object = ()) -> tuple[str, str]:
    """The verb and the resource of a request, in the words of RBAC: ("create", "pods/binding")."""
    found = PATH.fullmatch(path)
    if found is None:
        return "get", path
    resource = found["plural"] + (f"/{found['sub']}" if found["sub"] else "")
    if method == "GET" and not found["name"]:
        words = dict(query) if query else {}  # type: ignore[call-overload]
        return ("watch" if words.get("watch") in ("1", "true") else "list"), resource
    return {"POST": "create", "PUT": "update"}.get(method, method.lower()), resource


def _drops(piece: bytes, fault: Fault | None) -> list[bytes]:
    """What may be passed on at once, for a rate of bytes a second."""
    if fault is None or fault.kind != SLOW:
        return [piece]
    size = max(1, int(fault.rate * TICK_S))
    return [piece[start : start + size] for start in range(0, len(piece), size)]


def _kept(headers: object) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP}  # type: ignore[attr-defined]


def _abort(transport: asyncio.Transport | None) -> web.StreamResponse:
    if transport is not None:
        transport.abort()
    return web.Response(status=502)


def _status(fault: Fault) -> dict[str, object]:
    code = int(fault.kind)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "injected by the tests",
        "reason": REASONS[code],
        "code": code,
    }


def _refusal(fault: Fault) -> web.Response:
    headers = {"Retry-After": str(max(1, round(fault.seconds)))} if fault.kind in ("429", "503") else {}
    return web.json_response(_status(fault), status=int(fault.kind), headers=headers)


def _in_stream(fault: Fault) -> web.Response:
    line = json.dumps({"type": "ERROR", "object": _status(fault)}) + "\n"
    return web.Response(text=line, content_type="application/json")
