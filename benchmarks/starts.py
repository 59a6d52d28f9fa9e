"""Starting jobs: an array of short jobs on one machine, with questions in between, beside plain `subprocess.Popen`.
And when each of two thousand jobs that wait is expected to start.

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
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Figure
from kant.service.client import ServiceClient

JOBS = int(os.environ.get("KANT_BENCH_STARTS", "1000"))
COMMAND = ("sh", "-c", "true")
LIVE = "held,blocked,waiting,running,stopping"
WAITING, ASKED = 2_000, 200


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
    with tempfile.TemporaryDirectory(prefix="kant-", ignore_cleanup_errors=True) as folder:
        slowest = expected_starts(Path(folder))
    yield Figure("start-eta", slowest * 1e3, f"ms, the slowest of {ASKED}", None, "", f"{WAITING:,} jobs that wait")


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
    began, took, rate, asking = spent(resource.RUSAGE_CHILDREN), [0.0], 0.0, threading.Event()

    def ask() -> None:
        while not asking.wait(0.05):
            sent = time.perf_counter()
            ServiceClient(home).get("/v1/health")
            took.append(time.perf_counter() - sent)

    with kant_up(home, "1x1") as client:
        if jobs:
            asker = threading.Thread(target=ask)
            asker.start()
            request = {"command": COMMAND, "workdir": "/", "env": {"PATH": os.environ["PATH"]}, "cpus": 0}
            sent = time.perf_counter()
            client.post("/v1/jobs", request | {"array": list(range(jobs))})
            while client.get("/v1/jobs", state=LIVE, limit=1)["jobs"]:
                time.sleep(0.1)
            rate = jobs / (time.perf_counter() - sent)
            asking.set()
            asker.join()
    return spent(resource.RUSAGE_CHILDREN) - began, rate, max(took)


def expected_starts(home: Path) -> float:
    """Seconds of the slowest answer to when a job is expected to start, once there is a forecast."""
    with kant_up(home, "8x8") as client:
        request = {"command": ("sleep", "600"), "workdir": "/", "env": {"PATH": os.environ["PATH"]}, "grace_s": 0.1}
        arrays = []
        for gpus in range(1, 9):
            own = request | {"gpus": gpus, "time_s": 600.0 * gpus, "array": list(range(WAITING // 8))}
            arrays.append(client.post("/v1/jobs", own)["jobs"][0].partition("_")[0])
        names = [row["id"] for row in client.get("/v1/jobs", state="waiting", limit=1000)["jobs"]]
        while not all(row["expected_us"] for row in client.get("/v1/eta", job=names[-1])["jobs"]):
            time.sleep(0.1)
        took = []
        for at in range(ASKED):
            sent = time.perf_counter()
            client.get("/v1/eta", job=names[at * 37 % len(names)])
            took.append(time.perf_counter() - sent)
            time.sleep(0.02)
        for one in arrays:
            client.post(client.job(one, "cancel"))
        while client.get("/v1/jobs", state=LIVE, limit=1)["jobs"]:
            time.sleep(0.1)
    return max(took)


@contextmanager
def kant_up(home: Path, cluster: str) -> Iterator[ServiceClient]:
    """A Kant whose kernels are there."""
    with (home / "kant.log").open("ab") as out:
        command = [sys.executable, "-m", "kant", "up", "--home", str(home), "--cluster", cluster]
        child = subprocess.Popen(command, stdout=out, stderr=out)
    client = ServiceClient(home)
    try:
        while not _ready(client):
            if child.poll() is not None:
                raise RuntimeError("kant up did not start")
            time.sleep(0.1)
        yield client
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


def _ready(client: ServiceClient) -> bool:
    try:
        return not client.get("/v1/health")["starting"]
    except Exception:
        return False
