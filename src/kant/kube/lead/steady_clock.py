"""A wall clock that does not jump: the leader's decisions follow the time that passes.

The system clock of one machine may be set forward or back by hours. If decisions followed it, every job with a time
limit would be evicted at once, or limits, reservations and time-outs would stand still for as long.
"""

from __future__ import annotations

import time

from kant.kube.lead.lease import boot_clock


class SteadyClock:
    """Seconds since the Unix epoch: the system clock when this clock was set, plus the time that has passed since."""

    def __init__(self) -> None:
        self.set()

    def set(self) -> None:
        """Take the time of the system clock."""
        self._began = time.time() - boot_clock()

    def __call__(self) -> float:
        return self._began + boot_clock()
