"""Kant's classes on vLLM's own scheduler, beside the simulator: how many requests end at the same instant.

In the environment that `python -m benchmarks.record_vllm` makes: `PYTHONPATH=src .vllm/bin/python
benchmarks/vllm_policies.py`. Time is virtual, as in the recorded runs.
"""

from __future__ import annotations

import json
import random
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

BLOCKS, SEQS, BUDGET, COUNT = 420, 16, 512, 200
LATENCY = LatencyModel(*(recorder.CONSTANTS[name] for name in "FSCKQO"))
PRIORITY = SchedulingPolicy.PRIORITY


def drawn(seed: int) -> list[dict[str, Any]]:
    draw, now, rows = random.Random(seed), 0.0, []
    for i in range(COUNT):
        now += draw.expovariate(20)
        lengths = {"prompt": draw.randint(2, 400), "output": draw.randint(2, 200)}
        rows.append({"id": i, "arrival": now, **lengths, "priority": draw.randint(0, 3), "group": -1, "prefix": 0})
    return rows


def main() -> None:
    print(f"classes: {vllm_scheduler.Plas.__mro__[:2]}")
    plain = recorder.Scheduler
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(recorder.TINY))
        for name in ("fcfs", "priority", "ranked", "preemptive-priority"):
            recorder.Scheduler = vllm_scheduler.extended(plain, lambda: create_request_queue(PRIORITY), PRIORITY, name)
            rows = drawn(5)
            made = recorder.scheduler(folder, "fcfs", SEQS, BUDGET, BLOCKS, False)
            _, preempted = recorder.drive(made, rows, False)
            arrival, finish = (np.array([row[key] for row in rows]) for key in ("arrival", "finish"))
            prompt, output = (np.array([row[key] for row in rows]) for key in ("prompt", "output"))
            priority = np.array([float(row["priority"]) for row in rows])
            coming = Requests("drawn", arrival, prompt, output, priority=priority)
            served = simulate(coming, EngineSettings(LATENCY, BLOCKS, 16, SEQS, BUDGET), policy=policy_named(name))
            same, ours = int((finish == served.finish).sum()), int(served.preempted.sum())
            print(f"{name}: {same} of {COUNT} equal; preempted {preempted}, simulated {ours}; left {len(made.rows)}")


if __name__ == "__main__":
    main()
