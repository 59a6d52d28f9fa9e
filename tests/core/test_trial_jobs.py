"""A job that nobody submits: it is told to start when the same job, submitted, would; others are not named."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment, moment_of
from kant.live.core import Core
from kant.live.questions import trial_answer
from kant.model.event import JobStarted, JobSubmitted
from kant.model.units import HOUR
from kant.scheduler.profile import builtin_profile
from kant.sim.forecast_starts import forecast_starts
from kant.testing import make_cluster, make_job

SIZES = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 5), st.sampled_from((-1, 0, 9))), min_size=1, max_size=9)


async def here(moment: Moment) -> StartForecast:
    return forecast_starts(moment, moment.trial.id if moment.trial is not None else "")


def core_of(sizes: list[tuple[int, int, int]], written: list[bytes]) -> Core:
    """A cluster of 8 GPUs on which somebody's jobs have been decided on."""
    core = Core(make_cluster(8), builtin_profile("kant"), written.append, clock=lambda: 0.0)
    core.settled()
    for number, (gpus, hours, priority) in enumerate(sizes):
        job = make_job(f"secret-{number}", gpus, estimate=hours * HOUR, priority=priority)
        core.happen(JobSubmitted(core.now, job))
    for decision in core.cycle().decisions:
        if hasattr(decision, "allocation") and decision.job in core.state.rows:
            core.happen(JobStarted(core.now, decision.job, decision.allocation))
    return core


@given(SIZES, st.integers(1, 8), st.integers(1, 5), st.sampled_from((-1, 0, 9)))
def test_it_would_start_when_the_same_job_starts_that_is_submitted(
    sizes: list[tuple[int, int, int]], gpus: int, hours: int, priority: int
) -> None:
    written: list[bytes] = []
    core = core_of(sizes, written)
    job = make_job("mine", gpus, submit=core.now, estimate=hours * HOUR, priority=priority)
    lines = len(written)
    found = asyncio.run(trial_answer(core, here, job))
    assert "secret" not in json.dumps(found, default=str), "no job of somebody else is named"
    assert "mine" not in core.state.rows and len(written) == lines, "nothing is submitted"
    core.happen(JobSubmitted(core.now, job))
    true = forecast_starts(moment_of(core.scheduler, core.past, core.now, core.zero)).jobs["mine"]
    (row,) = found["jobs"]
    assert (row["expected_us"]["p50"], row["expected_us"]["p90"]) == (true.start.p50, true.start.p90)
    assert (row["place"], row["of"]) == (true.place, len(core.state.pending))


def test_it_waits_for_what_runs_and_what_never_fits_says_so() -> None:
    core = core_of([(8, 3, 0)], [])
    (row,) = asyncio.run(trial_answer(core, here, make_job("mine", 4, submit=core.now)))["jobs"]
    assert row["expected_us"] == {"p50": 3 * HOUR, "p90": 3 * HOUR, "never": False}
    assert row["rests_on"]["sentence"].startswith("1 job ends, expected at")
    (row,) = asyncio.run(trial_answer(core, here, make_job("mine", 9, submit=core.now)))["jobs"]
    assert row["expected_us"] == {"p50": None, "p90": None, "never": True} and row["sentence"]
