"""Connects this terminal with a remote process: keys are passed on unchanged, and its output is shown.

After Enter, `~.` detaches, `~~` sends a tilde and `~?` prints help, as in ssh.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kant.service.websocket import OpenWebSocket

HELP = b"\r\n~.  detach: it runs on\r\n~~  a tilde\r\n~?  this\r\n"
MOST_OUT = 1 << 16
AGAIN = 2.0  # seconds within which a second Ctrl-C repeats the first


class SessionEnd(NamedTuple):
    """How a session ended: `detached` by the user, `code` and `signal` of a shell, or `refused`, a sentence. `attempt`
    is the run of the job, 0 for none."""

    detached: bool = False
    attempt: int = 0
    code: int | None = None
    signal: int | None = None
    refused: str = ""


class Escapes:
    """Finds the escape sequences for this client among the typed keys. `escape` is one byte; empty: no escape key."""

    def __init__(self, escape: bytes = b"~") -> None:
        self.escape = escape
        self.at_start = True
        self.is_open = False

    def feed(self, keys: bytes) -> tuple[bytes, str]:
        """Return the keys for the process, and "detach" or "help" if that is requested: later keys are not read."""
        found = b""
        for at in range(len(keys)):
            key = keys[at : at + 1]
            if self.is_open:
                self.is_open = False
                if key == b".":
                    return found, "detach"
                if key == b"?":
                    self.at_start = True
                    return found, "help"
                found += self.escape if key == self.escape else self.escape + key
            elif self.at_start and key == self.escape:
                self.is_open = True
                continue
            else:
                found += key
            self.at_start = key in (b"\r", b"\n")
        return found, ""


def is_terminal() -> bool:
    """Whether both standard input and standard output are a terminal."""
    with suppress(OSError, ValueError, AttributeError):
        return os.isatty(sys.stdin.fileno()) and os.isatty(sys.stdout.fileno())
    return False


def window() -> dict[str, int]:
    """Return `rows` and `columns` of this terminal; {} if unknown."""
    if not is_terminal():
        return {}
    size = os.get_terminal_size(sys.stdout.fileno())
    return {"rows": size.lines, "columns": size.columns} if size.lines and size.columns else {}


@contextmanager
def raw() -> Iterator[None]:
    """Put the terminal into raw mode within this block, so that every key is passed on unchanged."""
    import termios
    import tty

    file = sys.stdin.fileno()
    before = termios.tcgetattr(file)
    try:
        tty.setraw(file, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


@contextmanager
def _signals(*names: str) -> Iterator[int]:
    """Yield a descriptor that becomes readable when one of these signals has arrived: each signal gives one byte, its
    number.
    """
    out, into = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    numbers = [signal.Signals[f"SIG{name}"] for name in names]
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    waker = signal.set_wakeup_fd(into, warn_on_full_buffer=False)
    try:
        yield out
    finally:
        signal.set_wakeup_fd(waker)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(out)
        os.close(into)


class Conversation:
    """A session with a process over a WebSocket. `said` is called with the reason why a job waits. `interrupt` is
    called on Ctrl-C if the process has no terminal, and returns whether to continue.
    """

    def __init__(self, line: OpenWebSocket, pty: bool, said: Any, interrupt: Any, escape: bytes = b"~") -> None:
        self.line = line
        self.pty = pty
        self.said = said
        self.interrupt = interrupt
        self.escapes = Escapes(escape)
        self.left: SessionEnd | None = None
        self.begun = False
        self.attempt = 0
        self._first: list[tuple[bytes, bytes]] = []
        self._stdin = sys.stdin.fileno() if sys.stdin is not None else -1
        self._reads_input = self._stdin >= 0

    def hold(self, begun: bool = False) -> SessionEnd:
        """Run until the session ends. Unless `begun` (as for a shell), the session begins when the job runs."""
        try:
            if not begun and not self._until_begun():
                return self.left or SessionEnd()
            self.begun = True
            if not self.pty:
                return self._speak()
            with raw():
                return self._speak()
        finally:
            self.line.close()

    def _until_begun(self) -> bool:
        self._receive()  # data may have arrived with the response that opened the WebSocket
        while not self.begun and self.left is None and not self.line.closed:
            self.line.flush()  # send answers to pings
            select.select([self.line], [], [])
            self._receive()
        return self.begun

    def _speak(self) -> SessionEnd:
        names = ("WINCH", "HUP", "TERM") if self.pty else ("INT", "HUP", "TERM")
        with _signals(*names) as signals:
            if self.pty:
                self._tell_window()
            self._receive()
            while self.left is None and not (self.line.closed and not self.line.out):
                self.line.flush()
                if self.line.closed:
                    break
                readers: list[Any] = [self.line, signals]
                if self._reads_input and len(self.line.out) < MOST_OUT:
                    readers.append(self._stdin)
                ready, _, _ = select.select(readers, [self.line] if self.line.out else [], [])
                if signals in ready:
                    self._signalled(os.read(signals, 256))
                if self._stdin in ready and self.left is None:
                    self._typed()
                if self.line in ready:
                    self._receive()
            if self.left is None:  # the other end may be gone: read what it sent before that
                self._receive()
        return self.left or SessionEnd(attempt=self.attempt)

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGWINCH in numbers:
            self._tell_window()
        if signal.SIGINT in numbers and not self.interrupt():
            self.left = SessionEnd(detached=True)
        if signal.SIGHUP in numbers or signal.SIGTERM in numbers:
            self.left = SessionEnd(detached=True)

    def _tell_window(self) -> None:
        import json

        if size := window():
            self.line.send(b"W", json.dumps(size).encode())

    def _typed(self) -> None:
        try:
            keys = os.read(self._stdin, 1 << 14)
        except OSError:  # the terminal is gone
            keys = b""
        if not keys:
            self._reads_input = False
            if self.pty:
                self.left = SessionEnd(detached=True)
            else:
                self.line.send(b"E")
            return
        asked = ""
        if self.pty:
            keys, asked = self.escapes.feed(keys)
        if keys:
            self.line.send(b"I", keys)
        if asked == "help":
            write(HELP)
        elif asked == "detach":
            self.left = SessionEnd(detached=True)

    def _receive(self) -> None:
        messages = [*self._first, *self.line.messages()]
        self._first = []
        for at, (kind, payload) in enumerate(messages):
            if kind == b"D":
                write(payload)
            elif kind == b"S" and not self.begun:
                self.said(payload.decode(errors="replace"))
            elif kind == b"R":
                self.begun, self.attempt = True, int(payload)
                self._first = messages[at + 1 :]  # kept until this terminal is ready
                return
            elif kind == b"N":
                self.left = SessionEnd(refused=payload.decode(errors="replace"))
            elif kind == b"X":
                import json

                ended = json.loads(payload)
                self.left = SessionEnd(code=ended["code"], signal=ended["signal"])


def write(data: bytes) -> None:
    """Write bytes to standard output unchanged and at once. Raises BrokenPipeError if the reader is gone."""
    if not hasattr(sys.stdout, "buffer"):
        sys.stdout.write(data.decode(errors="replace"))
        return
    sys.stdout.flush()
    file = sys.stdout.fileno()
    while data:
        try:
            data = data[os.write(file, data) :]
        except BlockingIOError:
            select.select([], [file], [])
