"""A large cluster that is there when Kant starts: how much memory it takes, and that it decides.

KANT_SCALE_NODES=5000 has that many nodes, and ten pods on each (400).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kube.api import Api
from tests.kube.binaries import Binaries
from tests.kube.control_plane import ControlPlane
from tests.kube.crowd import put_all
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.processes import cpu_seconds, rss_mib
from tests.kube.running import KantProcess
from tests.kube.terms import Terms

NODES = int(os.environ.get("KANT_SCALE_NODES", "400"))
MOST_MIB = 1024


def crowd(nodes: int) -> Iterator[Object]:
    """Nodes of 8 GPUs, of which 7 are in use: by gangs of 32 and single pods of ours, and pods of others."""
    for i in range(nodes):
        labels = {"example.com/leaf": f"l{i // 16}", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
        yield make_node(f"n{i}", labels=labels)
        for j in range(3):
            yield make_pod(f"ours-{i}-{j}", node=f"n{i}")
            yield make_pod(f"theirs-{i}-{j}", 0, node=f"n{i}", scheduler="default-scheduler", namespace="kube-system")
    for number in range(nodes // 8):
        for rank, pod in enumerate(make_gang(f"gang-{number}", 32)):
            pod["spec"]["nodeName"] = f"n{number * 8 + rank // 4}"
            yield pod


def test_a_large_cluster_is_listed_within_memory_and_decided_on(binaries: Binaries) -> None:
    async def story(plane: ControlPlane) -> None:
        async with Api(plane) as api:
            count = await put_all(plane, crowd(NODES))
            waiting = [pod for number in range(NODES // 16) for pod in make_gang(f"new-{number}", 8)]
            await api.create_all(waiting)
            async with Terms(api) as terms:
                began, kant = time.monotonic(), KantProcess(plane, "--no-leader-election", user="admin", fresh=True)
                try:
                    await kant.says("state built")
                    built, spent = time.monotonic() - began, cpu_seconds(kant.process.pid)
                    await terms.bound_in_all(1)
                    first = time.monotonic() - began
                    await terms.none_waits()
                    bound, resident = time.monotonic() - began, rss_mib(kant.process.pid)
                    peak = peak_mib(kant.process.pid)
                finally:
                    kant.kill()
        print(
            f"{count} objects: state in {built:.1f} s ({spent:.1f} CPU-s), first bind {first:.1f} s, {len(waiting)}"
            f" bound {bound:.1f} s after the process began; RSS {resident:.0f} MiB, at most {peak:.0f} MiB"
        )
        assert peak < MOST_MIB

    with ControlPlane(binaries) as plane:
        asyncio.run(story(plane))


def peak_mib(pid: int) -> float:
    """The most memory that a process has held, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))
