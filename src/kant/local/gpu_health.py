"""Monitors GPUs through NVML: GPUs that are unfit for new work are taken out of service once no job holds them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kant.cluster import columns as c
from kant.live.core import Core
from kant.live.logs import log_event
from kant.local.machine import Device
from kant.local.nvml import SUCCESS, Use, ailments, uses
from kant.model.event import DevicesChanged
from kant.model.units import GPU

log = logging.getLogger("kant.local")
EVERY = 10.0  # seconds between two checks


class GpuHealth:
    """Monitors GPUs: `ailing` has the unhealthy GPUs by index, with the reason. No running job is stopped for this.

    The event loop calls `changed` when `ailing` changes, and `used` after each check with the GPUs' use.
    """

    def __init__(self, library: Any, devices: Sequence[Device], every: float = EVERY) -> None:
        self.library = library
        self.devices = devices
        self.every = every
        self.ailing: dict[int, str] = {}
        self.changed: Callable[[], None] = lambda: None
        self.used: Callable[[Mapping[int, Use]], None] = lambda gpus: None

    async def watch(self) -> None:
        """Check periodically, in a thread: a call for a lost GPU may block."""
        if self.library.nvmlInit_v2() != SUCCESS:
            return
        try:
            count = len({device.gpu for device in self.devices})
            gpus: dict[int, Use] = {}
            while True:
                found = await asyncio.to_thread(ailments, self.library, count, self.ailing)
                gpus = await asyncio.to_thread(uses, self.library, count, gpus)
                self.used(gpus)
                if found != self.ailing:
                    self._tell(found)
                    self.ailing = found
                    self.changed()
                await asyncio.sleep(self.every)
        finally:
            self.library.nvmlShutdown()

    def _tell(self, found: dict[int, str]) -> None:
        for gpu in sorted(found.keys() | self.ailing.keys()):
            why, before = found.get(gpu, ""), self.ailing.get(gpu, "")
            if why != before:
                level = logging.WARNING if why else logging.INFO
                log_event(log, "GPU out of service" if why else "GPU in service again", level, index=gpu, error=why)

    @property
    def complaint(self) -> str:
        """Return which GPUs accept no new job, and why; "" if all accept jobs."""
        return "; ".join(f"GPU {gpu} accepts no new jobs: {why}" for gpu, why in sorted(self.ailing.items()))

    def settle(self, core: Core) -> None:
        """Take devices of unhealthy GPUs out of service once no job holds them; put healthy GPUs back into service."""
        state = core.state
        before, free = state.health.lost.get(0, 0), state.table[0, c.DEVICES : c.DEVICES + len(self.devices)].tolist()
        lost = sum(
            1 << place
            for place, device in enumerate(self.devices)
            if device.gpu in self.ailing and (free[place] == GPU or before >> place & 1)
        )
        if lost != before:
            core.happen(DevicesChanged(core.now, state.nodes[0].name, lost))
