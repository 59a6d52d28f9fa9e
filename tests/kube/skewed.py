"""Kant in a process whose clocks are wrong: `python -m tests.kube.skewed SECONDS_AHEAD kube run …`.

The wall clock, and the one that counts since the machine started, which is another on every machine anyway.
"""

from __future__ import annotations

import sys
import time
from datetime import datetime, timedelta, tzinfo

from kant.cli.app import main
from kant.kube.lead import lease


def skew(seconds: int) -> None:
    wall, clock = time.time, time.clock_gettime

    class Skewed(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Skewed:
            return super().now(tz) + timedelta(seconds=seconds)

    lease.datetime = Skewed  # type: ignore[misc]
    time.time = lambda: wall() + seconds
    time.clock_gettime = lambda which: clock(which) + seconds


if __name__ == "__main__":
    skew(int(sys.argv.pop(1)))
    main()
