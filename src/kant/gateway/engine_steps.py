"""Measures step times of a real engine from outside: prompts of given lengths, and decoding at given concurrency.

A single prompt that fits in one step takes one step until its first token; the measured time includes the network and
the engine's API. While several requests decode, each step gives each of them one token.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from kant.gateway.scrape import read_metrics
from kant.model.errors import InputError

IDS = range(100, 30_000)
"""Token ids that are text in every vocabulary. Prompts of random ids are in no prefix cache."""

OUTPUT = 24
"""The number of tokens that each request decodes while all requests of its load decode. These steps are timed."""

Row = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Load:
    """A load of `requests` concurrent requests, each with `prompt` and `output` tokens."""

    requests: int
    prompt: int
    output: int = 1


def loads(max_tokens: int, kv_tokens: int) -> list[Load]:
    """Return the loads to measure on an engine with at most `max_tokens` in a step and a KV cache of `kv_tokens`."""
    prompts = [
        n for n in (16, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192) if n <= max_tokens
    ]
    found = [Load(1, n) for n in prompts] * 2
    for requests in (1, 2, 4, 8, 16, 32, 64, 128):
        for prompt in (128, 512, 2048, 6144):
            if requests * (prompt + OUTPUT) <= kv_tokens:
                found.append(Load(requests, prompt, OUTPUT + requests))
    return found


def row_of(load: Load, times: Sequence[Sequence[float]]) -> Row | None:
    """Return the row of a load: tokens of a step, context tokens that it decodes, prompt² / 2, and ms; None if not all
    requests decoded at once for three steps. `times`: when each was sent and each token arrived, in seconds."""
    if load.output == 1:
        return float(load.prompt), 0.0, load.prompt**2 / 2, 1e3 * statistics.median(t[1] - t[0] for t in times)
    begin, end = max(each[1] for each in times), min(each[-1] for each in times)
    gaps, contexts = [], 0.0
    for each in times:
        inside = [k for k in range(1, len(each)) if begin <= each[k] <= end]
        if len(inside) < 4:
            return None
        first, last = inside[0], inside[-1]
        gaps.append(1e3 * (each[last] - each[first]) / (last - first))
        contexts += load.prompt + (first + last + 1) / 2
    return float(load.requests), contexts, 0.0, statistics.median(gaps)


async def measured(url: str, max_tokens: int, seconds: float) -> tuple[list[Row], str, int]:
    """Measure an engine for `seconds`. Returns the measured steps, the name of its model, and the size of its KV cache
    in tokens (0: not reported). Raises InputError."""
    draw, end, found = random.Random(1), time.monotonic() + seconds, []
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=60)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        try:
            async with client.get(f"{url}/v1/models") as answer:
                model = str((await answer.json())["data"][0]["id"])
            async with client.get(f"{url}/metrics") as answer:
                said = read_metrics(await answer.text())
            kv_tokens = said.blocks * said.block_size if said is not None else 0
            asked = loads(max_tokens, kv_tokens or 1 << 17)
            await _load(client, url, model, Load(1, 64, 4), draw)  # warm-up
            for load in [load for first in range(3) for load in asked[first::3]]:
                if time.monotonic() > end:
                    break
                row = row_of(load, await _load(client, url, model, load, draw))
                found += [row] if row is not None else []
        except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError) as error:
            raise InputError(
                f"--url {url}", f"an engine that answers OpenAI's API ({str(error)[:200] or type(error).__name__})"
            ) from None
    return found, model, kv_tokens


async def _load(
    client: aiohttp.ClientSession, url: str, model: str, load: Load, draw: random.Random
) -> list[list[float]]:
    """Return, for each request of a load, when it was sent and when each token arrived, in seconds."""

    async def one() -> list[float]:
        body: dict[str, Any] = {"model": model, "prompt": draw.choices(IDS, k=load.prompt), "stream": True}
        body |= {"max_tokens": load.output, "ignore_eos": True, "temperature": 1.0}
        times = [time.perf_counter()]
        async with client.post(f"{url}/v1/completions", json=body) as answer:
            if answer.status != 200:
                raise ValueError(f"{answer.status} {(await answer.text())[:200]}")
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    times.append(time.perf_counter())
        return times

    return await asyncio.gather(*(one() for _ in range(load.requests)))
