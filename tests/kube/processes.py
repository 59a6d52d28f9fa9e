"""Processes that tests start and that never outlive them, however the tests end."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tests.patience import PATIENCE_S

REAPER = 'while read -r line; do pids=$line; done; kill -9 $pids 2>/dev/null; rm -rf -- "$1"'
"""Reads the living pids, a line at each change, until its input ends with the process that started them."""


def free_port() -> int:
    """A port of loopback that was free just now. Another process may take it: who starts a server tries again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rss_mib(pid: int) -> float:
    """Memory that a process holds, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _state(stat: Path) -> str:
    return stat.read_text().rsplit(")", 1)[1].split()[0]


class Forked:
    """A function as a process that is forked from this one, with what `subprocess.Popen` has.

    Everything is loaded in it: a new interpreter needs a second of CPU for that.
    """

    def __init__(self, run: Callable[[], object], log: Path) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            gc.freeze()  # to collect what has threads, such as a gRPC server, would wait for ever: they are not here
            _become(run, log)

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = PATIENCE_S) -> int:
        """Wait for its end. Raises TimeoutError."""
        with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(self.pid)) as ended:  # noqa: PTH123
            select.select([ended], [], [], timeout)
        if (code := self.poll()) is None:
            raise TimeoutError(f"process {self.pid} did not end in {timeout:.0f} s")
        return code

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _become(run: Callable[[], object], log: Path) -> NoReturn:
    """Be a process that does `run` and nothing that its parent had in hand."""
    code: object = 1
    try:
        gc.freeze()  # what the parent has open is not this one's to close
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
        logging.getLogger().handlers.clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def fork_server(address: Path, be: Callable[[socket.socket], NoReturn], first: Callable[[], None] | None = None) -> int:
    """The pid of a process that forks another one for each connection to `address`, to `be` what that asks for.

    It has what this process has in memory, and what `first` makes there, and ends with this process.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)
        owner, held = os.pipe()  # the end of this process is that of the pipe
        if (pid := os.fork()) == 0:
            os.close(held)
            if first is not None:
                first()
            _serve(listener, owner, be)
        os.close(owner)
    return pid


def _serve(listener: socket.socket, owner: int, be: Callable[[socket.socket], NoReturn]) -> NoReturn:
    try:
        gc.freeze()  # to collect what has threads, such as a gRPC server, would wait for ever: they are not here
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which end it
        while listener in select.select([listener, owner], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
                be(connection)
            connection.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    finally:
        os._exit(0)


class Brood:
    """Some processes by name, with their logs in one folder; killed, and the folder removed, when the owner dies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._reaper = subprocess.Popen(
            ["sh", "-c", REAPER, "sh", str(folder)], stdin=subprocess.PIPE, start_new_session=True
        )

    def start(self, name: str, command: list[str], **environment: str) -> None:
        """Start one in a process group of its own, so that Ctrl-C at the tests does not reach it first."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
                env=os.environ | environment,
            )  # fmt: skip
        self._tell()

    def alive(self, name: str) -> bool:
        return name in self.running and self.running[name].poll() is None

    def pid(self, name: str) -> int:
        return self.running[name].pid

    def signal(self, name: str, number: int) -> None:
        self.running[name].send_signal(number)

    def pause(self, name: str) -> None:
        """SIGSTOP, and wait until the last of its threads stands still."""
        self.signal(name, signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid(name)}/task")
        while any(_state(thread / "stat") != "T" for thread in threads.iterdir()):
            time.sleep(0.001)

    def stop(self, name: str, *, kill: bool = True) -> None:
        """End one and wait for it. Without `kill` it may finish in order, if it does so in time."""
        process = self.running.pop(name, None)
        if process is None:
            return
        if not kill:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
        process.kill()
        process.wait()
        self._tell()

    def log(self, name: str, lines: int = 5) -> str:
        """The last lines of a log."""
        file = self.folder / f"{name}.log"
        return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else ""

    def end(self) -> None:
        """End all of them and remove the folder."""
        for name in list(self.running):
            self.stop(name)
        if self._reaper.stdin is not None:
            self._reaper.stdin.close()
        self._reaper.wait()

    def _tell(self) -> None:
        pids = " ".join(str(process.pid) for process in self.running.values())
        if self._reaper.stdin is not None:
            self._reaper.stdin.write(f"{pids}\n".encode())
            self._reaper.stdin.flush()
