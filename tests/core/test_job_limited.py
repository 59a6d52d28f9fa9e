"""A run that gets another limit is as one that began with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.columns import J_ESTIMATE, J_REMAINING
from kant.model.event import JobLimited, JobPreempted
from kant.model.units import SECOND
from kant.testing import Harness, make_cluster, make_job, make_profile

LIMITS = st.integers(2, 9)


def story(limit: int | None, later: int | None, at: int, other: int, estimate: bool) -> list[object]:
    """What is decided second by second of two GPUs with a job that has a limit, and `at` a time a `later` one."""
    harness = Harness(make_cluster(2), make_profile("fifo", "easy"))
    longest = -1 if limit is None else limit * SECOND
    harness.submit(make_job("a", limit=longest, estimate=5 * SECOND + 1 if estimate else longest))
    harness.cycle(0)
    harness.happen(JobPreempted(SECOND, "a"))
    harness.cycle(SECOND)  # its second run
    harness.now = (1 + at) * SECOND
    if later is not None:
        harness.happen(JobLimited(harness.now, "a", later * SECOND))
    harness.submit(make_job("wide", gpus=2, estimate=SECOND))
    harness.submit(make_job("small", estimate=other * SECOND))
    plans = [harness.cycle(time * SECOND).decisions for time in range(1 + at, 12)]
    row = harness.state.rows["a"]
    own = harness.state.jobs[row, [J_ESTIMATE, J_REMAINING]]
    return [[[(type(one), one.job) for one in each] for each in plans], *own]


@given(before=st.none() | LIMITS, then=LIMITS, at=st.integers(0, 1), other=LIMITS, estimate=st.booleans())
def test_as_if_it_had_begun_with_it(before: int | None, then: int, at: int, other: int, estimate: bool) -> None:
    assert story(before, then, at, other, estimate) == story(then, None, at, other, estimate)


def test_who_has_done_more_than_the_new_limit_has_nothing_left() -> None:
    harness = Harness(make_cluster(1), make_profile("fifo", "easy"))
    harness.submit(make_job("a", limit=9 * SECOND, estimate=9 * SECOND))
    harness.cycle(0)
    harness.happen(JobPreempted(8 * SECOND, "a"))
    harness.cycle(8 * SECOND)
    harness.happen(JobLimited(8 * SECOND, "a", 2 * SECOND))
    assert harness.state.jobs[0, J_REMAINING] == 0, "and not -1, which is unknown"
