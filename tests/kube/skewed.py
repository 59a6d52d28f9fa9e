"""Kant in a process whose clocks are wrong.

The wall clock, and the one that counts since the machine started, which is another on every machine anyway.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta, tzinfo

from kant.cli.app import run
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


def run_skewed(seconds: int, arguments: list[str]) -> int:
    """One command of Kant, in this process, with clocks that are so far ahead."""
    if seconds:
        skew(seconds)
    return run(arguments)
