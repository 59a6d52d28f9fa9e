"""Starting jobs: an array of short jobs on one machine, with questions in between, beside plain `subprocess.Popen`.

CPU time is of all processes: Kant, the supervisors and the jobs. The rate and the answers are by the clock: on a busy
machine they are lower bounds.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Figure
from kant.service.client import ServiceClient

JOBS = int(os.environ.get("KANT_BENCH_STARTS", "1000"))
COMMAND = ("sh", "-c", "true")
LIVE = "held,blocked,waiting,running,stopping"


def measure() -> Iterator[Figure]:
    plain = popen()
    with tempfile.TemporaryDirectory(prefix="kant-", ignore_cleanup_errors=True) as folder:
        idle, _, _ = array(Path(folder), 0)
    with tempfile.TemporaryDirectory(prefix="kant-", ignore_cleanup_errors=True) as folder:
        cost, rate, slowest = array(Path(folder), JOBS)
    each = (cost - idle) / JOBS
    yield Figure("start-cpu", each * 1e3, f"ms, of {JOBS:,} jobs", plain / each, "subprocess.Popen", "fork and exec")
    yield Figure("start-rate", rate, "jobs a second", None, "", "CPU")
    yield Figure("start-health", slowest * 1e3, "ms, the slowest answer", None, "", "CPU")


def popen() -> float:
    """Seconds of CPU time for one process by the means of Python."""
    began = spent(resource.RUSAGE_SELF) + spent(resource.RUSAGE_CHILDREN)
    for _ in range(JOBS):
        subprocess.Popen(COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait()
    return (spent(resource.RUSAGE_SELF) + spent(resource.RUSAGE_CHILDREN) - began) / JOBS


def spent(who: int) -> float:
    """Seconds of CPU time."""
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def array(home: Path, jobs: int) -> tuple[float, float, float]:
    """Seconds of CPU of a Kant from its start to its end, in which an array runs; jobs a second; the slowest answer."""
    began = spent(resource.RUSAGE_CHILDREN)
    with (home / "kant.log").open("ab") as out:
        command = [sys.executable, "-m", "kant", "up", "--home", str(home), "--cluster", "1x1"]
        child = subprocess.Popen(command, stdout=out, stderr=out)
    client, took = ServiceClient(home), [0.0]
    while not _ready(client):
        if child.poll() is not None:
            raise RuntimeError("kant up did not start")
        time.sleep(0.1)
    asking, rate = threading.Event(), 0.0

    def ask() -> None:
        while not asking.wait(0.05):
            sent = time.perf_counter()
            ServiceClient(home).get("/v1/health")
            took.append(time.perf_counter() - sent)

    if jobs:
        asker = threading.Thread(target=ask)
        asker.start()
        wish = {"command": COMMAND, "workdir": "/", "env": {"PATH": os.environ["PATH"]}, "cpus": 0}
        sent = time.perf_counter()
        client.post("/v1/jobs", wish | {"array": list(range(jobs))})
        while client.get("/v1/jobs", state=LIVE, limit=1)["jobs"]:
            time.sleep(0.1)
        rate = jobs / (time.perf_counter() - sent)
        asking.set()
        asker.join()
    child.send_signal(signal.SIGTERM)
    child.wait()
    return spent(resource.RUSAGE_CHILDREN) - began, rate, max(took)


def _ready(client: ServiceClient) -> bool:
    try:
        return not client.get("/v1/health")["starting"]
    except Exception:
        return False
