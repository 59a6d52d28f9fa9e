"""How long `kant --help` takes, as a process."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import Figure


def measure() -> Iterator[Figure]:
    ours = min(children_cpu([sys.executable, "-m", "kant", "--help"]) for _ in range(5))
    theirs = min(children_cpu([sys.executable, "-c", "import numba"]) for _ in range(3))
    yield Figure("help", ours, "CPU-seconds", theirs / ours, "importing Numba alone", "importing cyclopts")


def children_cpu(command: list[str]) -> float:
    """CPU time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
