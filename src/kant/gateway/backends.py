"""Backends that come and go: a source says which there are, and each is looked at while it is here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import aiohttp

from kant.gateway.dispatch import Dispatcher
from kant.gateway.kv_events import follow
from kant.gateway.looks import look_at
from kant.serving.prefix import PrefixAware

Addresses = Mapping[str, bool]
"""By URL, whether a backend may get new requests; one that leaves may not, and ends what it has."""


class Source(Protocol):
    """Where addresses come from, such as a Service of Kubernetes."""

    async def now(self) -> Addresses:
        """The addresses there are; raises InputError where that cannot be known."""
        ...

    async def follow(self, tell: Callable[[Addresses], None]) -> None:
        """Tell of all addresses whenever they change, for ever."""
        ...


class Backends:
    """The backends of a dispatcher, each with its looks; they change where a source says so."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: aiohttp.ClientSession,
        every_s: float,
        source: Source | None,
        events_port: int | None = None,
    ) -> None:
        self.dispatcher, self.session, self.every_s, self.source = dispatcher, session, every_s, source
        self.events_port = events_port
        self.looks: dict[int, asyncio.Task[None]] = {}
        self.events: dict[int, asyncio.Task[None]] = {}
        self.following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to look, and to follow the source; raises InputError where it cannot be read at first."""
        if self.source is not None:
            self.dispatcher.have(await self.source.now())
            self.following = asyncio.create_task(self.source.follow(self.have))
        self._look()

    def have(self, addresses: Addresses) -> None:
        """These are the backends now."""
        self.dispatcher.have(addresses)
        self._look()

    def _look(self) -> None:
        """Look at those that are new, and no more at those that are gone."""
        here = {backend.number: backend for backend in self.dispatcher.backends}
        for number in self.looks.keys() - here.keys():
            self.looks.pop(number).cancel()
            if number in self.events:
                self.events.pop(number).cancel()
        for number in here.keys() - self.looks.keys():
            loop = look_at(here[number], self.dispatcher, self.session, self.every_s)
            self.looks[number] = asyncio.create_task(loop)
            if self.events_port is not None and isinstance(self.dispatcher.router, PrefixAware):
                events = follow(here[number], self.dispatcher.router.index, self.events_port)
                self.events[number] = asyncio.create_task(events)

    def close(self) -> None:
        """Look at nobody, and follow nothing."""
        for task in (*self.looks.values(), *self.events.values(), *([self.following] if self.following else [])):
            task.cancel()
