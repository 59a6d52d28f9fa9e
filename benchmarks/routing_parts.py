"""The processes around the router: an engine that costs nothing, and a proxy that only hands on.

`python -m benchmarks.routing_parts engine` answers at once, with JSON or with events that it spaces out;
`python -m benchmarks.routing_parts bare URL` is the least that a proxy of aiohttp does. Both print their port.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web

GAP_S = 0.005
EVENT = b'data: {"id":"x","object":"text_completion","choices":[{"index":0,"text":" tok","finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
JSON = b'{"id":"x","choices":[{"index":0,"text":" tok"}],"usage":{"prompt_tokens":100,"completion_tokens":16}}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(JSON), JSON)
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class FreeEngine(asyncio.Protocol):
    """Answers each POST with JSON, or with `max_tokens` events, `GAP_S` apart, where the body asks for a stream."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.data = transport, b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        if not found:
            return
        said = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        length = int(said or 0)
        if len(body) < length:
            return
        self.data = b""
        if not head.startswith(b"POST"):
            self.transport.write(EMPTY)
        elif b'"stream":true' in body:
            self.tokens = int(body.partition(b'"max_tokens":')[2].partition(b",")[0])
            self.say(0)
        else:
            self.transport.write(WHOLE)

    def say(self, k: int) -> None:
        if k == self.tokens:
            self.transport.write(chunk(DONE) + b"0\r\n\r\n")
            return
        self.transport.write((HEAD if k == 0 else b"") + chunk(EVENT))
        asyncio.get_running_loop().call_later(GAP_S, self.say, k + 1)


async def engine() -> None:
    server = await asyncio.get_running_loop().create_server(FreeEngine, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def bare(url: str) -> None:
    """Read the body, send it on, hand on what comes."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        async with session.post(url + request.path, data=body) as upstream:
            response = web.StreamResponse(status=upstream.status)
            response.content_type = upstream.content_type
            await response.prepare(request)
            async for piece in upstream.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    runner = web.ServerRunner(web.Server(handle, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(engine() if sys.argv[1] == "engine" else bare(sys.argv[2]))
