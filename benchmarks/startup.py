"""What a person waits for before Kant begins: `kant --help`, a small simulation, and the kernels of a first run."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Figure

JOBS = 200
WARM_UP = (
    "from kant.scheduler.profile import builtin_profile as p; from kant.sim.warm import warm_up; warm_up(p('kant'))"
)


def measure() -> Iterator[Figure]:
    kant = [sys.executable, "-m", "kant"]
    numba = min(children_cpu([sys.executable, "-c", "import numba"]) for _ in range(3))
    ours = min(children_cpu([*kant, "--help"]) for _ in range(5))
    yield Figure("help", ours, "CPU-seconds", numba / ours, "importing Numba alone", "Python itself")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "w.csv"
        rows = (f"j{i},{i * 10},{60 + i * 7919 % 900},{1 + i % 8},q" for i in range(JOBS))
        trace.write_text("\n".join(["id,submit_s,runtime_s,gpus,queue", *rows]) + "\n")
        cold = children_cpu([sys.executable, "-c", WARM_UP], folder) - numba
        yield Figure(
            "first-run", cold, "CPU-seconds", numba / cold, "importing Numba alone", "typing and LLVM, profile kant"
        )
        run = [*kant, "simulate", str(trace), "--cluster", "4x8"]
        children_cpu(run, folder)
        warm = min(children_cpu(run, folder) for _ in range(3))
        yield Figure("simulate-200", warm, "CPU-seconds", numba / warm, "importing Numba alone", "importing Numba")


def children_cpu(command: list[str], cache: str | None = None) -> float:
    """CPU time of one child process; with `cache`, kernels are kept in that folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    env = os.environ if cache is None else {**os.environ, "KANT_CACHE_DIR": cache}
    subprocess.run(command, check=True, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
