"""What the profile `kant` costs beside `fifo-best-effort` where there are many queues: exact counts of Python calls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.calls import count
from benchmarks.traces import many_queues

pytestmark = pytest.mark.long

AT_MOST = {10: (1.47, "491683f5"), 40: (2.58, "db437279")}
"""By number of queues: calls under `kant` over those under `fifo-best-effort`, which may only fall, and the digest of
the run."""


@pytest.mark.parametrize("queues", AT_MOST)
def test_kant_costs_little_more_than_best_effort_however_many_queues_there_are(queues: int) -> None:
    trace = many_queues(queues)
    calls, best_effort = count(trace), count(replace(trace, profile="fifo-best-effort"))
    factor, digest = AT_MOST[queues]
    assert calls.total <= factor * best_effort.total, calls.total / best_effort.total
    assert calls.digest.startswith(digest), "the trace is decided otherwise: its counts compare with nothing"
