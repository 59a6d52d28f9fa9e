"""The figures of a run: the numbers of `kant serve simulate --json`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from kant.serving.columns import Table, Times
from kant.serving.requests import Requests


@dataclass(frozen=True, slots=True)
class Objectives:
    """The objectives of a request: seconds to its first token, and seconds for each token after it."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1


@dataclass(frozen=True, slots=True)
class Served:
    """The outcome of each request, in order, and totals of the engines.

    Times are in seconds; NaN if something did not happen. `kv_use` is the share of KV blocks that are held, averaged
    over the time in which an engine runs. `kv_use_max` is the highest share on a single engine.
    """

    requests: Requests
    engine: Table
    first: Times
    finish: Times
    gap: Times
    preempted: Table
    cached: Table
    steps: int
    kv_use: float
    kv_use_max: float
    looked_up: int
    hits: int
    host_hits: int
    series: Times
    """Rows of (time, engine, running, waiting, share of KV held)."""


def spread(values: Times) -> dict[str, float | None]:
    """Return mean and percentiles; None if there are no values."""
    if len(values) == 0:
        return dict.fromkeys(("mean", "p50", "p90", "p99"))
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99))
    return {"mean": float(values.mean()), "p50": float(p50), "p90": float(p90), "p99": float(p99)}


def digest(served: Served) -> str:
    """Return a digest of all decisions. Equal runs have equal digests on any machine."""
    found = hashlib.sha256()
    for column in (served.engine, served.first, served.finish, served.preempted, served.cached):
        found.update(np.ascontiguousarray(column).tobytes())
    return found.hexdigest()[:16]


def summarise(served: Served, objectives: Objectives) -> dict[str, Any]:
    """Return the summary of a run; docs/serving.md describes each number."""
    requests = served.requests
    done = ~np.isnan(served.finish)
    output = requests.output[done]
    ttft = served.first[done] - requests.arrival[done]
    e2e = served.finish[done] - requests.arrival[done]
    after = output > 1
    tpot = np.zeros(len(output))
    tpot[after] = (served.finish[done] - served.first[done])[after] / (output[after] - 1)
    good = (ttft <= objectives.ttft_s) & (tpot <= objectives.tpot_s)
    span = float(np.nanmax(served.finish) - requests.arrival[0]) if done.any() else 0.0
    gaps = served.gap[done][after]

    def per_second(count: float) -> float | None:
        return float(count) / span if span > 0 else None

    finished = int(done.sum())
    return {
        "requests": len(requests),
        "finished": finished,
        "ttft_s": spread(ttft),
        "tpot_s": spread(tpot[after]),
        "e2e_s": spread(e2e),
        "normalised_latency_s_per_token": spread(e2e / output),
        "gap_s": spread(gaps),
        "max_gap_s": float(gaps.max()) if len(gaps) else None,
        "preemptions": int(served.preempted.sum()),
        "evicted_share": float((served.preempted > 0).mean()),
        "throughput": {
            "requests_per_s": per_second(finished),
            "output_tokens_per_s": per_second(output.sum()),
            "tokens_per_s": per_second(output.sum() + requests.prompt[done].sum()),
        },
        "goodput": {
            "ttft_s": objectives.ttft_s,
            "tpot_s": objectives.tpot_s,
            "share": float(good.sum() / len(requests)),
            "requests_per_s": per_second(good.sum()),
            "output_tokens_per_s": per_second(output[good].sum()),
        },
        "kv_use": {"mean": served.kv_use, "max": served.kv_use_max},
        "cache_hit_rate": served.hits / served.looked_up if served.looked_up else None,
        "host_hit_rate": served.host_hits / served.looked_up if served.looked_up else None,
        "engine_steps": served.steps,
        "makespan_s": span,
        "digest": digest(served),
    }
