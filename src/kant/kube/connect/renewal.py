"""Renewal of credentials. If the first attempt fails, a person must act; later failures may be transient."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable

from kant.kube.connect.config import Config, present
from kant.kube.connect.errors import ApiError
from kant.model.errors import InputError

AGAIN = 1.0  # seconds between two attempts after a failed renewal


class Renewal:
    """Renews the credentials of a client. If that fails, calls `on_trouble` and keeps the previous credentials."""

    def __init__(self, config: Config, on_trouble: Callable[[ApiError], None]) -> None:
        self.config = config
        self.on_trouble = on_trouble
        self._lock = asyncio.Lock()
        self._shown: tuple[str, str] | None = None  # the client certificate that came with the credentials
        self._trouble: ApiError | None = None
        self._not_before = 0.0
        self._began = False  # whether there have ever been credentials

    async def header(self, context: ssl.SSLContext | None) -> str | None:
        """Return the value of `Authorization`; new connections with `context` use the client certificate. Raises
        InputError if there were never any credentials, and ApiError if the server rejected the last ones.
        """
        credentials = self.config.credentials
        if not credentials.fresh():
            async with self._lock:  # one renewal for all waiting requests
                if not credentials.fresh():
                    await self._renew()
        self._present(context)
        self._began = True
        return credentials.header

    async def _renew(self) -> None:
        credentials = self.config.credentials
        if time.monotonic() >= self._not_before:
            try:
                await credentials.renew()
                self._trouble = None
            except InputError as error:
                self._fails(error)
        if self._trouble is not None and credentials.refused:
            raise ApiError(0, "Credentials", self._trouble.message)

    def _present(self, context: ssl.SSLContext | None) -> None:
        pair = self.config.credentials.pair
        if pair is self._shown or pair is None or context is None:
            return
        try:
            present(context, *pair, self.config.source)
        except InputError as error:
            self._fails(error)
        self._shown = pair

    def _fails(self, error: InputError) -> None:
        if not self._began:
            raise error
        self._trouble = ApiError(0, "Credentials", f"{self.config.source}: the credentials cannot be renewed: {error}")
        self._not_before = time.monotonic() + AGAIN
        self.on_trouble(self._trouble)
