"""Connections to backends: whatever the pieces in which an answer comes, its body is handed on whole, and ends."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.gateway.rig import dispatcher, routing
from tests.patience import PATIENCE_S

from kant.gateway.upstream import Connection, Head, UnreachableError, UpstreamError, Upstreams


class Wire:
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        self.written, self.aborted, self.paused = b"", False, False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += b"".join(parts)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Played:
    """A connection on which a backend says what it is told to say."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.idle: list[Connection] = []
        self.connection = Connection(self.loop, self.idle)
        self.wire: Any = Wire()
        self.connection.connection_made(self.wire)
        self.asked = self.ask()

    def ask(self) -> asyncio.Task[Head]:
        task = self.loop.create_task(self.connection.ask(b"POST / HTTP/1.1\r\n\r\n", b"{}"))
        self.turn()
        return task

    def turn(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    def say(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.connection.data_received(piece)
            self.turn()

    def body(self, late: list[bytes] | None = None) -> tuple[list[tuple[bytes, bytes | None]], asyncio.Future[None]]:
        """Take the body, of which `late` is still to come."""
        taken: list[tuple[bytes, bytes | None]] = []
        whole = self.connection.pieces(lambda piece, chunks: taken.append((piece, chunks)))
        self.say(*(late or []))
        return taken, whole

    def close(self) -> None:
        self.connection.close()
        self.loop.close()


BODIES = st.lists(st.binary(min_size=1, max_size=40) | st.just(b"data: {}\n\n") | st.just(b"x" * 9000), max_size=6)
CHUNKS_END = st.sampled_from([b"0\r\n\r\n", b"0;last\r\n\r\n", b"000\r\nA: b\r\nC: d\r\n\r\n"])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({p % (len(data) + 1) for p in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


@given(
    BODIES,
    st.sampled_from([b"", b";a=b"]),
    CHUNKS_END,
    st.lists(st.integers(0, 1 << 20), max_size=8),
    st.integers(0, 9),
)
@settings(max_examples=examples(60))
def test_a_body_in_chunks_is_whole_however_it_is_cut(
    parts: list[bytes], extension: bytes, end: bytes, places: list[int], early: int
) -> None:
    sent = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + end
    played = Played()
    pieces = cut(b"HTTP/1.1 100 Go on\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + sent, places)
    while pieces and not played.asked.done():
        played.say(pieces.pop(0))
    head = played.asked.result()
    assert head.status == 200 and head.framed
    for _ in range(early):
        if pieces:
            played.say(pieces.pop(0))
    taken, whole = played.body(pieces)
    assert whole.done() and whole.exception() is None and not played.wire.paused
    assert b"".join(piece for piece, _ in taken) == b"".join(parts)
    for piece, chunks in taken:  # what is handed on in its own frame is the same body
        if chunks is not None:
            again = Played()
            again.say(b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", chunks, b"0\r\n\r\n")
            assert b"".join(part for part, _ in again.body()[0]) == piece
            again.close()
    played.connection.release()
    assert played.idle == [played.connection]  # kept for the next request
    played.ask()
    played.close()


@given(st.binary(max_size=300), st.booleans(), st.booleans(), st.lists(st.integers(0, 1 << 20), max_size=5))
@settings(max_examples=examples(40))
def test_a_body_ends_with_its_length_or_with_the_connection(
    sent: bytes, length: bool, kept: bool, places: list[int]
) -> None:
    says = (b"Content-Length: %d\r\n" % len(sent) if length else b"") + (b"" if kept else b"Connection: Close\r\n")
    played = Played()
    played.say(b"HTTP/1.1 200 OK\r\n" + says + b"\r\n")
    assert played.asked.result().framed == length
    taken, whole = played.body(cut(sent, places))
    assert whole.done() == length
    if not length:
        played.connection.connection_lost(None)
    assert whole.done() and whole.exception() is None
    assert b"".join(piece for piece, _ in taken) == sent
    played.connection.release()
    assert bool(played.idle) == (length and kept) != played.wire.aborted
    played.close()


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA B: c\nd\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"a" * 70_000,
        b"",
    ],
)
def test_what_is_no_answer_or_breaks_off_is_an_error_in_a_sentence(said: bytes) -> None:
    played = Played()
    played.say(*([said] if said else []))
    if played.asked.done() and played.asked.exception() is None:
        _, waits = played.body()
    else:
        waits = played.asked  # type: ignore[assignment]
    played.connection.connection_lost(None)
    played.turn()
    error = waits.exception()
    assert isinstance(error, UpstreamError) and str(error).startswith("it")
    played.connection.release()
    assert not played.idle and played.wire.aborted
    played.close()


@given(st.lists(st.binary(max_size=60), max_size=6), st.booleans())
@settings(max_examples=examples(60))
def test_nothing_that_a_backend_says_breaks_anything(said: list[bytes], head: bool) -> None:
    played = Played()
    played.say(*([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"] if head else []), *said)
    whole = played.body()[1] if played.asked.done() and played.asked.exception() is None else None
    played.connection.connection_lost(ConnectionResetError())
    played.turn()
    for waits in (played.asked, whole):
        assert waits is None or waits.done()
        assert waits is None or waits.exception() is None or isinstance(waits.exception(), UpstreamError)
    played.close()


def test_what_the_taker_raises_ends_the_connection_and_comes_back() -> None:
    played = Played()
    played.say(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")

    def take(piece: bytes, _: bytes | None) -> None:
        raise ValueError(piece)

    whole = played.connection.pieces(take)
    assert isinstance(whole.exception(), ValueError) and played.wire.aborted
    played.close()


async def test_a_connection_that_cannot_be_opened_is_unreachable() -> None:
    with pytest.raises(UnreachableError):
        await Upstreams(5.0).connection("http://127.0.0.1:1")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_engine_is_read_no_faster_than_its_client_reads(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event = b"data: " + b"x" * 50_000 + b"\n\n"
    held: list[bool] = []
    hold = Connection.hold

    def watched(self: Connection, on: bool) -> None:
        held.append(on)
        hold(self, on)

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"POST"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(400):
                writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(engine, "127.0.0.1", 0)
        backend = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with routing(dispatcher([backend])) as (_, url), asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1 << 16)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            while True not in held:
                await asyncio.sleep(0.001)
            got = b""
            while not got.endswith(b"\r\n0\r\n\r\n"):
                got += await reader.read(1 << 20)
            assert got.partition(b"\r\n\r\n")[2].count(b"x") == 400 * 50_000 and held[-1] is False
            writer.close()
        server.close()

    monkeypatch.setattr(Connection, "hold", watched)
    make = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(run())
