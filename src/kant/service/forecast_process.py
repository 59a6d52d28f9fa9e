"""The process that makes forecasts of starts: moments on its input, forecasts on its output, each after its length."""

from __future__ import annotations

import pickle
import select
import sys
from typing import BinaryIO

import msgspec

from kant.insight.moment import Moment
from kant.model.units import count_from
from kant.service.humble import be_humble
from kant.sim.forecast_starts import forecast_starts

IDLE = 300.0
"""Seconds without a question after which the process ends."""


def main() -> int:
    """Answer until the input ends, or nobody asks."""
    be_humble()
    while (moment := _read(sys.stdin.buffer)) is not None:
        count_from(moment.zero)
        answer = msgspec.json.encode(forecast_starts(moment))
        sys.stdout.buffer.write(len(answer).to_bytes(8, "big") + answer)
        sys.stdout.buffer.flush()
    return 0


def _read(file: BinaryIO) -> Moment | None:
    if not select.select([file], [], [], IDLE)[0]:
        return None
    size = file.read(8)
    if len(size) < 8:
        return None
    moment = pickle.loads(file.read(int.from_bytes(size, "big")))
    assert isinstance(moment, Moment)
    return moment


if __name__ == "__main__":
    sys.exit(main())
