"""A Lease that is renewed in a thread of its own, with its own event loop and client.

Building the state of a large cluster, or scheduling on it, may block the loop of the driver for seconds. Without the
thread, a leader could not renew in that time, and would lose its Lease after each build of its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import Config
from kant.kube.lead.lease import Lease

Make = Callable[[ApiClient, Callable[[str], None], Callable[[Exception], None]], Lease]
"""Creates a lease from a client, a callback for when it is acquired, and a callback for errors."""


class LeaseThread:
    """Use as `async with LeaseThread(config, make, on_trouble, keep) as candidate: token = await candidate.elected()`.

    At the end the Lease is given up, unless `keep()` returns true: then it expires later.
    """

    def __init__(
        self, config: Config, make: Make, on_trouble: Callable[[Exception], None], keep: Callable[[], bool]
    ) -> None:
        self._config = config
        self._make = make
        self._on_trouble = on_trouble
        self._keep = keep
        self._lease: Lease | None = None

    async def __aenter__(self) -> LeaseThread:
        self._loop = asyncio.get_running_loop()
        self._token: asyncio.Future[str] = self._loop.create_future()
        self._started = asyncio.Event()
        self._thread = asyncio.ensure_future(asyncio.to_thread(asyncio.run, self._run()))
        await self._until(self._started.wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give up the Lease, unless `keep()`. First end every request that only a leader may send."""
        with suppress(RuntimeError):  # the loop of the thread has already ended
            self._own.call_soon_threadsafe(self._stop.set)
        await self._thread

    async def elected(self) -> str:
        """Wait until this process leads; return the token of the term. Raises the exception that ended the thread."""
        await self._until(asyncio.shield(self._token))
        return self._token.result()

    async def _until(self, done: Awaitable[object]) -> None:
        """Wait for `done`. Raises the exception of the thread if that ends first."""
        waiting = asyncio.ensure_future(done)
        await asyncio.wait({waiting, self._thread}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._thread.done():
            self._thread.result()

    def holds(self) -> bool:
        """Whether this process still leads, in the term for which it was elected."""
        lease = self._lease
        return lease is not None and lease.holds() and self._token.done() and lease.token == self._token.result()

    # --- in the thread --------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._own, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with ApiClient(self._config, concurrency=4) as client:
            self._lease = lease = self._make(
                client, lambda token: self._tell(self._elect, token), lambda error: self._tell(self._on_trouble, error)
            )
            self._tell(self._started.set)
            task = asyncio.create_task(lease.run())
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            if not self._keep():
                await lease.release()

    def _tell(self, what: Callable[..., object], *words: object) -> None:
        with suppress(RuntimeError):  # the loop of the driver is closed
            self._loop.call_soon_threadsafe(what, *words)

    def _elect(self, token: str) -> None:
        """Record, in the loop of the driver, that this process leads."""
        if not self._token.done():
            self._token.set_result(token)
