"""Forecasts job starts in a separate process (`service/side_process.py`), so that scheduling never has to wait."""

from __future__ import annotations

import pickle
import sys

import msgspec

from kant.insight.expected_start import StartForecast
from kant.insight.moment import Moment
from kant.model.errors import InputError
from kant.model.units import count_from
from kant.service.side_process import LONGEST, SideProcess, answer_all

PROCESS = (sys.executable, "-m", "kant.service.forecaster")


class ForecastProcess(SideProcess):
    """A process that makes one forecast at a time. Call the object with a frozen state; `close` ends the process."""

    def __init__(self, process: tuple[str, ...] = PROCESS, longest: float = LONGEST) -> None:
        super().__init__(process, "the forecaster", longest)

    async def __call__(self, moment: Moment) -> StartForecast:
        """Return the forecast from this frozen state. Raises InputError if the process cannot answer."""
        answer = await self.ask(pickle.dumps(moment, pickle.HIGHEST_PROTOCOL))
        try:
            return msgspec.json.decode(answer, type=StartForecast)
        except msgspec.DecodeError as error:
            await self.close()
            raise InputError("the forecaster", f"an answer from its process ({error})") from None


def answer(question: bytes) -> bytes:
    """Return the forecast of a pickled `Moment`, as JSON."""
    from kant.sim.forecast_starts import forecast_starts  # imports the simulator

    moment = pickle.loads(question)
    assert isinstance(moment, Moment)
    count_from(moment.zero)
    return msgspec.json.encode(forecast_starts(moment, moment.trial.id if moment.trial is not None else ""))


if __name__ == "__main__":
    sys.exit(answer_all(answer))
