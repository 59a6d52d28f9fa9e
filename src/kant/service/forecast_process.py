"""The process that forecasts job starts: it reads `Moment`s from its input and writes forecasts to its output."""

from __future__ import annotations

import pickle
import sys

import msgspec

from kant.insight.moment import Moment
from kant.model.units import count_from
from kant.service.side_process import answer_all
from kant.sim.forecast_starts import forecast_starts


def answer(question: bytes) -> bytes:
    """Return the forecast of a pickled `Moment`, as JSON."""
    moment = pickle.loads(question)
    assert isinstance(moment, Moment)
    count_from(moment.zero)
    return msgspec.json.encode(forecast_starts(moment, moment.trial.id if moment.trial is not None else ""))


if __name__ == "__main__":
    sys.exit(answer_all(answer))
