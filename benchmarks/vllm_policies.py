"""Kant's classes on vLLM's own scheduler, beside the simulator: how many requests end at the same instant.

In the environment that `python -m benchmarks.record_vllm` makes: `PYTHONPATH=src .vllm/bin/python
benchmarks/vllm_policies.py`. Time is virtual, as in the recorded runs. Each class serves the same requests twice: short
of seats, and short of KV with the prefix cache. Exits with 1 where a request differs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import vllm_recorder as recorder
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

from kant.gateway import vllm_scheduler
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.latency import LatencyModel
from kant.serving.policies import policy_named
from kant.serving.requests import Requests

COUNT = 200
SETTINGS = {"short of seats": (420, 16, 512, False), "short of KV": (160, 64, 512, True)}
"""Blocks, sequences, tokens a step, and whether there is a prefix cache."""
LATENCY = LatencyModel(*(recorder.CONSTANTS[name] for name in "FSCKQO"))
PRIORITY = SchedulingPolicy.PRIORITY


def drawn(seed: int) -> list[dict[str, Any]]:
    """Requests of 40 programs; two of three share the beginning of their prompts with others."""
    draw, now, rows = random.Random(seed), 0.0, []
    for i in range(COUNT):
        now += draw.expovariate(20)
        lengths = {"prompt": draw.randint(2, 400), "output": draw.randint(2, 200)}
        rows.append({"id": i, "arrival": now, **lengths, "priority": draw.randint(0, 3), "program": draw.randrange(40)})
        group = draw.randrange(-2, 4)
        rows[-1] |= {"group": max(group, -1), "prefix": min(160, lengths["prompt"] - 1) if group >= 0 else 0}
    return rows


def requests_of(rows: list[dict[str, Any]]) -> Requests:
    """The same requests for the simulator."""

    def column(name: str) -> Any:
        return np.array([row[name] for row in rows])

    return Requests(
        "drawn", column("arrival"), column("prompt"), column("output"), priority=column("priority").astype(float),
        program=column("program"), group=column("group"), prefix=column("prefix"),
    )  # fmt: skip


def compare(folder: str, policy: str, name: str) -> bool:
    """Serve the requests by both, print how many end at the same instant, and say whether all do."""
    blocks, seqs, budget, caching = SETTINGS[name]
    plain = recorder.Scheduler
    recorder.Scheduler = vllm_scheduler.extended(plain, lambda: create_request_queue(PRIORITY), PRIORITY, policy)
    made = recorder.scheduler(folder, "fcfs", seqs, budget, blocks, caching)
    recorder.Scheduler = plain
    now = [0.0]
    made.clock, made.began = lambda: now[0], 0.0
    rows = drawn(5)
    _, preempted = recorder.drive(made, rows, caching, lambda time: now.__setitem__(0, time))
    settings = EngineSettings(LATENCY, blocks, recorder.BLOCK, seqs, budget, caching)
    served = simulate(requests_of(rows), settings, policy=policy_named(policy))
    same = int((np.array([row["finish"] for row in rows]) == served.finish).sum())
    ours, left = int(served.preempted.sum()), len(made.rows)
    print(
        f"{policy}, {name}: {same} of {COUNT} equal; preempted {preempted}, simulated {ours}; left {left}", flush=True
    )
    return same == COUNT and preempted == ours and not left


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(recorder.TINY))
        policies = sys.argv[1:] or ["fcfs", *vllm_scheduler.CLASSES.values()]
        agrees = [compare(folder, policy, name) for policy in policies for name in SETTINGS]
    return 0 if all(agrees) else 1


if __name__ == "__main__":
    sys.exit(main())
