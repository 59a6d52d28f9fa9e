"""Stores what Kant measures about its jobs: their waits by cause, and the calibration of expected starts.

When Kant starts again, it continues with both.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
from msgspec.structs import replace

from kant.live.learned import NO_RUNS, SavedCalibration, learned_version, saved_calibration
from kant.live.waits import Split
from kant.local.driver import LocalDriver
from kant.service.store import JobStore, StoreFullError

KEY = "waits"
LEARNED = "learned"
EVERY = 30.0
"""Seconds between two writes. A crash loses at most what was measured in this time."""
PART = 100
"""Writing takes at most 1/PART of the process's time."""


def read_waits(store: JobStore) -> dict[str, Split]:
    """Read the saved waits, by job and cause; empty if there are none."""
    try:
        found: dict[str, Split] = msgspec.json.decode(store.kept(KEY) or b"{}", type=dict[str, dict[str, int]])
    except msgspec.MsgspecError:
        return {}
    return found


def read_learned(store: JobStore) -> SavedCalibration | None:
    """Read the saved start-forecast calibration; None if it cannot be read."""
    try:
        return msgspec.json.decode(store.kept(LEARNED) or b"", type=SavedCalibration)
    except msgspec.MsgspecError:
        return None


class WaitsWriter:
    """Writes waits and calibration periodically and at the end. If the disk is full, the old values stay."""

    def __init__(self, store: JobStore, driver: LocalDriver) -> None:
        self.store = store
        self.driver = driver
        self._written = b""
        self._learned = (0, 0, 0)

    async def run(self) -> None:
        """Write periodically until cancelled."""
        while True:
            began = time.perf_counter()
            self.write()
            await asyncio.sleep(max(EVERY, PART * (time.perf_counter() - began)))

    def write(self) -> None:
        """Write the current values if they have changed."""
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
        except StoreFullError:  # the driver reports it; only causes and corrections are lost
            return
