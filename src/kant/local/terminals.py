"""Terminals of a run: a pty or a pipe for its processes, and the socket to which whoever is attached is connected.

The supervisor loads this file by itself: the standard library alone.

The socket `terminal` lies in the folder of the run, which Kant's owner alone can enter; the daemon connects to it and
has checked before who asks. What goes over it are frames: a letter, the length of what follows in four bytes, and that.

To the supervisor: `O`, what is wanted, as JSON: the run's own streams (`attach`) or a shell beside it (`shell`); `I`,
input; `E`, the end of input; `W`, rows and columns of the window, as JSON.
From it: `D`, output, after its offset in the log in eight bytes; `L`, output that is not in the log; `X`, how the shell
has ended, as JSON; `N`, why there is none, in a sentence.

Nobody who is slow holds up a run: what he cannot take in time he finds in the log.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable, Iterator

SOCKET = "terminal"
HEAD = 5
MOST_FRAME = 1 << 17
MOST_BEHIND = 1 << 20  # bytes that wait for somebody who is attached
MOST_INPUT = 1 << 16  # bytes that wait for a process that does not read
MOST_CLIENTS = 16
Streams = tuple[int, int, int]
Ran = tuple[int, int, int]


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


class Frames:
    """Frames out of a stream that comes in pieces."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The frames that are whole now. Raises ValueError for one that is too long."""
        self._left += data
        while len(self._left) >= HEAD:
            end = HEAD + int.from_bytes(self._left[1:HEAD], "big")
            if end > HEAD + MOST_FRAME:
                raise ValueError("a frame is too long")
            if len(self._left) < end:
                return
            found, self._left = self._left[:end], self._left[end:]
            yield found[:1], found[HEAD:]


class Ends:
    """Both ends of what a process has as its standard streams: a pty, or a pipe for each direction.

    `within` are the three that the process gets. From `output` is read what it writes, and what is written to `input`
    it reads; they are one for a pty.
    """

    def __init__(self, pty: bool, rows: int = 24, columns: int = 80) -> None:
        self.pty = pty
        if pty:
            self.output, inner = os.openpty()
            self.input, self.within = self.output, (inner, inner, inner)
            self.resize(rows, columns)
        else:
            out, self.input = os.pipe2(os.O_CLOEXEC)
            self.output, into = os.pipe2(os.O_CLOEXEC)
            self.within = (out, into, into)
        for each in {self.input, self.output}:
            os.set_blocking(each, False)
        self.pending = b""
        self._is_ended = False

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the window; the kernel tells the processes by SIGWINCH where it is another."""
        if self.pty and self.output >= 0:
            fcntl.ioctl(self.output, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def redraw(self) -> None:
        """Let a program that has the whole window draw it again, for somebody who has not seen it."""
        if self.pty and self.output >= 0:
            with contextlib.suppress(OSError):
                os.killpg(os.tcgetpgrp(self.output), signal.SIGWINCH)

    def take(self, data: bytes) -> None:
        """Input, for when the process can take it."""
        if not self._is_ended:
            self.pending += data

    def end(self) -> None:
        """There is no more input, once what has come is written. A terminal says so itself, by Ctrl-D."""
        if not self.pty:
            self._is_ended = True
            self.write()

    def write(self) -> None:
        """Give the process what it takes now."""
        if self.input < 0:
            return
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.input, self.pending[:4096]) :]
        except BlockingIOError:
            return
        except OSError:  # it reads no more
            self.pending = b""
        if self._is_ended:
            os.close(self.input)
            self.input = -1

    def release(self) -> None:
        """Close what the process has by now, but for the inner end of a pty: without it there is no reading."""
        if not self.pty:
            for each in set(self.within):
                os.close(each)
            self.within = (-1, -1, -1)

    def close(self) -> None:
        """Close everything: the processes of a terminal get SIGHUP."""
        for each in {self.input, self.output, *self.within} - {-1}:
            os.close(each)
        self.input = self.output = -1
        self.within = (-1, -1, -1)


def enter(streams: Streams, pty: bool) -> None:
    """Have these three as one's standard streams; a pty becomes the terminal of this new session."""
    if pty:
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, file in enumerate(streams):
        os.dup2(file, number)


class Client:
    """Somebody who is connected: to the run's own streams, or to a shell (`ends` and `pid` of it)."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.frames = Frames()
        self.out = b""
        self.attached = False
        self.ends: Ends | None = None
        self.pid = 0
        self.is_last = False  # goes when all is sent

    def send(self, kind: bytes, payload: bytes) -> None:
        """Say something; nothing is lost but output that is in the log, too."""
        if kind != b"D" or len(self.out) < MOST_BEHIND:
            self.out += frame(kind, payload)

    def flush(self) -> None:
        """Send what goes now. Raises OSError where they have gone."""
        with contextlib.suppress(BlockingIOError):
            while self.out:
                self.out = self.out[self.line.send(self.out[: 1 << 16]) :]


class Terminals:
    """The socket of a run, and all who are connected. `begin` starts a command beside the run; its process id.

    `ends` are those of the run itself where it has a terminal or a pipe, else None. `logged` says how much of its
    output is in the log.
    """

    def __init__(self, folder: str, ends: Ends | None, begin: Callable[[list[str], dict[str, str], Ends], int]) -> None:
        self.ends = ends
        self.begin = begin
        self.logged: Callable[[], int] = lambda: 0
        self.clients: list[Client] = []
        self.path = f"{folder}/{SOCKET}"
        self.line: socket.socket | None = None
        with contextlib.suppress(OSError):  # without one the run runs all the same
            self._listen(folder)

    def _listen(self, folder: str) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        inside = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            line.bind(f"/proc/self/fd/{inside}/{SOCKET}")  # the path itself may be too long for a socket
            line.listen(MOST_CLIENTS)
        except OSError:
            line.close()
            raise
        finally:
            os.close(inside)
        self.line = line

    def wants(self) -> dict[int, int]:
        """What to wait for, by descriptor."""
        found: dict[int, int] = {}
        if self.line is not None and len(self.clients) < MOST_CLIENTS:
            found[self.line.fileno()] = select.POLLIN
        for client in self.clients:
            to = client.ends or (self.ends if client.attached else None)
            takes = to is None or len(to.pending) < MOST_INPUT
            found[client.line.fileno()] = (select.POLLIN if takes else 0) | (select.POLLOUT if client.out else 0)
            if client.ends is not None and client.ends.output >= 0:
                if len(client.out) < MOST_BEHIND:
                    found[client.ends.output] = select.POLLIN
                if client.ends.pending:
                    found[client.ends.input] = found.get(client.ends.input, 0) | select.POLLOUT
        if self.ends is not None and self.ends.pending:
            found[self.ends.input] = found.get(self.ends.input, 0) | select.POLLOUT
        return found

    def act(self, ready: dict[int, int]) -> None:
        """Do what can be done now."""
        if self.line is not None and self.line.fileno() in ready:
            with contextlib.suppress(OSError):
                line, _ = self.line.accept()
                line.setblocking(False)
                self.clients.append(Client(line))
        for client in list(self.clients):
            if client.ends is not None and client.ends.output in ready:
                self._pass_on(client, client.ends)
            if client.line.fileno() in ready and not self._hear(client):
                self._drop(client)
                continue
            if client.ends is not None:
                client.ends.write()
            self._flush(client)
        if self.ends is not None:
            self.ends.write()

    def _flush(self, client: Client) -> None:
        try:
            client.flush()
        except OSError:
            self._drop(client)
        else:
            if client.is_last and not client.out:
                self._drop(client)

    def _hear(self, client: Client) -> bool:
        """Take in what somebody says. False where they have gone."""
        try:
            data = client.line.recv(1 << 16)
            for kind, payload in client.frames.feed(data):
                self._obey(client, kind, payload)
        except BlockingIOError:
            return True
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(data)

    def _obey(self, client: Client, kind: bytes, payload: bytes) -> None:
        to = client.ends or (self.ends if client.attached else None)
        if kind == b"O" and not client.attached and to is None:
            self._open(client, json.loads(payload))
        elif to is None:
            pass
        elif kind == b"I":
            to.take(payload)
        elif kind == b"E":
            to.end()
        elif kind == b"W":
            to.resize(*_size(json.loads(payload)))

    def _open(self, client: Client, wanted: dict) -> None:  # type: ignore[type-arg]
        rows, columns = _size(wanted)
        if wanted["kind"] == "attach":
            client.attached = True
            client.send(b"D", self.logged().to_bytes(8, "big"))  # so far it is all in the log
            if self.ends is not None:
                if rows and columns:
                    self.ends.resize(rows, columns)
                self.ends.redraw()
            return
        try:
            client.ends = Ends(bool(wanted["pty"]), rows or 24, columns or 80)
            client.pid = self.begin(wanted["command"], wanted["env"], client.ends)
            client.ends.release()
        except OSError as error:
            if client.ends is not None:
                client.ends.close()
                client.ends = None
            client.send(b"N", f"no shell could be started ({error.strerror or error})".encode())
            client.is_last = True

    def _pass_on(self, client: Client, ends: Ends) -> bool:
        """Pass on what a shell has written; False where nothing more is there."""
        try:
            data = os.read(ends.output, 1 << 16)
        except OSError:  # there is none yet, or all who could write have gone
            return False
        if data:
            client.send(b"L", data)
        elif client.pid:  # it has closed its streams and goes on: nothing is to come from there
            os.close(ends.output)
            ends.output = -1
        return bool(data)

    def show(self, offset: int, data: bytes) -> None:
        """The run has written this, and it is in the log; with an `offset` below 0 it is not."""
        for client in list(self.clients):
            if client.attached:
                client.send(*((b"D", offset.to_bytes(8, "big") + data) if offset >= 0 else (b"L", data)))
                self._flush(client)

    def ended(self, pid: int, status: int) -> None:
        """A process has ended: where it is a shell, whoever has it is told."""
        for client in self.clients:
            if client.pid == pid and client.ends is not None:
                client.pid = 0
                for _ in range(64):  # more than a pipe holds; what others write who have it goes on
                    if client.ends.output < 0 or not self._pass_on(client, client.ends):
                        break
                client.ends.close()
                client.ends = None
                client.send(b"X", json.dumps(how(status)).encode())
                client.is_last = True

    def hang_up(self) -> None:
        """The run has ended: shells beside it end, too."""
        for client in list(self.clients):
            if client.ends is not None:
                self._drop(client)

    def close(self) -> None:
        """Nobody is served any more."""
        for client in list(self.clients):
            self._flush(client)
            if client in self.clients:
                self._drop(client)
        if self.line is not None:
            self.line.close()
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _drop(self, client: Client) -> None:
        if client.ends is not None:
            client.ends.close()
            if client.pid:
                with contextlib.suppress(OSError):
                    os.killpg(client.pid, signal.SIGHUP)
        client.line.close()
        if client in self.clients:
            self.clients.remove(client)


def how(status: int) -> dict[str, int | None]:
    """How a process has ended: by an exit code, or by a signal."""
    signalled = os.WIFSIGNALED(status)
    return {
        "code": None if signalled else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if signalled else None,
    }


def _size(said: dict) -> tuple[int, int]:  # type: ignore[type-arg]
    """Rows and columns; 0 where they are not known."""
    rows, columns = int(said.get("rows", 0)), int(said.get("columns", 0))
    return min(max(rows, 0), 9999), min(max(columns, 0), 9999)
