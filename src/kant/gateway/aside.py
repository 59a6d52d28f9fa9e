"""Lets another process make slow routing decisions, one at a time, while this router goes on serving requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Protocol

from kant.gateway.backend import Backend, Placement
from kant.gateway.dispatch import Dispatcher
from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.serving.aside import answered, question
from kant.serving.routing import HOLD, Incoming, decide
from kant.serving.site import LoadTable, ObservedSite

log = logging.getLogger("kant.gateway")


class Decider(Protocol):
    """A process that answers questions of `kant.serving.aside`."""

    async def ask(self, question: bytes) -> bytes:
        """Return the answer. Raises InputError if the process does not answer."""
        ...

    async def close(self) -> None:
        """End the process."""
        ...


class Aside:
    """Asks a process which backend the first waiting request gets, and places the request once the answer arrives."""

    def __init__(self, process: Decider) -> None:
        self.process = process
        self.task: asyncio.Task[None] | None = None

    async def open(self, dispatcher: Dispatcher) -> None:
        """Start the process and ask it once, so that its code is compiled. Raises InputError if it does not answer."""
        loads, settings = LoadTable(2), dispatcher.settings
        idle = [ObservedSite(settings, k, loads) for k in range(2)]
        asked = question(dispatcher.router, Incoming(0.0, 1, 1.0, -1), idle, loads, dispatcher.draw, settings)
        await self.process.ask(asked)

    async def close(self) -> None:
        """End the process."""
        if self.task is not None:
            self.task.cancel()
        await self.process.close()

    def choose(self, dispatcher: Dispatcher, placed: Placement, backends: list[Backend], request: Incoming) -> int:
        """Return the index in `backends` of the backend that gets the request; HOLD until the process has answered."""
        for k, backend in enumerate(backends):
            if backend.number == placed.foreseen:
                return k
        if self.task is None:
            sites, draw = [backend.site for backend in backends], dispatcher.draw
            asked = question(dispatcher.router, request, sites, dispatcher.loads, draw, dispatcher.settings)
            self.task = asyncio.create_task(self._decide(dispatcher, placed, backends, request, asked))
        return HOLD

    async def _decide(
        self, dispatcher: Dispatcher, placed: Placement, backends: Sequence[Backend], request: Incoming, asked: bytes
    ) -> None:
        try:
            k, dispatcher.draw = answered(await self.process.ask(asked))
        except InputError as error:
            log_event(log, "decided here", logging.WARNING, error=str(error))
            k = decide(dispatcher.router, request, [backend.site for backend in backends], dispatcher.draw)
        finally:
            self.task = None
        placed.foreseen = None if k == HOLD else backends[k].number
        dispatcher.now = time.monotonic()
        dispatcher.ask_again()
