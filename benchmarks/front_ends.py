"""Short jobs through front ends, beside the same to Kant's own socket: accepted a second, CPU time, time to the start.

Of many at once nothing starts (all queues are paused), so that what is measured is submission. Then a few come one
after the other, and start: how long after its submission a job's first command runs. Rounds alternate.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Figure
from kant.service.client import FRONT_SOCKET, SOCKET, ServiceClient
from kant.service.socket_http import exchange

FRONT_ENDS, SENDERS, JOBS, ROUNDS, FEW = 2, 256, 2000, 5, 20
TICK = os.sysconf("SC_CLK_TCK")
BODY = json.dumps(
    {"command": ["true"], "workdir": "/", "cpus": 1, "time_s": 60}
    | {"env": {f"VARIABLE_{n}": "a value of some length" for n in range(40)}}
).encode()


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="kant-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        kant = _up(home)
        try:
            yield from _starts(home)
            yield from _rounds(home, kant)
        finally:
            kant.terminate()
            kant.wait()


def _up(home: Path) -> subprocess.Popen[bytes]:
    command = ["-m", "kant", "up", "--home", str(home), "--cluster", "4x8", "--listen", "none"]
    kant = subprocess.Popen([sys.executable, *command, "--front-ends", str(FRONT_ENDS)], stderr=subprocess.DEVNULL)
    for _ in range(6_000):
        try:
            if not ServiceClient(home).get("/v1/health")["starting"]:
                return kant
        except Exception:
            pass
        time.sleep(0.01)
    raise RuntimeError("kant up did not start")


def _starts(home: Path) -> Iterator[Figure]:
    took: dict[str, list[float]] = {SOCKET: [], FRONT_SOCKET: []}
    for turn in range(ROUNDS + 1):  # the first one warms up
        for name, found in took.items():
            for number in range(FEW):
                out, began = home / f"{name}-{turn}-{number}", time.time_ns()
                asked = {
                    "command": ["sh", "-c", f"date +%s%N > {out}.new; mv {out}.new {out}"],
                    "gpus": 1,
                    "time_s": 60,
                }
                body = json.dumps(asked | {"workdir": "/", "env": {"PATH": os.environ["PATH"]}}).encode()
                reply = exchange(str(home / name), "POST", "/v1/jobs", body, {"Content-Type": "application/json"})
                assert reply.status == 201, reply.read()
                time.sleep(0.05)
                while not out.exists():
                    time.sleep(0.01)
                if turn:
                    found.append((int(out.read_text()) - began) / 1e6)
    alone, front = (statistics.median(each) for each in took.values())
    yield Figure("front-ends-start", front, "ms to the start", alone / front, "Kant's own socket", "CPU")


def _rounds(home: Path, kant: subprocess.Popen[bytes]) -> Iterator[Figure]:
    fronts = [int(pid) for pid in Path(f"/proc/{kant.pid}/task/{kant.pid}/children").read_text().split()]
    ServiceClient(home).post("/v1/queues/pause", {"queues": []})
    found: dict[str, list[tuple[float, float, float]]] = {SOCKET: [], FRONT_SOCKET: []}
    told: list[str] = []
    for turn in range(ROUNDS + 1):  # the first one warms up
        for name, rows in found.items():
            core, others = _cpu_s(kant.pid), sum(map(_cpu_s, fronts))
            began = time.perf_counter()
            told += asyncio.run(_send(home / name))
            lasted = time.perf_counter() - began
            core, others = _cpu_s(kant.pid) - core, sum(map(_cpu_s, fronts)) - others
            if turn:
                rows.append((JOBS / lasted, 1e6 * core / JOBS, 1e6 * (core + others) / JOBS))
    assert len(told) == len(set(told)) == 2 * JOBS * (ROUNDS + 1)
    alone, front = ([statistics.median(each) for each in zip(*rows, strict=True)] for rows in found.values())
    yield Figure("front-ends-rate", front[0], "jobs a second", front[0] / alone[0], "Kant's own socket", "CPU")
    yield Figure("front-ends-core", front[1], "µs of the core a job", alone[1] / front[1], "Kant's own socket", "CPU")
    yield Figure("front-ends-all", front[2], "µs of all a job", alone[2] / front[2], "Kant's own socket", "CPU")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


async def _send(path: Path) -> list[str]:
    """Submit all jobs over connections that stay; returns their ids."""
    told: list[str] = []
    left = iter(range(JOBS))
    head = "POST /v1/jobs HTTP/1.1\r\nHost: kant\r\nContent-Type: application/json\r\nContent-Length: "
    request = f"{head}{len(BODY)}\r\n\r\n".encode() + BODY

    async def sender() -> None:
        reader, writer = await asyncio.open_unix_connection(str(path))
        for _ in left:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(size)
            assert head.startswith(b"HTTP/1.1 201"), body
            told.extend(json.loads(body)["jobs"])
        writer.close()

    await asyncio.gather(*(sender() for _ in range(SENDERS)))
    return told
