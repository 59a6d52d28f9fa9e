"""The clock of Kant on a machine: it does not jump when the machine's clock is set."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from kant.local.processes import boot_id, since_boot


class Offset(Struct, frozen=True):
    """The stored difference in microseconds between Unix time and the time since the boot with the id `boot`."""

    boot: str
    micros: int


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Microseconds since the Unix epoch: the time since boot plus an offset, which is fixed once per boot.

    So the clock continues after a restart of Kant. After a boot, it is never behind the last stored time.
    """

    offset: Offset
    counter: Callable[[], int] = since_boot

    def micros(self) -> int:
        return self.counter() + self.offset.micros

    def __call__(self) -> float:
        return self.micros() / 1e6


def steady_clock(kept: Offset | None, latest: int = 0, boot: str = "") -> SteadyClock:
    """Return a clock with the `kept` offset; after another boot, a clock that is later than `latest` (microseconds)."""
    boot = boot or boot_id()
    if kept is not None and kept.boot == boot:
        return SteadyClock(kept)
    return SteadyClock(Offset(boot, max(time.time_ns() // 1000, latest + 1) - since_boot()))
