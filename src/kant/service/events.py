"""Live updates: changes of jobs, kept for a while, so that each follower reads at its own pace."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from kant.local.record import JobRecord
from kant.service.store import shown

KEPT = 20_000
CALM = 0.05  # seconds between two batches


class Events:
    """A ring of changes, each encoded once however many follow. A follower that falls behind is told to start again."""

    def __init__(self) -> None:
        self.ring: deque[bytes] = deque(maxlen=KEPT)
        self.end = 0
        self._news = asyncio.Event()

    def changed(self, record: JobRecord) -> None:
        """A job has changed."""
        self.end += 1
        self.ring.append(b"id: %d\nevent: job\ndata: %b\n\n" % (self.end, msgspec.json.encode(shown(record))))
        self._news.set()

    def since(self, seen: int) -> bytes:
        """What has come after the change number `seen`."""
        missing = self.end - seen
        if missing == 0:
            return b""
        if missing < 0 or missing > len(self.ring):
            return b"id: %d\nevent: reset\ndata: {}\n\n" % self.end
        return b"".join(list(self.ring)[-missing:])

    async def more(self, seen: int, patience: float) -> None:
        """Wait until there is something after the change number `seen`, or for `patience` seconds."""
        if self.end == seen:
            self._news.clear()
            try:
                async with asyncio.timeout(patience):
                    await self._news.wait()
            except TimeoutError:
                return
        await asyncio.sleep(CALM)
