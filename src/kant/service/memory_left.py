"""How much memory a container has left. Beyond it, the kernel kills processes in it, the scheduler first."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
"""For cgroups 2 and 1: the files of limit, use and statistics, and the name of the reclaimable file cache."""
UNLIMITED = 1 << 60


def memory_left(cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes up to the limit; None if there is no limit, or none can be read."""
    for limit, use, stat, cached in FILES:
        with suppress(OSError, ValueError, KeyError):
            most = int((cgroups / limit).read_text())  # "max": no number
            lines = (line.split() for line in (cgroups / stat).read_text().splitlines())
            files = int({line[0]: line[1] for line in lines if len(line) == 2}[cached])
            used = int((cgroups / use).read_text()) - files
            return None if most >= UNLIMITED else max(most - used, 0)
    return None
