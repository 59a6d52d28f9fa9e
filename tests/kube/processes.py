"""Processes that tests start and that never outlive them, however the tests end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

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
