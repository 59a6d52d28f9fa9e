"""Process identity from /proc, stable over restarts of Kant, and the time since boot."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")


def boot_id() -> str:
    """Return the id of this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def since_boot() -> int:
    """Return the microseconds since boot, including sleep. Setting a clock does not affect it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def started(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if the process does not exist or is a zombie.

    Together with the boot id, the start distinguishes a process from a later process with the same id.
    """
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def marked(mark: str) -> list[int]:
    """Return the ids of processes, in any session, whose environment has the variable `mark`, such as `KANT_RUN=…`."""
    wanted, found = mark.encode(), []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def send(mark: str, number: int, handled: bool) -> int:
    """Send a signal to all processes with the mark, or to those that handle it. Return how many received it."""
    sent = 0
    for pid in marked(mark):
        if not handled or _handles(pid, number):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
                sent += 1
    return sent


def _handles(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal."""
    try:
        status = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def kill_marked(mark: str) -> int:
    """Kill all processes with the mark, except this process. Return how many were found."""
    found = [pid for pid in marked(mark) if pid != os.getpid()]
    for pid in found:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return len(found)
