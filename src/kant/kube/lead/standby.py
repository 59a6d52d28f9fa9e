"""Standby: a replica that waits for the Lease follows the cluster and keeps a state, so that it can lead at once.

Reading a large cluster and building its state takes seconds, in which nothing would be scheduled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from kant.kube.lead.driver import KubeDriver

AGAIN = 1.0  # seconds between checks that the driver still runs


class Ready:
    """A driver that already follows the cluster. It begins to lead when `led` is set."""

    def __init__(self, driver: KubeDriver) -> None:
        self.driver = driver
        self.led = asyncio.Event()
        self.running = asyncio.create_task(driver.run(self.led))

    async def drop(self) -> None:
        """End the driver and ignore its errors: the next driver reads everything again."""
        self.running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self.running


class Standby:
    """Use as `async with Standby(make) as standby: await standby.until(elected)`. `make` creates a driver."""

    def __init__(self, make: Callable[[], KubeDriver]) -> None:
        self._make = make
        self._ready: Ready | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ready is not None:
            await self._ready.drop()

    async def until(self, elected: Awaitable[str]) -> str:
        """Wait for `elected` while keeping a driver ready; return the result of `elected`."""
        election = asyncio.ensure_future(elected)
        try:
            while not election.done():
                self._ready = await self.take()
                await asyncio.wait({election}, timeout=AGAIN)
            return election.result()
        finally:
            election.cancel()

    async def take(self) -> Ready:
        """Return the ready driver, or a new one if there is none or the last one has ended."""
        found, self._ready = self._ready, None
        if found is not None and found.running.done():
            await found.drop()
            found = None
        return found or Ready(self._make())
