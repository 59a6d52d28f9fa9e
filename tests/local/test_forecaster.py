"""The process that makes forecasts: it says what is said here, and another takes its place when it has gone."""

from __future__ import annotations

import sys

import pytest

from kant.insight.moment import moment_of
from kant.insight.past_jobs import PastJobs
from kant.model.errors import InputError
from kant.model.units import HOUR
from kant.service.forecaster import ForecastProcess
from kant.sim.forecast_starts import forecast_starts
from kant.testing import Harness, make_cluster, make_job, make_profile


@pytest.mark.long
async def test_it_says_what_is_said_here_and_another_takes_its_place() -> None:
    harness = Harness(make_cluster(8), make_profile("fifo", "backfill"))
    harness.submit(make_job("runs", 6, estimate=HOUR), make_job("waits", 4, estimate=HOUR))
    harness.cycle()
    moment = moment_of(harness.scheduler, PastJobs(), harness.now)
    here = forecast_starts(moment)
    assert here.jobs["waits"].start.p50 == HOUR
    there = ForecastProcess()
    assert await there(moment) == here
    first = there._child
    assert first is not None and await there(moment) == here and there._child is first, "one for all"
    first.kill()
    await first.wait()
    assert await there(moment) == here and there._child is not first
    await there.close()
    for program, longest in (("import time; time.sleep(60)", 0.3), ("raise MemoryError", 60.0)):
        broken = ForecastProcess((sys.executable, "-c", program), longest)
        with pytest.raises(InputError, match="an answer from its process"):
            await broken(moment)
        assert broken._child is None
