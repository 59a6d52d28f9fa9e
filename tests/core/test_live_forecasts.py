"""Forecasts beside a scheduler that decides: the latest, with its age, and never in its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.live import start_forecasts
from kant.live.core import Core
from kant.live.start_forecasts import StartForecasts, no_forecaster
from kant.model.errors import InputError
from kant.model.event import JobCancelled, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import ClusterSpec, Node
from kant.scheduler.profile import builtin_profile
from kant.sim.forecast_starts import forecast_starts


class Slow:
    """A forecaster that says what is true once it is told to. `asked` counts the moments that it got."""

    def __init__(self, fails: str = "") -> None:
        self.asked, self.fails = 0, fails
        self.may = asyncio.Event()
        self.may.set()

    async def __call__(self, moment: Moment) -> StartForecast:
        self.asked += 1
        await self.may.wait()
        if self.fails:
            raise InputError("the forecaster", self.fails)
        return forecast_starts(moment)


def core_of(*jobs: str) -> Core:
    core = Core(ClusterSpec("c", (Node("n", 8),)), builtin_profile("kant"))
    core.settled()
    come(core, *jobs)
    return core


def come(core: Core, *jobs: str) -> None:
    for name in jobs:
        core.happen(JobSubmitted(core.now, Job(name, core.now, (PodGroup(1, Demand(8)),), estimate=3_600_000_000)))


def told(story: Callable[[], object]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def test_an_answer_is_the_forecast_of_now_or_the_last_one_with_its_age() -> None:
    async def story() -> None:
        slow, core = Slow(), core_of("a", "b")
        forecasts = StartForecasts(slow)
        first = await forecasts.latest(core)
        assert list(first.jobs) == ["a", "b"] and await forecasts.latest(core, ["a"]) is first
        assert slow.asked == 1, "nothing has changed"
        come(core, "c")
        forecasts._took, slow.may = 1.0, asyncio.Event()
        assert await forecasts.latest(core, ["a"]) is first, "a newer one takes long"
        newer = asyncio.create_task(forecasts.latest(core, ["c"]))
        await asyncio.sleep(0)
        slow.may.set()
        found = await newer
        assert list(found.jobs) == ["a", "b", "c"] and found.now > first.now and slow.asked == 2
        for name in "abc":
            core.happen(JobCancelled(core.now, name))
        come(core, "later")
        forecasts._took = 1.0
        slow.may.clear()
        newer = asyncio.create_task(forecasts.latest(core))
        await asyncio.sleep(2 * start_forecasts.PATIENCE)
        slow.may.set()
        assert list((await newer).jobs) == ["later"], "those of the last one wait no more, so it is no answer"
        other = core_of("d")
        assert list((await forecasts.latest(other)).jobs) == ["d"], "another state has forecasts of its own"

    told(story)


def test_where_nobody_waits_nobody_is_asked_and_where_nobody_can_say_it_is_said() -> None:
    async def story() -> None:
        slow = Slow("one that lives")
        assert (await StartForecasts(slow).latest(core_of())).jobs == {} and slow.asked == 0
        for forecaster, sentence in ((slow, "one that lives"), (no_forecaster, "a Kant that was started with a")):
            with pytest.raises(InputError, match=sentence):
                await StartForecasts(forecaster).latest(core_of("a"))
        slow = Slow()
        slow.may.clear()
        with pytest.raises(InputError, match="try again"):
            await StartForecasts(slow).latest(core_of("a"), within=0.01)

    told(story)


def test_forecasts_keep_up_with_what_changes_and_rest_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_forecasts, "LOOK", 0.0)
    clock = [0.0]

    async def story() -> None:
        slow, core = Slow(), core_of("a")
        forecasts = StartForecasts(slow, lambda: clock[0])
        beside = asyncio.create_task(forecasts.keep_up(lambda: core))

        async def look(seconds: float) -> int:
            clock[0] += seconds
            for _ in range(50):
                await asyncio.sleep(0)
            return slow.asked

        assert await look(start_forecasts.SETTLED / 2) == 0, "jobs that start at once need no forecast"
        assert await look(start_forecasts.SETTLED) == 1
        assert await look(1.0) == 1, "nothing has changed"
        come(core, "b")
        slow.may.clear()
        assert await look(1.0) == 2
        await look(2.0)
        slow.may.set()
        assert await look(0.0) == 2
        come(core, "c")
        assert await look(2.0 * start_forecasts.REST - 0.1) == 2, "it rests for three times as long as it took"
        assert await look(0.2) == 3
        assert await look(start_forecasts.OLD + 1) == 4
        beside.cancel()

    told(story)
