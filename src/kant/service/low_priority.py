"""Child processes of low priority, which exit with their parent and whose memory is bounded."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from contextlib import suppress
from pathlib import Path

FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""For cgroups 2 and 1: the files of limit, use and statistics, and the name of the reclaimable file cache."""
UNLIMITED = 1 << 60


def memory_left(cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many bytes the container may still use; None if it has no memory limit, or the limit is unreadable."""
    for limit, use, stat, cached in FILES:
        with suppress(OSError, ValueError, KeyError):
            most = int((cgroups / limit).read_text())  # "max": no number
            lines = (line.split() for line in (cgroups / stat).read_text().splitlines())
            files = int({line[0]: line[1] for line in lines if len(line) == 2}[cached])
            used = int((cgroups / use).read_text()) - files
            return None if most >= UNLIMITED else max(most - used, 0)
    return None


NICE = 10
MOST_MEMORY = 8 << 30
OOM_SCORE = "1000"
"""`oom_score_adj`: if memory runs out, the Linux kernel kills this process first."""
PR_SET_PDEATHSIG = 1


def lower_priority() -> None:
    """Lower the CPU priority of this process, bound its memory, and make it exit with its parent."""
    os.nice(NICE)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    with suppress(ValueError, OSError):
        most = most_memory(_own_data(), memory_left())
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def most_memory(own: int, left: int | None) -> int:
    """Return the maximum size of this process's data: its present size `own`, plus half of what the container has
    `left` (None: no limit). All sizes are in bytes.

    The other half is for the scheduler.
    """
    return MOST_MEMORY if left is None else min(own + left // 2, MOST_MEMORY)


def _own_data() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)[1]) << 10  # type: ignore[index]
