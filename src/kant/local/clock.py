"""The clock of a machine's Kant: it never jumps, whatever is done to the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

from kant.local.processes import boot_id, since_boot


class Offset(Struct, frozen=True):
    """What is added to the time since `boot` (microseconds) to get that since the Unix epoch. It is kept."""

    boot: str
    micros: int


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Microseconds since the Unix epoch, by the time since the boot and an offset that is taken once for each boot.

    So a restart of Kant goes on where it stopped, and a boot begins no earlier than the last time that was kept.
    """

    offset: Offset
    counter: Callable[[], int] = since_boot

    def micros(self) -> int:
        return self.counter() + self.offset.micros

    def __call__(self) -> float:
        return self.micros() / 1e6


def steady_clock(kept: Offset | None, latest: int = 0, boot: str = "") -> SteadyClock:
    """The clock that goes on from a `kept` offset; in another boot, one not before `latest` (microseconds)."""
    boot = boot or boot_id()
    if kept is not None and kept.boot == boot:
        return SteadyClock(kept)
    return SteadyClock(Offset(boot, max(time.time_ns() // 1000, latest + 1) - since_boot()))
