"""Terminals of a run: a pty or pipes for its processes, and the socket for attached clients.

The supervisor loads this file by itself, so it needs only the standard library.

The socket `terminal` is in the folder of the run, which only Kant's owner can enter. The daemon connects to it after it
has authorized the client. A frame is a letter, the payload's length in four bytes, and the payload. To the supervisor:
`O`, the request, as JSON: the run's own streams (`attach`) or a shell beside the run (`shell`); `I`, input; `E`, the
end of input; `W`, rows and columns of the window, as JSON. From the supervisor: `D`, output, preceded by its offset in
the log in eight bytes; `L`, output that is not in the log; `X`, how the shell ended, as JSON; `N`, why no shell could
be started, in a sentence. A slow client does not block a run: it can read output that it missed in the log.
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
MOST_BEHIND = 1 << 20  # bytes queued for an attached client
MOST_INPUT = 1 << 16  # bytes queued for a process that does not read
MOST_CLIENTS = 16
Streams = tuple[int, int, int]


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + len(payload).to_bytes(4, "big") + payload


class Frames:
    """Decodes frames from a stream of chunks."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add data, and yield the frames that are now complete. Raises ValueError for a frame that is too long."""
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
    """Both ends of a process's standard streams: a pty, or a pipe in each direction.

    `within` are the three descriptors of the process. Its output is read from `output`, its input is written to
    `input`; for a pty these two are the same descriptor.
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
        """Set the window size; if it changes, Linux sends SIGWINCH to the processes."""
        if self.pty and self.output >= 0:
            fcntl.ioctl(self.output, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def redraw(self) -> None:
        """Make a full-screen program redraw, for a newly attached client."""
        if self.pty and self.output >= 0:
            with contextlib.suppress(OSError):
                os.killpg(os.tcgetpgrp(self.output), signal.SIGWINCH)

    def take(self, data: bytes) -> None:
        """Queue input for the process."""
        if not self._is_ended:
            self.pending += data

    def end(self) -> None:
        """Close the input after queued data is written. On a terminal, the user sends Ctrl-D instead."""
        if not self.pty:
            self._is_ended = True
            self.write()

    def write(self) -> None:
        """Write queued input without blocking."""
        if self.input < 0:
            return
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.input, self.pending[:4096]) :]
        except BlockingIOError:
            return
        except OSError:  # the process has closed its input
            self.pending = b""
        if self._is_ended:
            os.close(self.input)
            self.input = -1

    def release(self) -> None:
        """Close the ends that the process has inherited, but not that of a pty: otherwise reading could fail."""
        if not self.pty:
            for each in set(self.within):
                os.close(each)
            self.within = (-1, -1, -1)

    def close(self) -> None:
        """Close all descriptors; the processes of a terminal get SIGHUP."""
        for each in {self.input, self.output, *self.within} - {-1}:
            os.close(each)
        self.input = self.output = -1
        self.within = (-1, -1, -1)


def enter(streams: Streams, pty: bool) -> None:
    """Make these three descriptors the standard streams of this process; a pty becomes the terminal of its new
    session.
    """
    if pty:
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    for number, file in enumerate(streams):
        os.dup2(file, number)


class Client:
    """A connected client: of the run's own streams, or of a shell (`ends` and `pid`)."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.frames = Frames()
        self.out = b""
        self.attached = False
        self.ends: Ends | None = None
        self.pid = 0
        self.is_last = False  # disconnect when all is sent

    def send(self, kind: bytes, payload: bytes) -> None:
        """Queue a frame. If too much is queued, output that is also in the log is dropped, but nothing else."""
        if kind != b"D" or len(self.out) < MOST_BEHIND:
            self.out += frame(kind, payload)

    def flush(self) -> None:
        """Send queued data without blocking. Raises OSError if the client has disconnected."""
        with contextlib.suppress(BlockingIOError):
            while self.out:
                self.out = self.out[self.line.send(self.out[: 1 << 16]) :]


class Terminals:
    """The socket of a run, and its clients. `begin` starts a command next to the run, and returns its process id.

    `ends` are the ends of the run's streams if it has a terminal or a pipe, otherwise None. `logged` returns how much
    of its output is in the log.
    """

    def __init__(self, folder: str, ends: Ends | None, begin: Callable[[list[str], dict[str, str], Ends], int]) -> None:
        self.ends = ends
        self.begin = begin
        self.logged: Callable[[], int] = lambda: 0
        self.clients: list[Client] = []
        self.path = f"{folder}/{SOCKET}"
        self.line: socket.socket | None = None
        with contextlib.suppress(OSError):  # the run works without a socket
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
        """Return the poll events to wait for, by descriptor."""
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
        """Handle ready descriptors."""
        if self.line is not None and self.line.fileno() in ready:
            with contextlib.suppress(OSError):
                line, _ = self.line.accept()
                line.setblocking(False)
                self.clients.append(Client(line))
        for client in list(self.clients):
            if client.ends is not None and client.ends.output in ready:
                self._pass_on(client, client.ends)
            if client.line.fileno() in ready and not self._receive(client):
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

    def _receive(self, client: Client) -> bool:
        """Process a client's frames. Return False if it has disconnected."""
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
            client.send(b"D", self.logged().to_bytes(8, "big"))  # everything before this offset is in the log
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
        """Pass on the output of a shell; return False if there is none."""
        try:
            data = os.read(ends.output, 1 << 16)
        except OSError:  # no output yet, or all writers have exited
            return False
        if data:
            client.send(b"L", data)
        elif client.pid:  # the shell has closed its streams but still runs
            os.close(ends.output)
            ends.output = -1
        return bool(data)

    def show(self, offset: int, data: bytes) -> None:
        """Send output of the run to attached clients, with its offset in the log (-1: it is not in the log)."""
        for client in list(self.clients):
            if client.attached:
                client.send(*((b"D", offset.to_bytes(8, "big") + data) if offset >= 0 else (b"L", data)))
                self._flush(client)

    def ended(self, pid: int, status: int) -> None:
        """Tell the client of a shell that its process has ended."""
        for client in self.clients:
            if client.pid == pid and client.ends is not None:
                client.pid = 0
                for _ in range(64):  # more than a pipe holds; other processes may keep writing
                    if client.ends.output < 0 or not self._pass_on(client, client.ends):
                        break
                client.ends.close()
                client.ends = None
                client.send(b"X", json.dumps(how(status)).encode())
                client.is_last = True

    def hang_up(self) -> None:
        """End the shells next to the run, because it has ended."""
        for client in list(self.clients):
            if client.ends is not None:
                self._drop(client)

    def close(self) -> None:
        """Send what is queued, and disconnect all clients."""
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
    """Return how a process ended: by an exit code or a signal."""
    signalled = os.WIFSIGNALED(status)
    return {
        "code": None if signalled else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if signalled else None,
    }


def _size(said: dict) -> tuple[int, int]:  # type: ignore[type-arg]
    """Return the rows and columns of a window, each 0 if unknown."""
    rows, columns = int(said.get("rows", 0)), int(said.get("columns", 0))
    return min(max(rows, 0), 9999), min(max(columns, 0), 9999)
