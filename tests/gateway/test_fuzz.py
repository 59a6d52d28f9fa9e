"""Strangers on both sides of the router: clients cannot break it, and what backends send is handed on to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.rig import SETTINGS, Client, dispatcher, routing, stream
from tests.patience import PATIENCE_S

from kant.gateway.mock import MockEngine, serve
from kant.serving.policy import Policy

HEADER = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters=":"), min_size=1, max_size=20)
RAW = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda method, path, headers, body, length: (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode("latin-1")
            + b"".join(f"{k}: {v}\r\n".encode("latin-1") for k, v in headers)
            + f"Content-Length: {len(body) if length is None else length}\r\n\r\n".encode()
            + body
        ),
        st.sampled_from(["POST", "GET", "DELETE", "OPTIONS", "CONNECT", "HEAD", "X"]),
        st.sampled_from(["/v1/completions", "/v1/chat/completions", "/metrics", "/health", "*", "/%00", "//"]),
        st.lists(
            st.tuples(
                st.sampled_from(
                    ["x-kant-program", "x-kant-predicted-tokens", "Authorization", "Transfer-Encoding", "Connection",
                     "Expect", "Content-Encoding", "Upgrade", "X-A"]
                ) | HEADER,
                HEADER | st.sampled_from(["chunked", "gzip", "100-continue", "Bearer x", "1e9", "-5", "websocket"]),
            ),
            max_size=5,
        ),
        st.binary(max_size=80) | st.sampled_from([b"{}", b'{"prompt":[1,2],"max_tokens":2,"stream":true}', b"[]"]),
        st.sampled_from([None, 0, 5, 10**12]),
    ),
)  # fmt: skip


@asynccontextmanager
async def one_engine() -> AsyncIterator[str]:
    """A mock engine in this process, thousands of times as fast as a real one."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    mock = MockEngine(SETTINGS, Policy(), "llama-3-8b", conducted=False, speed=1e4)
    task = asyncio.create_task(serve(mock, "127.0.0.1", 0, ready))
    try:
        yield f"http://127.0.0.1:{await ready}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@given(st.lists(RAW, min_size=1, max_size=6))
@settings(max_examples=examples(12))
def test_whatever_a_client_sends_the_next_one_is_served(sent: list[bytes]) -> None:
    async def run() -> None:
        async with one_engine() as engine:
            chosen = dispatcher([engine])
            async with routing(chosen) as (server, url), aiohttp.ClientSession() as session:
                for raw in sent:
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                    writer.write(raw)
                    writer.write_eof()
                    async with asyncio.timeout(PATIENCE_S):
                        answer = await reader.read()
                    assert b"500 Internal" not in answer and b"Traceback" not in answer
                    writer.close()
                client = Client()
                await stream(session, url, 3, 4, client)
                assert (client.status, client.tokens, client.finished) == (200, 4, True)
                async with asyncio.timeout(PATIENCE_S):
                    while server.proxy.in_flight:
                        await asyncio.sleep(0.001)
                assert not chosen.backends[0].rows and len(chosen.free) == chosen.limits.at_once

    asyncio.run(run())


@given(st.lists(st.binary(min_size=1, max_size=40) | st.just(b"data: {}\n\n"), min_size=1, max_size=8), st.booleans())
@example([b"data: [DONE]\n\n"], True)
@settings(max_examples=examples(12))
def test_what_a_backend_streams_reaches_the_client_to_the_byte_or_its_loss_is_said(
    pieces: list[bytes], whole: bool
) -> None:
    async def backend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n" if whole else b"5\r\nab")
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(backend, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        chosen = dispatcher([f"http://127.0.0.1:{address[1]}"])
        async with routing(chosen) as (_, url), aiohttp.ClientSession() as session:
            async with session.post(url + "/v1/completions", json={"stream": True}) as answer:
                got = await answer.read()
            sent = b"".join(pieces)
            if whole:
                assert got == sent
            else:
                assert got.startswith(sent) and b"backend_lost" in got[len(sent) :]
            assert not chosen.backends[0].rows
        server.close()
        await server.wait_closed()

    asyncio.run(run())


async def test_a_client_that_asks_whether_to_go_on_is_told_so() -> None:
    async with one_engine() as engine, routing(dispatcher([engine])) as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = b'{"prompt":[1],"max_tokens":2}'
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_request_that_is_refused_goes_elsewhere_without_the_headers_of_one_connection() -> None:
    asked = []

    async def busy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(busy, "127.0.0.1", 0)
    async with one_engine() as engine:
        urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", engine]
        async with routing(dispatcher(urls)) as (_, url), aiohttp.ClientSession() as session:
            body = {"prompt": [1], "max_tokens": 3}
            headers = {"Connection": "x-secret", "X-Kept": "yes"}
            async with session.post(url + "/v1/completions", json=body, headers=headers) as answer:
                assert answer.status == 200 and (await answer.json())["usage"]["completion_tokens"] == 3
                assert answer.headers["x-kant-backend"] == "1"
        posts = [head for head in asked if head.startswith(b"POST")]
        assert len(posts) == 1 and b"X-Kept: yes" in posts[0] and b"x-secret" not in posts[0]
    server.close()
