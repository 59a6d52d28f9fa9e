"""Live updates: recent job changes, buffered so that each follower reads at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from kant.local.record import JobRecord
from kant.service.store import shown

KEPT = 20_000
PAUSE = 0.05  # seconds between two batches


class Events:
    """A ring buffer of changes, each encoded once for all followers. A follower that falls behind gets a `reset`."""

    def __init__(self) -> None:
        self.ring: deque[bytes] = deque(maxlen=KEPT)
        self.end = 0
        self._news = asyncio.Event()

    def changed(self, record: JobRecord) -> None:
        """Add the change of a job."""
        self.end += 1
        self.ring.append(b"id: %d\nevent: job\ndata: %b\n\n" % (self.end, msgspec.json.encode(shown(record))))
        self._news.set()

    def since(self, seen: int) -> bytes:
        """Return the changes after change number `seen`."""
        missing = self.end - seen
        if missing == 0:
            return b""
        if missing < 0 or missing > len(self.ring):
            return b"id: %d\nevent: reset\ndata: {}\n\n" % self.end
        return b"".join(list(self.ring)[-missing:])

    async def more(self, seen: int, patience: float) -> None:
        """Wait for a change after change number `seen`, for at most `patience` seconds."""
        if self.end == seen:
            self._news.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._news.wait()
            except TimeoutError:
                return
        await asyncio.sleep(PAUSE)
