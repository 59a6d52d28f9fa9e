"""Tracks backends: a source lists them, and each backend is scraped as long as it exists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

import aiohttp

from kant.gateway.dispatch import Dispatcher
from kant.gateway.gossip import Gossip
from kant.gateway.kv_events import follow
from kant.gateway.looks import look_at
from kant.serving.routers.prefix import PrefixAware

Addresses = Mapping[str, bool]
"""For each URL, whether the backend may get new requests. A leaving backend may not, but finishes those that it has."""


class Source(Protocol):
    """A source of addresses, such as a Kubernetes Service."""

    async def now(self) -> Addresses:
        """Return the current addresses; raises InputError if they cannot be read."""
        ...

    async def follow(self, tell: Callable[[Addresses], None]) -> None:
        """Call `tell` with all addresses whenever they change, forever."""
        ...


class Backends:
    """The backends of a dispatcher, each with its scraping task. The source may change the list of backends."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        session: aiohttp.ClientSession,
        every_s: float,
        source: Source | None,
        events_port: int | None = None,
        gossip: Gossip | None = None,
    ) -> None:
        self.dispatcher, self.session, self.every_s, self.source = dispatcher, session, every_s, source
        self.events_port, self.gossip = events_port, gossip
        self.looks: dict[int, asyncio.Task[None]] = {}
        self.events: dict[int, asyncio.Task[None]] = {}
        self.following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start scraping, following the source, exchanging loads with other routers, and the process that decides.

        Raises InputError if the source cannot be read at the start, or the address for the exchange is taken.
        """
        if self.dispatcher.aside is not None:
            await self.dispatcher.aside.open(self.dispatcher)
        if self.gossip is not None:
            await self.gossip.open()
        if self.source is not None:
            self.dispatcher.replace_backends(await self.source.now())
            self.following = asyncio.create_task(self.source.follow(self.replace_backends))
        self._look()

    def replace_backends(self, addresses: Addresses) -> None:
        """Replace the list of backends."""
        self.dispatcher.replace_backends(addresses)
        self._look()

    def _look(self) -> None:
        """Start scraping new backends, and stop for those that are gone."""
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

    async def close(self) -> None:
        """Stop all tasks, and the process that decides."""
        for task in (*self.looks.values(), *self.events.values(), *([self.following] if self.following else [])):
            task.cancel()
        if self.gossip is not None:
            self.gossip.close()
        if self.dispatcher.aside is not None:
            await self.dispatcher.aside.close()
