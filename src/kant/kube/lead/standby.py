"""Standing by: where the leader has said nothing for a while, whoever waits makes a state ready before it leads.

To read a large cluster and to build its state takes seconds, in which nobody would decide. A leader that is well renews
its Lease several times in that while, so a replica that stands by follows nothing as long as there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from kant.kube.lead.driver import KubeDriver

LOOK = 0.25
"""Seconds between two looks whether the leader is silent."""


class Ready:
    """A driver that follows already. It begins to lead when `led` is set."""

    def __init__(self, driver: KubeDriver) -> None:
        self.driver = driver
        self.led = asyncio.Event()
        self.running = asyncio.create_task(driver.run(self.led))

    async def drop(self) -> None:
        """End it, whatever it has met: another one reads all of it anew."""
        self.running.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await self.running


class Standby:
    """Use as `async with Standby(make, silent, patience) as standby: await standby.until(elected)`.

    `silent` says for how many seconds the leader has been; after `patience` of them `make` makes a driver. Where the
    leader is heard again it is dropped.
    """

    def __init__(self, make: Callable[[], KubeDriver], silent: Callable[[], float], patience: float) -> None:
        self._make = make
        self._silent = silent
        self._patience = patience
        self._ready: Ready | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._drop()

    async def until(self, elected: Awaitable[str]) -> str:
        """Wait for an election, and return what it does."""
        election = asyncio.ensure_future(elected)
        try:
            while not election.done():
                is_silent = self._silent() >= self._patience
                if is_silent and self._ready is None:
                    self._ready = Ready(self._make())
                elif not is_silent:
                    await self._drop()
                await asyncio.wait({election}, timeout=LOOK)
            return election.result()
        finally:
            election.cancel()

    async def take(self) -> Ready:
        """The driver that is ready, or gets ready; a fresh one where there is none."""
        found, self._ready = self._ready, None
        if found is not None and found.running.done():
            await found.drop()
            found = None
        if found is None:
            found = Ready(self._make())
        return found

    async def _drop(self) -> None:
        found, self._ready = self._ready, None
        if found is not None:
            await found.drop()
