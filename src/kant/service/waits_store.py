"""Stores the waits of live jobs by cause, so that the next start knows them."""

from __future__ import annotations

import asyncio
import time

import msgspec

from kant.live.waits import Split
from kant.local.driver import LocalDriver
from kant.service.store import Store, StoreFullError

KEY = "waits"
EVERY = 30.0
"""Seconds between two times that they are written: after a kill, so much is not known."""
PART = 100
"""And of the time of the process at most one part in so many."""


def read_waits(store: Store) -> dict[str, Split]:
    """By job and cause, as the last Kant wrote it; nothing where none did."""
    try:
        found: dict[str, Split] = msgspec.json.decode(store.kept(KEY) or b"{}", type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return {}
    return found


class WaitsWriter:
    """Writes them from time to time, and at the end. A disk that is full keeps what it has."""

    def __init__(self, store: Store, driver: LocalDriver) -> None:
        self.store = store
        self.driver = driver
        self._written = b""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began = time.perf_counter()
            self.write()
            await asyncio.sleep(max(EVERY, PART * (time.perf_counter() - began)))

    def write(self) -> None:
        """Keep them as they are now."""
        core = self.driver.core
        text = msgspec.json.encode(core.waits.kept(core.now))
        if text == self._written:
            return
        try:
            self.store.keep(KEY, text)
        except StoreFullError:  # the driver says so, and nothing but causes is lost
            return
        self._written = text
