"""A Lease in a thread of its own, with its own event loop and client.

To build the state of a large cluster, or to schedule on it, may block the loop of the driver for seconds. A leader that
could not renew meanwhile would lose its Lease after each build of its state.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import Config
from kant.kube.lead.lease import Lease

Make = Callable[[ApiClient, Callable[[str], None], Callable[[Exception], None]], Lease]
"""Makes a lease from a client, a callback for when it is acquired, and a callback for errors."""


class LeaseThread:
    """Use as `async with LeaseThread(config, make, on_trouble) as candidate: token = await candidate.elected()`.

    `keep`: the Lease is not given up at the end.
    """

    def __init__(
        self, config: Config, make: Make, on_trouble: Callable[[Exception], None], *, keep: bool = False
    ) -> None:
        self._config = config
        self._make = make
        self._on_trouble = on_trouble
        self._keep = keep
        self._thread = threading.Thread(target=self._stand, name="lease", daemon=True)
        self._lease: Lease | None = None

    async def __aenter__(self) -> LeaseThread:
        self._loop = asyncio.get_running_loop()
        self._token: asyncio.Future[str] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._thread.start()
        await self._started
        return self

    async def __aexit__(self, *_: object) -> None:
        """Give up the Lease, unless it is kept. First end every request that only a leader may send."""
        with suppress(RuntimeError):  # its loop has already ended
            self._own.call_soon_threadsafe(self._stop.set)
        await self._over

    async def elected(self) -> str:
        """Wait until this process leads; return the token of the term. Raises the exception of the thread."""
        either: set[asyncio.Future[Any]] = {self._token, self._over}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            self._over.result()
        return self._token.result()

    def holds(self) -> bool:
        """Whether this process still leads in the term in which it was elected."""
        lease = self._lease
        return lease is not None and lease.holds() and self._token.done() and lease.token == self._token.result()

    # --- in the thread --------------------------------------------------------------------------------------------

    def _stand(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:
            self._tell(self._settle, error)
        else:
            self._tell(self._settle, None)

    async def _run(self) -> None:
        self._own, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with ApiClient(self._config, concurrency=4) as client:
            self._lease = lease = self._make(
                client, lambda token: self._tell(self._elect, token), lambda error: self._tell(self._on_trouble, error)
            )
            self._tell(self._started.set_result, None)
            task = asyncio.create_task(lease.run())
            stop = asyncio.create_task(self._stop.wait())
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            if not self._keep:
                await lease.release()

    def _tell(self, what: Callable[..., object], *words: object) -> None:
        with suppress(RuntimeError):  # the loop of the driver is closed
            self._loop.call_soon_threadsafe(what, *words)

    # --- in the loop of the driver --------------------------------------------------------------------------------

    def _elect(self, token: str) -> None:
        if not self._token.done():
            self._token.set_result(token)

    def _settle(self, error: BaseException | None) -> None:
        for future in (self._started, self._over):
            if not future.done() and error is not None:
                future.set_exception(error)
            elif not future.done():
                future.set_result(None)
