"""Scrapes backends: metrics, models, and health."""

from __future__ import annotations

import asyncio

import aiohttp

from kant.gateway.backend import Backend, Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.scrape import Scraped, read_metrics, read_models

LOOK_S = 5.0
"""Timeout of a scrape in seconds."""

MISSED = 3
"""Failed scrapes after which a backend is lost."""


async def look_at(backend: Backend, dispatcher: Dispatcher, session: aiohttp.ClientSession, every_s: float) -> None:
    """Scrape a backend until it is gone. After `MISSED` failed scrapes it is lost, until the next scrape succeeds."""
    missed = 0
    while not backend.gone:
        try:
            await _look(backend, dispatcher, session)
            missed = 0
            dispatcher.found(backend)
        except (aiohttp.ClientError, OSError, TimeoutError):
            missed += 1
            if missed == MISSED:
                dispatcher.lost(backend)
        await asyncio.sleep(every_s)


async def _look(backend: Backend, dispatcher: Dispatcher, session: aiohttp.ClientSession) -> None:
    timeout = aiohttp.ClientTimeout(total=LOOK_S)
    if backend.models is None:
        async with session.get(backend.url + "/v1/models", timeout=timeout) as answer:
            found = read_models(await answer.content.read(1 << 20)) if answer.status == 200 else None
            if found is not None:
                backend.models = found[0]
                dispatcher.adapters |= found[1]
    before, then = _own(backend), list(backend.rows.values())
    async with session.get(backend.url + "/metrics", timeout=timeout) as answer:
        text = (await answer.content.read(8 << 20)).decode("utf-8", "replace")
    scraped = read_metrics(text) if answer.status == 200 else None
    if scraped is None:  # an engine without metrics is alive if it responds
        async with session.get(backend.url + "/health", timeout=timeout) as answer:
            if answer.status >= 500:
                raise aiohttp.ClientError(f"its health is {answer.status}")
        return
    looked(backend, dispatcher, scraped, then, before)


def looked(
    backend: Backend, dispatcher: Dispatcher, scraped: Scraped, then: list[Placement], before: tuple[int, int]
) -> None:
    """Process a backend's metrics. When they were requested, it had the requests `then` and the load `before`."""
    dispatcher.counted(backend.scraped, scraped)
    over = [placed for placed in then if placed.unseen][: max(0, len(then) - scraped.requests)]
    for placed in over:  # the engine has fewer requests than were sent, so the oldest have ended
        dispatcher.passed(placed)
    after = _own(backend)
    if over:
        before = after
    backend.compare(scraped, max(before[0], after[0]), max(before[1], after[1]))


def _own(backend: Backend) -> tuple[int, int]:
    """Return the number and the tokens of the requests that this router has sent to a backend."""
    return len(backend.rows), backend.site.tokens() - backend.site.other_tokens
