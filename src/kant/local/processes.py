"""What /proc says: which process is which, also across a restart of Kant, and since when the machine runs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")


def boot_id() -> str:
    """A name for this run of the machine: another one after each boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def since_boot() -> int:
    """Microseconds since the machine was booted, asleep or awake. No setting of a clock touches it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def started(pid: int) -> int | None:
    """When a process started, in ticks since the boot; None where there is none, or only what is left of one.

    With the boot this tells a process from a later one of the same number.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def marked(mark: str) -> list[int]:
    """The processes whose environment has the line `mark`, such as `KANT_RUN=…`: a job's, wherever they fled to."""
    wanted, found = mark.encode(), []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def send(mark: str, number: int, handled: bool) -> int:
    """Send a signal to every process that carries the mark, or to those that handle it; how many got it."""
    sent = 0
    for pid in marked(mark):
        if not handled or _handles(pid, number):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                sent += 1
    return sent


def _handles(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    try:
        status = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def kill_marked(mark: str) -> int:
    """Kill all of them. Returns how many there were."""
    found = [pid for pid in marked(mark) if pid != os.getpid()]
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(found)
