"""The RICC log: 447,794 jobs on 8,192 processors under strict FIFO and under `kant`, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import rivals
from benchmarks.data import DATA
from benchmarks.measure import Figure, cpu_seconds
from kant.workload.read import read_workload


def measure() -> Iterator[Figure]:
    path = DATA / "RICC-2010-2.swf.gz"
    if not path.exists():
        return
    workload = read_workload(path)
    columns = (workload.submit, workload.runtime.clip(1), workload.pods, workload.queue)
    theirs, waited = cpu_seconds(lambda: rivals.strict_fifo_pool(*(column.tolist() for column in columns), 8192))
    for profile in ("fifo", "kant"):
        summary = simulated(path, profile)
        if profile == "fifo":
            assert abs(waited / 1e6 - summary["wait_s"]["sum"]) < 1e-3, "the rival does the same"
        yield Figure(
            f"ricc-{profile}",
            summary["cpu_s"],
            "CPU-seconds",
            theirs / summary["cpu_s"],
            "plain Python, strict FIFO on one count of processors without nodes",
            "Python between kernels; wide gangs add a node update for each of their processors",
        )
        yield Figure(
            f"ricc-{profile}-memory",
            summary["peak_rss_mib"],
            "MiB",
            None,
            "",
            "columns of the log, of the jobs and of the samples",
        )


def simulated(path: Path, profile: str) -> dict[str, Any]:
    """The summary of the whole log under `profile`, from a process of its own: its memory is that of the run alone."""
    command = [
        sys.executable,
        "-m",
        "kant",
        "simulate",
        str(path),
        "--cluster",
        "1024x8",
        "--profile",
        profile,
        "--json",
    ]
    summary: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return summary
