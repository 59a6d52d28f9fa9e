"""Statistics on workloads small enough to count by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kant.model.units import HOUR, SECOND
from kant.workload.describe import describe, hourly_counts
from kant.workload.workload import make_workload


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def test_by_hand() -> None:
    jobs = make_workload(
        "w", ints(0, HOUR, HOUR, 2 * HOUR), ints(HOUR, HOUR, 2 * HOUR, 0), ints(1, 8, 1, 0),
        milli=ints(1000, 1000, 500, 1000), pods=ints(0, 2, 1, 1), limit=ints(-1, HOUR, -1, -1),
    )  # fmt: skip
    facts = describe(jobs)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["jobs"] == 4
    assert facts["gpu_hours"] == 1 + 16 + 1
    assert facts["gpus_requested"] == 17.5
    assert facts["gpus_busy_mean"] == 9
    spread = {"mean": 3600.0, "p50": 3600.0, "p90": 6120.0, "p99": 7092.0, "max": 7200.0}
    assert facts["runtime_s"] == pytest.approx(spread)
    assert (facts["cpu_only_jobs"], facts["shared_gpu_jobs"], facts["jobs_with_limit"]) == (1, 1, 1)
    mix = facts["size_mix"]
    assert isinstance(mix, list)
    assert [(row["gpus"], row["jobs"]) for row in mix[:3]] == [("1", 3), ("2-8", 0), ("9-64", 1)]
    assert mix[2]["gpu_hour_share"] == pytest.approx(16 / 18)


def test_arrivals_of_a_known_series() -> None:
    counts = [1, 3, 1, 3, 1, 3]
    submit = np.repeat(np.arange(6) * HOUR, counts).astype(np.int64)
    facts = describe(make_workload("w", submit, submit * 0 + SECOND, submit * 0 + 1))["arrivals"]
    assert hourly_counts(submit).tolist() == counts
    assert facts == {"per_hour": 2.0, "peak_per_hour": 3.0, "dispersion": 0.5, "lag1": pytest.approx(-5 / 6)}


def test_nothing_and_one_job() -> None:
    none = ints()
    assert describe(make_workload("w", none, none, none))["jobs"] == 0
    assert describe(make_workload("w", ints(5), ints(5), ints(5)))["span_s"] == 0
