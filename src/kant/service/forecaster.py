"""Forecasts job starts in a separate process (`service/side_process.py`), so that scheduling never waits for one."""

from __future__ import annotations

import pickle
import sys

import msgspec

from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.model.errors import InputError
from kant.service.side_process import LONGEST, SideProcess

PROCESS = (sys.executable, "-m", "kant.service.forecast_process")


class ForecastProcess(SideProcess):
    """A process that makes one forecast at a time. Call it with a moment; `close` ends it."""

    def __init__(self, process: tuple[str, ...] = PROCESS, longest: float = LONGEST) -> None:
        super().__init__(process, "the forecaster", longest)

    async def __call__(self, moment: Moment) -> StartForecast:
        """Return the forecast of this moment. Raises InputError if the process cannot answer."""
        answer = await self.ask(pickle.dumps(moment, pickle.HIGHEST_PROTOCOL))
        try:
            return msgspec.json.decode(answer, type=StartForecast)
        except msgspec.DecodeError as error:
            await self.close()
            raise InputError("the forecaster", f"a process that answers ({error})") from None
