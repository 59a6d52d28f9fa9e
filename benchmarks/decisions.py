"""What a decision of the router costs: CPU-µs from a request's coming to its place, with 64 engines and 10,000 held.

Every engine is full and 10,000 requests of 100 tenants wait. One ends, whoever's turn it is gets its place, and another
comes and waits. Prompts are texts of 1,000 tokens, of which half are shared; the body is read already. Beside it the
decision alone where engines have room.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import msgspec

from benchmarks.measure import Figure
from benchmarks.prefix import SETTINGS
from kant.gateway.aside import Aside
from kant.gateway.ask import Ask, read_ask
from kant.gateway.backend import Limits, Placement
from kant.gateway.dispatch import Dispatcher
from kant.gateway.server import collect_rarely
from kant.service.router_process import RouterProcess
from kant.serving.policies import policy_named
from kant.serving.routers import router_named

ENGINES, HELD, TENANTS, TURNS = 64, 10_000, 100, 3000


def asks(count: int) -> list[Ask]:
    """Bodies that are read: each begins as one of 50 do, and goes on by itself."""
    texts = [f"document {k % 50} " * 140 + f"question {k} " * 140 for k in range(count)]
    bodies = [msgspec.json.encode({"prompt": text, "max_tokens": 100}) for text in texts]
    return [read_ask("/v1/completions", body) for body in bodies]


def dispatcher(router: str, in_flight: int) -> Dispatcher:
    urls = [f"http://10.0.0.{k}:8000" for k in range(ENGINES)]
    limits = Limits(in_flight=in_flight, held=HELD + 100, first_token_s=30.0)
    return Dispatcher(urls, SETTINGS, policy_named("fcfs"), router_named(router), limits)


def came(chosen: Dispatcher, ask: Ask, k: int) -> Placement:
    placed = chosen.come(ask, 100.0, f"tenant-{k % TENANTS}", k % 3)
    chosen.offer(placed)
    return placed


async def full(router: str) -> float:
    """CPU-µs of an end, the turn that follows, and a request that comes, where all is full."""
    chosen = dispatcher(router, 16)
    known = asks(500)
    flying = [came(chosen, known[k % 500], k) for k in range(ENGINES * 16 + HELD)]
    running = [placed for placed in flying if placed.backend is not None]
    assert chosen.waiting >= HELD and len(running) <= ENGINES * 16
    began = time.process_time()
    for k in range(TURNS):
        chosen.end(running[k % len(running)] if k < len(running) else flying[0], 100)
        flying.append(came(chosen, known[k % 500], k))
        if k + 1 == len(running):
            running += [p for p in flying if p.backend is not None and not p.over]
    return 1e6 * (time.process_time() - began) / TURNS


async def free(router: str, turns: int = TURNS) -> float:
    """CPU-µs of a request that comes, is placed and ends, where engines have room."""
    chosen = dispatcher(router, 1 << 20)
    known = asks(500)
    for k in range(ENGINES * 8):
        came(chosen, known[k % 500], k)
    began = time.process_time()
    for k in range(turns):
        chosen.end(came(chosen, known[k % 500], k), 100)
    return 1e6 * (time.process_time() - began) / turns


async def aside(turns: int = 200) -> float:
    """CPU-µs of this process where another one decides."""
    chosen = dispatcher("block", 1 << 20)
    chosen.aside = Aside(RouterProcess())
    await chosen.aside.open(chosen)
    known = asks(500)
    began = 0.0
    for k in range(ENGINES * 8 + turns):
        if k == ENGINES * 8:
            began = time.process_time()
        placed = came(chosen, known[k % 500], k)
        assert placed.placed is not None
        await placed.placed
        if began:
            chosen.end(placed, 100)
    spent = time.process_time() - began
    await chosen.aside.close()
    return 1e6 * spent / turns


def measure() -> Iterator[Figure]:
    """All figures, with the collections of a router."""
    before = gc.get_threshold()
    collect_rarely()
    try:
        yield from decisions()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def decisions() -> Iterator[Figure]:
    for name, decide in (("held", full), ("free", free)):
        ours, plain = (min(asyncio.run(decide(router)) for _ in range(2)) for router in ("prefix", "least-tokens"))
        yield Figure(f"decision-{name}", ours, "µs", plain / ours, "least-tokens", "a look at each engine")
        for router in ("impact", "intelligent"):
            costly = min(asyncio.run(decide(router)) for _ in range(2))
            yield Figure(
                f"decision-{name}-{router}", costly, "µs", plain / costly, "least-tokens", "every request read"
            )
    here = min(asyncio.run(free("block", 200)) for _ in range(2))
    forward = min(asyncio.run(aside()) for _ in range(2))
    yield Figure("decision-free-block", forward, "µs", here / forward, "deciding in the event loop", "a pipe")


if __name__ == "__main__":
    for figure in measure():
        print(figure)
