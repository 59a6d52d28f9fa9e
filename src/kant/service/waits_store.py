"""Stores what a Kant knows of its jobs by watching: their waits by cause, and how right expected starts were.

The next start goes on with both.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from msgspec.structs import replace

from kant.live.learned import NO_RUNS, SavedCalibration, learned_version, saved_calibration
from kant.live.waits import Split
from kant.local.driver import LocalDriver
from kant.service.store import Store, StoreFullError

KEY = "waits"
LEARNED = "learned"
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


def read_learned(store: Store) -> SavedCalibration | None:
    """What the last Kant has learned of expected starts; None where nothing can be read."""
    try:
        return msgspec.json.decode(store.kept(LEARNED) or b"", type=SavedCalibration)
    except msgspec.MsgspecError:
        return None


class WaitsWriter:
    """Writes them from time to time, and at the end. A disk that is full keeps what it has."""

    def __init__(self, store: Store, driver: LocalDriver) -> None:
        self.store = store
        self.driver = driver
        self._written = b""
        self._learned = (0, 0, 0)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began = time.perf_counter()
            self.write()
            await asyncio.sleep(max(EVERY, PART * (time.perf_counter() - began)))

    def write(self) -> None:
        """Keep them as they are now."""
        core = self.driver.core
        text, stands = msgspec.json.encode(core.waits.kept(core.now)), learned_version(core)
        try:
            if text != self._written:
                self.store.keep(KEY, text)
                self._written = text
            if stands != self._learned and any(stands[1:]):
                saved = replace(saved_calibration(core), runs=NO_RUNS)  # the store has the jobs themselves
                self.store.keep(LEARNED, msgspec.json.encode(saved))
                self._learned = stands
        except StoreFullError:  # the driver says so, and nothing but causes and corrections is lost
            return
