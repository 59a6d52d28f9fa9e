"""What a person waits for before Kant begins: `kant --help`, a small simulation, the kernels of a first run.

And what the verbs of every day cost, of which scripts call thousands: `submit`, `jobs`, `why`, each a process.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import rivals
from benchmarks.measure import Figure, cpu_seconds
from benchmarks.service import up
from benchmarks.traces import saturated

JOBS = 200
LINES = 1000
SATURATED = "from benchmarks.traces import saturated; saturated().simulate('kant')"


def measure() -> Iterator[Figure]:
    kant = [sys.executable, "-m", "kant"]
    numba = min(children_cpu([sys.executable, "-c", "import numba"]) for _ in range(3))
    ours = min(children_cpu([*kant, "--help"]) for _ in range(5))
    yield Figure("help", ours, "CPU-seconds", numba / ours, "importing Numba alone", "Python itself")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "w.csv"
        rows = (f"j{i},{i * 10},{60 + i * 7919 % 900},{1 + i % 8},q" for i in range(JOBS))
        trace.write_text("\n".join(["id,submit_s,runtime_s,gpus,queue", *rows]) + "\n")
        yield from first_runs(folder)
        run = [*kant, "simulate", str(trace), "--cluster", "4x8"]
        children_cpu(run, folder)
        warm = min(children_cpu(run, folder) for _ in range(3))
        yield Figure("simulate-200", warm, "CPU-seconds", numba / warm, "importing Numba alone", "importing Numba")

    with tempfile.TemporaryDirectory(prefix="kant-", ignore_cleanup_errors=True) as folder:
        yield from everyday(Path(folder), kant)


def first_runs(folder: str) -> Iterator[Figure]:
    """A saturated run: a process that finds no kernels, one that finds those made ahead, one that has loaded them."""
    trace, least = saturated(), "plain Python, best effort, in a process of its own"
    columns = [column.tolist() for column in (trace.workload.submit, trace.workload.runtime, trace.workload.gpus)]
    plain = cpu_seconds(lambda: rivals.best_effort_nodes(*columns, len(trace.cluster.nodes)), 3)[0]
    whole = plain + min(children_cpu([sys.executable, "-c", "import numpy"]) for _ in range(3))
    run = [sys.executable, "-c", SATURATED]
    cold = children_cpu(run, str(Path(folder) / "cold"))
    yield Figure("first-run-cold", cold, "CPU-seconds", whole / cold, least, "typing and LLVM, 27 kernels of `kant`")
    children_cpu([sys.executable, "-m", "kant", "profiles", "compile"], folder)
    first = min(children_cpu(run, folder) for _ in range(3))
    yield Figure("first-run", first, "CPU-seconds", whole / first, least, "importing Numba, and the run itself")
    trace.simulate("kant")
    warm = cpu_seconds(lambda: trace.simulate("kant"), 3)[0]
    yield Figure("first-run-warm", warm, "CPU-seconds", plain / warm, "plain Python, best effort", "the run itself")


def everyday(home: Path, kant: list[str]) -> Iterator[Figure]:
    """Verbs that ask a Kant that runs, each the least of ten processes."""
    child = up(home)
    plain = min(children_cpu([sys.executable, "-c", "import argparse, http.client, json"]) for _ in range(10))
    lines = {"submit": ["--gpus", "1", "--hold", "--", "true"], "jobs": ["--all"], "why": ["1"]}
    for verb, rest in lines.items():
        ours = min(children_cpu([*kant, verb, *rest], home=home) for _ in range(10))
        yield Figure(verb, ours, "CPU-seconds", plain / ours, "importing argparse and http.client", "Python itself")
        if verb == "submit":
            yield from lines_of_a_file(home, kant, child.pid, ours)
    child.send_signal(signal.SIGTERM)
    child.wait()


def lines_of_a_file(home: Path, kant: list[str], kant_up: int, one: float) -> Iterator[Figure]:
    """A thousand submissions in one file; `one` is the CPU time of a process for each of them."""
    path = home / "lines"
    path.write_text("".join(f"--gpus 1 --env SEED={n} -- python train.py --seed {n}\n" for n in range(LINES)))
    took = []
    for _ in range(3):
        before = cpu_of(kant_up)
        client = children_cpu([*kant, "submit", "--hold", "--from", str(path)], home=home)
        took.append((client, client + cpu_of(kant_up) - before))
    rate = LINES / min(both for _, both in took)
    ratio = one * LINES / min(client for client, _ in took)
    yield Figure("submit-lines", rate, "a CPU-second, client and Kant", ratio, "one submit for each", "JSON, SQLite")


def cpu_of(process: int) -> float:
    """CPU time of a process that runs."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_cpu(command: list[str], cache: str | None = None, home: Path | None = None) -> float:
    """CPU time of one child process; with `cache`, kernels are kept in that folder; `home` is that of its Kant."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = {"KANT_CACHE_DIR": cache, "KANT_HOME": str(home) if home is not None else None}
    env = {**os.environ, **{name: value for name, value in own.items() if value is not None}}
    subprocess.run(command, check=True, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
