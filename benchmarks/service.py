"""The service of one machine: pages of a million past jobs, and submissions while a hundred watch, across a kill.

Figures are by the clock, since they are about waiting for a disk: on a busy machine they are lower bounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec

from benchmarks.measure import Figure
from kant.local.record import JobPhase, JobRecord
from kant.local.runs import read_claim
from kant.model.submission import Submission
from kant.service.client import ServiceClient
from kant.service.store import JobStore, digest_of

JOBS = int(os.environ.get("KANT_BENCH_JOBS", "1000000"))
WATCHERS, RATE, SECONDS, SENDERS = 100, 200, 20, 16


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="kant-") as folder:
        yield from pages(Path(folder))
    # jobs outlive Kant, and the last of them still write their logs
    with tempfile.TemporaryDirectory(prefix="kant-", ignore_cleanup_errors=True) as folder:
        yield from load(Path(folder))


def pages(folder: Path) -> Iterator[Figure]:
    """Milliseconds for a page of 100 of very many jobs: the median of 50."""
    store, request = JobStore(folder / "kant.db"), Submission(command=("true",), workdir="/", env={"PATH": "/bin"})
    digest = digest_of(msgspec.json.encode(request))
    for first in range(1, JOBS + 1, 20_000):
        records = [
            JobRecord(
                seq, str(seq), request, digest, f"user{seq % 7}", seq,
                JobPhase.FAILED if seq % 1000 == 0 else JobPhase.FINISHED, started=seq, ended=seq, attempt=1, code=0,
            )
            for seq in range(first, min(first + 20_000, JOBS + 1))
        ]  # fmt: skip
        store.write(records)
    for name, asked in (
        ("page-latest", {}),
        ("page-deep", {"before": JOBS // 2}),
        ("page-failed", {"phases": ("failed",)}),
        ("page-live", {"phases": ("held", "blocked", "waiting", "running", "stopping")}),
        ("page-user", {"user": "user3", "before": JOBS // 2}),
    ):
        took = []
        for _ in range(50):
            began = time.perf_counter()
            store.page(**asked)  # type: ignore[arg-type]
            took.append(time.perf_counter() - began)
        yield Figure(name, statistics.median(took) * 1e3, f"ms of {JOBS:,} jobs", None, "", "SQLite")
    store.close()


def up(home: Path) -> subprocess.Popen[bytes]:
    """A Kant of its own, once it answers."""
    with (home / "kant.log").open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", "kant", "up", "--home", str(home), "--cluster", "1x1"], stdout=out, stderr=out
        )
    for _ in range(12_000):
        try:
            if ServiceClient(home).get("/v1/health")["pid"] == child.pid:
                return child
        except Exception:
            time.sleep(0.01)
    raise RuntimeError("kant up did not start")


def load(home: Path) -> Iterator[Figure]:
    """Submissions at a rate for a while, with a kill in the middle, while others watch; then as fast as it goes."""
    child = up(home)
    blocker = ServiceClient(home).post("/v1/jobs", body(0, 1))["jobs"]
    took: list[float] = []
    told: list[str] = []
    lasted = asyncio.run(send(home, RATE * SECONDS // 2, RATE, took, told))
    child.send_signal(signal.SIGKILL)
    child.wait()
    child = up(home)
    lasted += asyncio.run(send(home, RATE * SECONDS // 2, RATE, took, told))
    yield Figure("submit-rate", len(told) / lasted, "a second, 100 watch", None, "", "the rate asked for")
    yield Figure("submit-p50", statistics.median(took) * 1e3, "ms", None, "", "fsync")
    yield Figure("submit-p99", sorted(took)[int(len(took) * 0.99)] * 1e3, "ms", None, "", "fsync")
    lasted = asyncio.run(send(home, 2000, 0, took, told))
    yield Figure("submit-most", 2000 / lasted, "a second, 100 watch", None, "", "CPU")
    store = JobStore(home / "kant.db")
    lost = sum(store.phase_of(job) is None for job in told + blocker)
    yield Figure("submit-lost", lost, f"of {len(told)}, across a kill", None, "", "nothing")
    child.send_signal(signal.SIGTERM)
    child.wait()
    claim = read_claim(home / "runs" / blocker[0] / "1")  # it outlives Kant, and is not to outlive us
    if claim is not None:
        os.kill(claim.pid, signal.SIGTERM)


def body(number: int, gpus: int) -> dict[str, object]:
    return {"command": ["sleep", "600"], "workdir": "/", "env": {"PATH": "/bin:/usr/bin"}, "gpus": gpus, "time_s": 700}


async def send(home: Path, count: int, rate: int, took: list[float], told: list[str]) -> float:
    """Send so many submissions, at a rate a second (0: none), while others follow the events. The seconds it took."""
    path = str(home / "kant.sock")
    async with aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(path, limit=0), timeout=aiohttp.ClientTimeout(None)
    ) as web:
        heard = [0] * WATCHERS

        async def watch(who: int) -> None:
            async with web.get("http://kant/v1/events") as response:
                async for part in response.content.iter_any():
                    heard[who] += part.count(b"event: job")

        watchers = [asyncio.create_task(watch(who)) for who in range(WATCHERS)]
        await asyncio.sleep(0.5)
        began, numbers = time.perf_counter(), iter(range(count))

        async def sender() -> None:
            for number in numbers:
                wait = began + number / rate - time.perf_counter() if rate else 0
                if wait > 0:
                    await asyncio.sleep(wait)
                sent = time.perf_counter()
                async with web.post("http://kant/v1/jobs", json=body(number, 1)) as response:
                    told.extend(json.loads(await response.read())["jobs"])
                took.append(time.perf_counter() - sent)

        await asyncio.gather(*(sender() for _ in range(SENDERS)))
        lasted = time.perf_counter() - began
        await asyncio.sleep(1)
        assert min(heard) >= count, f"a watcher heard {min(heard)} of {count} changes"
        for watcher in watchers:
            watcher.cancel()
        return lasted
