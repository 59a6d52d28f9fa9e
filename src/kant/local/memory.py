"""Memory limits of runs: Linux enforces them in a cgroup, or the supervisor checks the use of memory.

The supervisor loads this file by itself, so it needs only the standard library.

Anonymous and shared memory counts, including the part in swap. Pages of files can be read again and do not count. A
page shared by several processes counts once: it is divided among them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable

EVERY, SELDOM = 1.0, 10.0  # minimum and maximum seconds between two checks
PAUSE_FACTOR = 50  # the pause, as a multiple of the last check's core time
SIZES = (b"RssAnon", b"RssShmem", b"VmSwap")  # of /proc/PID/status: shared pages count in full for each process
KCMP, KCMP_VM = {"x86_64": 312, "aarch64": 272}, 1
SHARES = (b"Pss_Anon", b"Pss_Shmem", b"SwapPss")  # of /proc/PID/smaps_rollup: shared pages are divided


def sizes(path: str, names: tuple[bytes, ...]) -> int | None:
    """Return the sum of the lines `name: N kB` of a file, in bytes; None if they cannot be read."""
    total, found = 0, 0
    try:
        with open(path, "rb") as file:
            for line in file:
                name, _, rest = line.partition(b":")
                if name in names:
                    total, found = total + int(rest.split()[0]), found + 1
    except OSError:
        return None
    return total << 10 if found == len(names) else None


def below(pid: int) -> list[int] | None:
    """Return the ids of the descendants of a process, without reading all processes; None if this Linux does not list
    the children of a process."""
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return None
    found = [pid]
    for each in found:
        with contextlib.suppress(OSError):  # the process, or one of its threads, has just ended
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
    return list(dict.fromkeys(found[1:]))  # a process that has just lost its parent may be listed twice


def pause(cost: float) -> float:
    """Return the seconds until the next check, after a check that took `cost` seconds of a core."""
    return min(max(EVERY, PAUSE_FACTOR * cost), SELDOM)


def taken(pids: Iterable[int], most: int) -> int:
    """Return how many bytes the processes hold together. Shared pages are counted exactly, which is expensive, only if
    the sum is above `most`. A result of at most `most` may be too high, which does no harm.
    """
    full = {pid: _size(pid) for pid in pids}
    total = sum(full.values())
    if total <= most:
        return total
    counted: list[int] = []
    for pid, size in sorted(full.items(), key=lambda each: -each[1]):
        if total <= most:
            break
        if any(full[other] == size and _one_space(pid, other) for other in counted):
            total -= size
            continue
        counted.append(pid)
        shared = sizes(f"/proc/{pid}/smaps_rollup", SHARES)
        if shared is not None:
            total -= max(size - shared, 0)
    return total


def _size(pid: int) -> int:
    found = sizes(f"/proc/{pid}/status", SIZES)
    return sizes(f"/proc/{pid}/status", (b"VmRSS",)) or 0 if found is None else found


def _one_space(one: int, other: int) -> bool:
    """Return whether two processes share one address space, as after vfork, so that its memory counts only once."""
    number = KCMP.get(os.uname().machine)
    return number is not None and ctypes.CDLL(None).syscall(number, one, other, KCMP_VM, 0, 0) == 0


class Cgroup:
    """A cgroup v2 for one run, at `path`; `path` is "" if no cgroup was requested or created."""

    def __init__(self, path: str, most: int) -> None:
        self.path = ""
        if not path:
            return
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
            _put(f"{path}/memory.max", most)
        except OSError:
            remove(path)
            return
        self.path = path
        for name, value in (("memory.swap.max", 0), ("memory.oom.group", 1)):
            with contextlib.suppress(OSError):  # the kernel may have no swap accounting
                _put(f"{path}/{name}", value)

    def enter(self) -> None:
        """Move this process and its children into the cgroup. If that fails, the checks remain."""
        if self.path:
            with contextlib.suppress(OSError):
                _put(f"{self.path}/cgroup.procs", 0)

    def killed(self) -> bool:
        """Return whether Linux has killed a process of the cgroup for lack of memory."""
        try:
            with open(f"{self.path}/memory.events", "rb") as file:
                return any(line.startswith(b"oom_kill ") and int(line.split()[1]) > 0 for line in file)
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the cgroup."""
        if self.path:
            remove(self.path)


def remove(path: str) -> bool:
    """Kill all processes in a cgroup, and remove it. Return False if it remains because processes have not gone yet."""
    with contextlib.suppress(OSError):
        _put(f"{path}/cgroup.kill", 1)
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _put(path: str, value: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, str(value).encode())
    finally:
        os.close(file)
