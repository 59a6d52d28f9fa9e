"""A clock that does not jump with the system clock: else jobs would reach their limits at once, or hours too late."""

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
