"""Start forecasts in parallel to the scheduler: computed elsewhere, one after the other, and cached.

The state of the core is frozen, which takes milliseconds, and sent to a forecaster, which needs nothing else from the
core. So no decision waits for a forecast, and an answer gives the latest forecast with its age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from kant.insight.expected_start import StartForecast
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.job import Job

if TYPE_CHECKING:
    from kant.insight.moment import Moment

REST = 3.0
"""The pause after a forecast, as a multiple of the forecast's duration, unless somebody requests a forecast."""

LOOK = 0.25
"""Seconds between two checks for changes."""

PATIENCE = 0.05
"""Seconds that an answer waits for a forecast newer than the cached forecast."""

SHORT = 0.5
"""If the last forecast took at most SHORT seconds, an answer waits up to 4 x SHORT seconds for a newer forecast."""

FIRST = 20.0
"""Seconds that an answer waits for the first forecast about its jobs."""

SETTLED = 10.0
"""Seconds for which jobs must have waited before forecasts are made without a request."""

OLD = 60.0
"""Seconds after which a forecast is repeated though nothing has changed."""


class Forecaster(Protocol):
    """Makes a forecast from a frozen state, outside the event loop. Raises InputError if that fails."""

    async def __call__(self, moment: Moment) -> StartForecast: ...


async def no_forecaster(moment: Moment) -> StartForecast:
    """Raise InputError, which says that there is no forecaster."""
    raise InputError("the forecaster", "a Kant that was started with a forecast process")


class StartForecasts:
    """The latest calibrated forecast for a core. A core that replaces another gets forecasts of its own.

    `trouble` says why no forecast can be made; "" if forecasts work.
    """

    def __init__(self, forecaster: Forecaster, clock: Callable[[], float] = time.monotonic) -> None:
        self.forecaster = forecaster
        self.clock = clock
        self.trouble = ""
        self._core: Core | None = None
        self._kept: StartForecast | None = None
        self._mark: tuple[int, int, int] = (0, 0, 0)  # the state's mark for the cached forecast
        self._made = self._rests_until = float("-inf")
        self._took = 0.0
        self._under_way: asyncio.Task[None] | None = None

    async def latest(self, core: Core, jobs: Collection[str] = (), within: float = FIRST) -> StartForecast:
        """Return the latest forecast. It contains the waiting jobs of `jobs`, if that takes at most `within` seconds.

        Without `jobs` it contains at least one waiting job. It is empty if no job waits. Raises InputError if there is
        no forecast and none can be made.
        """
        if not core.state.pending and core.state.quota_usage.budgets is None:
            return StartForecast(core.now, 0, 0, {})
        end = self.clock() + within
        kept = self._of(core)
        if kept is not None and self._is_present(core):
            return kept
        self._begin(core)
        if kept is not None and _has(kept, core, jobs):
            await self._wait(PATIENCE if self._took > SHORT else 4 * SHORT)
            return self._of(core) or kept
        while (kept is None or not _has(kept, core, jobs)) and self.clock() < end:
            self._begin(core)
            await self._wait(end - self.clock())
            kept = self._of(core)
            if kept is None and self.trouble:
                raise InputError("the forecaster", f"a process that can be started ({self.trouble})")
        if kept is None:
            raise InputError("the first forecast", f"an answer within {within:g} s: try again")
        return kept

    async def keep_up(self, present: Callable[[], Core | None]) -> None:
        """Make forecasts while jobs wait and things change, until cancelled."""
        quiet_since = self.clock()
        while True:
            core, now = present(), self.clock()
            if core is None or not core.state.pending:
                quiet_since = now
            elif now >= max(self._rests_until, quiet_since + SETTLED) and (
                not self._is_present(core) or now - self._made > OLD
            ):
                self._begin(core)
            await asyncio.sleep(LOOK)

    def _of(self, core: Core) -> StartForecast | None:
        return self._kept if self._core is core else None

    def _is_present(self, core: Core) -> bool:
        return self._core is core and self._mark == _mark(core)

    def _begin(self, core: Core) -> None:
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._make(core))
            self._under_way.add_done_callback(self._ended)

    async def _make(self, core: Core) -> None:
        mark, began = _mark(core), self.clock()
        try:
            from kant.live.moments import present_moment  # nobody may ever ask for a forecast

            forecast = await self.forecaster(await present_moment(core))
        except InputError as error:
            self.trouble = str(error)
            self._rests_until = self.clock() + OLD
            return
        self.trouble = ""
        self._core, self._kept, self._mark, self._made = core, core.answers.keep(forecast), mark, self.clock()
        self._took = self._made - began
        self._rests_until = self._made + REST * self._took

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way = None
        if not task.cancelled() and task.exception() is not None:
            self.trouble = f"{task.exception()}"

    async def _wait(self, seconds: float) -> None:
        if self._under_way is not None and seconds > 0:
            await asyncio.wait({self._under_way}, timeout=seconds)


async def forecast_trial(forecaster: Forecaster, core: Core, job: Job) -> StartForecast:
    """Forecast when an unsubmitted job would start if it arrived now. Raises InputError if this is not possible.

    The calibration does not learn from this forecast.
    """
    from kant.live.moments import present_moment

    forecast = await forecaster(await present_moment(core, job))
    return core.answers.calibration().corrected(forecast)


def _mark(core: Core) -> tuple[int, int, int]:
    """Return a mark that changes when the input of a forecast has changed."""
    state = core.state
    return state.job_changes.end, state.node_version, id(state.quota_usage.queue_config)


def _has(forecast: StartForecast, core: Core, jobs: Collection[str]) -> bool:
    """Return whether the forecast has the waiting jobs of `jobs`; if `jobs` is empty, whether it has a waiting job."""
    if not jobs:
        state = core.state
        return not state.pending or any(state.ids[row] in forecast.jobs for row in state.pending)
    return all(job in forecast.jobs for job in jobs if core.state.rows.get(job, -1) in core.state.pending)
