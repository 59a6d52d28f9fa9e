"""What a simulated job takes in memory, counted by the allocator: it does not depend on time or on the machine."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from benchmarks import traces

pytestmark = pytest.mark.long

FEW, MANY = 1000, 9000
MOST = 1000
"""Bytes a job, at the peak: its columns in the workload, in the state, among the samples, and in the result."""


def peak(jobs: int) -> tuple[int, int]:
    """Jobs of a run, and the most bytes that the workload and the run held at once."""
    gc.collect()
    tracemalloc.start()
    try:
        trace = traces.idle(jobs)
        trace.simulate()
        return len(trace.workload), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_job_takes_less_than_a_thousand_bytes() -> None:
    traces.idle(FEW).simulate()  # what is made once for all
    (few, least), (many, most) = peak(FEW), peak(MANY)
    each = (most - least) / (many - few)
    assert 300 < each < MOST, f"{each:.0f} bytes a job"
