"""The process that makes forecasts of starts: moments on its input, forecasts on its output."""

from __future__ import annotations

import pickle
import sys

import msgspec

from kant.insight.moment import Moment
from kant.model.units import count_from
from kant.service.side_process import answer_all
from kant.sim.forecast_starts import forecast_starts


def answer(question: bytes) -> bytes:
    """The forecast of a moment."""
    moment = pickle.loads(question)
    assert isinstance(moment, Moment)
    count_from(moment.zero)
    return msgspec.json.encode(forecast_starts(moment, moment.trial.id if moment.trial is not None else ""))


if __name__ == "__main__":
    sys.exit(answer_all(answer))
