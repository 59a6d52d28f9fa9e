"""What the profile `kant` costs where there are many queues: exact counts of Python calls."""

from __future__ import annotations

import pytest
from benchmarks.calls import count
from benchmarks.traces import many_queues

pytestmark = pytest.mark.long

AT_MOST = {10: (23.5, "40e20bec"), 40: (32.9, "b75fa92b")}
"""By number of queues: calls a job, which may only fall, and the digest of the run."""


@pytest.mark.parametrize("queues", AT_MOST)
def test_kant_costs_the_same_however_many_queues_there_are(queues: int) -> None:
    trace = many_queues(queues)
    calls, digest = AT_MOST[queues]
    counted = count(trace, calls)
    assert counted.total <= calls * len(trace.workload), counted.total / len(trace.workload)
    assert counted.digest.startswith(digest), "the trace is decided differently: its counts compare with nothing"
