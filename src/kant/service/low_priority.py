"""Low-priority child processes that exit with their parent."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
from contextlib import suppress
from pathlib import Path

from kant.service.memory_left import memory_left

NICE = 10
MOST_MEMORY = 8 << 30
OOM_SCORE = "1000"
"""`oom_score_adj`: when memory runs out, the kernel kills this process first."""
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
    """Return the data bytes that the process may have: its own, and half of what its container has `left` (None: no
    limit).

    The other half is for the scheduler.
    """
    return MOST_MEMORY if left is None else min(own + left // 2, MOST_MEMORY)


def _own_data() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"^VmData:\s+(\d+) kB", status, re.MULTILINE)[1]) << 10  # type: ignore[index]
