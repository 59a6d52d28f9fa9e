"""Client of the fork server (local/fork_server.py). Requests do not block: responses arrive in the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kant.local import fork_server

LOADER = ("LD_LIBRARY_PATH",)  # variables that an interpreter may need to start
MOST = 64  # most requests in flight
PATIENCE = 1.0  # seconds for a server to exit before it is killed


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A new process: its id, its start in ticks since boot, and a pidfd (-1: none)."""

    pid: int
    start: int
    handle: int


Answer = ForkedProcess | OSError | None
"""The new process, the error that prevented it, or None: the server exited, and the outcome is unknown."""


class ForkServer:
    """The fork server of one Kant. It is started on demand, and restarted after it has exited."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._open: deque[Callable[[Answer], None]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        return len(self._open) < MOST

    def ask(self, folder: Path, then: Callable[[Answer], None]) -> None:
        """Request a supervisor for a run; `then` gets the response. Raises OSError, and then creates no supervisor."""
        if self._socket is None:
            self._start()
        assert self._socket is not None
        try:
            self._socket.send(os.fsencode(folder))
        except (BrokenPipeError, ConnectionResetError):  # the server was killed
            self._gone()
            self._start()
            self._socket.send(os.fsencode(folder))
        self._open.append(then)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Receive responses in this loop, now and from every later server."""
        self._loop = loop
        if self._socket is not None:
            loop.add_reader(self._socket, self.take)

    def take(self) -> None:
        """Receive one response; blocks if there is none."""
        assert self._socket is not None
        try:
            text, handles, _, _ = socket.recv_fds(self._socket, 64, 1)
        except ConnectionError:
            text, handles = b"", []
        if not text:
            self._gone()
            return
        numbers = [int(part) for part in text.split()]
        then = self._open.popleft()
        if numbers[0] < 0:
            then(OSError(-numbers[0], os.strerror(-numbers[0])))
        else:
            then(ForkedProcess(numbers[0], numbers[1], handles[0] if handles else -1))

    def close(self) -> None:
        """Close the server. Its supervisors continue; pending requests get no response."""
        self._open.clear()
        self._gone()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-E", fork_server.__file__],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    cwd="/",
                    env={name: os.environ[name] for name in LOADER if name in os.environ},
                )
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        if self._loop is not None:
            self._loop.add_reader(ours, self.take)

    def _gone(self) -> None:
        if self._socket is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        lost, self._open = self._open, deque()
        for then in lost:
            then(None)
