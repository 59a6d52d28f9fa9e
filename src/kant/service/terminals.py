"""Terminals: connects a client's WebSocket to the supervisor of a run, for the run's output or for a shell in it.

A message of the WebSocket is one letter and a payload in bytes. The client sends `I` (input), `E` (end of input) and
`W` (the window, as JSON: rows and columns). For a shell it first sends `O`, the command as a JSON list, empty for the
job's own shell. The client receives

- `S`: why the job waits, in a sentence;
- `R`: the number of the run that has started; what follows is about that run;
- `D`: output of the run;
- `X`: how the shell ended, as JSON: code and signal;
- `N`: why the request cannot be served, in a sentence.

The supervisor sends output at once. A slow client gets the output that it missed from the log. So it loses nothing, and
does not delay other clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from kant.local.output import read_output
from kant.local.record import JobPhase, JobRecord
from kant.local.terminals import HEAD, MOST_FRAME, SOCKET, frame
from kant.model.errors import InputError

MOST_OPEN = 200
"""Maximum number of simultaneous connections."""
LOOK = 1.0  # seconds between two checks of the client's rights
ALIVE = 20.0  # seconds of silence after which a ping is sent
PIECE = 1 << 15
AWAIT_SOCKET = 5.0  # timeout in seconds for the socket of a new run
Send = Callable[[bytes, bytes], Coroutine[Any, Any, None]]


class SupervisorWire:
    """A connection to the supervisor of a run, over which frames are exchanged (local/terminals.py)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, folder: Path) -> SupervisorWire:
        """Connect to the supervisor of the run in a folder. Raises OSError if there is no supervisor or no socket."""
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # the path itself may be too long for a socket
            return cls(*await asyncio.open_unix_connection(f"/proc/self/fd/{inside}/{SOCKET}"))
        finally:
            os.close(inside)

    async def say(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame, waiting for buffer space. Raises ConnectionError."""
        self.writer.write(frame(kind, payload))
        await self.writer.drain()

    async def frames(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield received frames until the supervisor closes the connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await self.reader.readexactly(HEAD)
                length = int.from_bytes(head[1:], "big")
                if length > MOST_FRAME:
                    return
                yield head[:1], await self.reader.readexactly(length)

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class Sessions:
    """All terminal connections. `gone` is set when Kant stops."""

    def __init__(self, gone: asyncio.Event) -> None:
        self.gone = gone
        self.open = 0

    async def serve(
        self, request: web.Request, allowed: Callable[[], bool], act: Callable[[Send, web.WebSocketResponse], Any]
    ) -> web.WebSocketResponse:
        """Run `act` on a WebSocket until it returns, the client disconnects, or `allowed` returns false."""
        if self.open >= MOST_OPEN:
            raise InputError("terminals", f"at most {MOST_OPEN} at once", self.open)
        socket = web.WebSocketResponse(heartbeat=ALIVE, max_msg_size=MOST_FRAME, timeout=LOOK)
        await socket.prepare(request)
        self.open += 1

        async def send(kind: bytes, payload: bytes) -> None:
            await socket.send_bytes(kind + payload)

        async def watch() -> None:
            while allowed():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.gone.wait(), LOOK)
                    return

        tasks = [asyncio.ensure_future(act(send, socket)), asyncio.ensure_future(watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if isinstance(error, InputError | OSError) and not isinstance(error, ConnectionError):
                    await send(b"N", str(error).encode())
                elif error is not None and not isinstance(error, ConnectionError):
                    raise error
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(ConnectionError, RuntimeError):
                await socket.close()
        return socket


class OutputFollower:
    """Sends the output of a run to one client, from `offset` on; a negative offset counts from the end."""

    def __init__(self, folder: Path, offset: int, send: Send) -> None:
        self.folder = folder
        self.at = offset
        self.send = send
        if offset < 0:
            found = read_output(folder, offset, -offset)
            at = found.data.find(b"\n") + 1 if found.offset > 0 else 0  # start at a whole line
            self.at = found.offset + at

    async def catch_up(self, until: int | None = None) -> None:
        """Send the log up to the offset `until`, or all of it."""
        while until is None or self.at < until:
            most = PIECE if until is None else min(PIECE, until - self.at)
            found = read_output(self.folder, self.at, most)
            if not found.data:
                if until is not None:
                    self.at = max(self.at, until)
                return
            await self.send(b"D", found.data)
            self.at = found.offset + len(found.data)

    async def show(self, offset: int, data: bytes) -> None:
        """Send new output, preceded by any output that was missed."""
        if offset > self.at:
            await self.catch_up(offset)
        fresh = data[self.at - offset :]
        if fresh:
            await self.send(b"D", fresh)
            self.at = offset + len(data)


async def attach(
    record_of: Callable[[], JobRecord],
    folder_of: Callable[[JobRecord], Path],
    reason_of: Callable[[], str],
    news: Callable[[], Any],
    window: dict[str, int],
    offset: int,
    send: Send,
    socket: web.WebSocketResponse,
    warning_of: Callable[[], str] = str,
) -> None:
    """Serve a client attached to a job: send why the job waits, then the output of its run, until the run ends. Between
    parts of the output, new warnings (idle GPUs) are sent.
    """
    hearing = asyncio.ensure_future(_until_gone(socket))
    try:
        known_reason = None
        while (record := record_of()).phase not in (JobPhase.RUNNING, JobPhase.STOPPING) and not record.is_over:
            if (reason := reason_of()) != known_reason:
                known_reason = reason
                await send(b"S", reason.encode())
            waiting = asyncio.ensure_future(news())
            await asyncio.wait({waiting, hearing}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if hearing.done():
                return
    finally:
        if not hearing.done():
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
    if record.attempt == 0:  # the job ended without a run
        return
    folder, attempt = folder_of(record), record.attempt
    wire = await _connect(folder, lambda: record_of().is_over or record_of().attempt != attempt)
    await send(b"R", str(attempt).encode())
    follower = OutputFollower(folder, offset, send)
    if wire is None:
        await follower.catch_up()
        return

    async def output() -> None:
        async for kind, payload in wire.frames():
            if kind == b"D":
                await follower.show(int.from_bytes(payload[:8], "big"), payload[8:])
            elif kind == b"L":
                await send(b"D", payload)
        await follower.catch_up()

    async def warn() -> None:
        warned = False
        while True:
            warning = warning_of()
            if warning and not warned:
                await send(b"D", f"\r\nkant: {warning}\r\n".encode())
            warned = bool(warning)
            await asyncio.sleep(LOOK)

    with suppress(ConnectionError):  # a short run may have ended: its output is in the log
        await wire.say(b"O", msgspec.json.encode({"kind": "attach"} | window))
    await follower.catch_up()
    warning = asyncio.ensure_future(warn())
    try:
        await _both_ways(wire, socket, output())
    finally:
        warning.cancel()
        await asyncio.gather(warning, return_exceptions=True)


async def shell(folder: Path, opening: dict[str, Any], send: Send, socket: web.WebSocketResponse) -> None:
    """Serve a client whose command runs beside a job's run, until the command ends. Raises InputError."""
    first = await socket.receive()
    if first.type is not WSMsgType.BINARY or first.data[:1] != b"O":
        return
    try:
        command = msgspec.json.decode(first.data[1:], type=list[str])
    except msgspec.DecodeError:
        raise InputError("the command", "a JSON array of strings") from None
    if any("\0" in word for word in command):
        raise InputError("the command", "text without a zero byte")
    try:
        wire = await SupervisorWire.to(folder)
    except OSError:
        raise InputError("the run", "one that accepts terminals (it is ending, or an older Kant started it)") from None

    async def output() -> None:
        async for kind, payload in wire.frames():
            await send(b"D" if kind == b"L" else kind, payload)

    await wire.say(b"O", msgspec.json.encode({"kind": "shell"} | opening | ({"command": command} if command else {})))
    await _both_ways(wire, socket, output())


async def _connect(folder: Path, is_over: Callable[[], bool]) -> SupervisorWire | None:
    """Connect to the supervisor of a new run; return None if the run has ended or its socket does not appear."""
    end = asyncio.get_running_loop().time() + AWAIT_SOCKET
    while True:
        try:
            return await SupervisorWire.to(folder)
        except OSError:
            if is_over() or asyncio.get_running_loop().time() > end:
                return None
        await asyncio.sleep(0.02)


async def _both_ways(wire: SupervisorWire, socket: web.WebSocketResponse, output: Coroutine[Any, Any, None]) -> None:
    """Relay between a client and a supervisor in both directions, until one of them disconnects."""

    async def relay_input() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[:1] in (b"I", b"E", b"W"):
                await wire.say(message.data[:1], message.data[1:])

    tasks = [asyncio.ensure_future(relay_input()), asyncio.ensure_future(output)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[1] not in done and tasks[0].exception() is not None:  # the run has ended: read the rest
            await tasks[1]
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, ConnectionError):
                raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        wire.close()


async def _until_gone(socket: web.WebSocketResponse) -> None:
    """Discard the input of a waiting client, until it disconnects."""
    async for _ in socket:
        pass
