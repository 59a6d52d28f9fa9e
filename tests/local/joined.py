"""Machines that join a Kant of the tests: each an agent in a process of its own, and a network that can be cut."""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.local.up import homes, nothing

from kant.live.logs import set_up
from kant.local.joined.agent import Agent, AgentOptions, serve
from kant.model.node import Node


def free_port() -> int:
    """A port of this machine that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        return int(own.getsockname()[1])


class Process:
    """A process forked from the tests, that can be killed, frozen, and thawed."""

    def __init__(self, act: Callable[[], int], log: Path) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()
            code = 1
            try:
                out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(out, 1)
                os.dup2(out, 2)
                code = act()
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def is_dead(self) -> bool:
        """Whether it has ended by itself."""
        return os.waitpid(self.pid, os.WNOHANG)[0] != 0

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, number)
            os.kill(self.pid, signal.SIGCONT)
            os.waitpid(self.pid, 0)


class Joined(Process):
    """A machine with so many GPUs that joins the Kant of `first` at a port."""

    def __init__(
        self, home: Path, first: Path, port: int, name: str, gpus: int = 4, host: str = "127.0.0.1",
        prepare: Callable[[], None] = nothing, cores: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        home.mkdir(exist_ok=True)
        homes.add(home)
        node = Node(name, gpus, cpu=1000 * len(cores)) if cores else Node(name, gpus)
        self.home, self.port = home, port

        def act() -> int:
            prepare()
            set_up("logfmt", "info")
            return serve(Agent(AgentOptions(home, first / "join", host, port, node, cores=cores)))

        super().__init__(act, home / "log")

    def runs_nothing(self) -> bool:
        """Whether no run is known here any more."""
        return not list((self.home / "runs").rglob("spec.json"))


class Relay(Process):
    """A network between machines and Kant: frozen, it is cut, and nobody is told."""

    def __init__(self, port: int, log: Path) -> None:
        self.own = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.own.getsockname()[1]
        super().__init__(lambda: relay(self.own, port), log)
        self.own.close()


def relay(own: socket.socket, port: int) -> int:
    """Pass on what comes, until killed."""
    chosen = selectors.DefaultSelector()
    chosen.register(own, selectors.EVENT_READ, None)
    while True:
        for key, _ in chosen.select():
            if key.data is None:
                one, other = own.accept()[0], socket.socket()
                try:
                    other.connect(("127.0.0.1", port))
                except OSError:
                    one.close()
                    continue
                chosen.register(one, selectors.EVENT_READ, other)
                chosen.register(other, selectors.EVENT_READ, one)
                continue
            line: socket.socket = key.fileobj  # type: ignore[assignment]
            try:
                data = line.recv(1 << 16)
                if data:
                    key.data.sendall(data)
            except OSError:
                data = b""
            if not data:
                for each in (line, key.data):
                    with contextlib.suppress(KeyError, ValueError):
                        chosen.unregister(each)
                    each.close()
