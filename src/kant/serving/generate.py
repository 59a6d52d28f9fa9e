"""Generates requests from published statistics: Poisson or bursty arrivals, lengths of known services."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Table, Times
from kant.serving.requests import Requests

Draw = np.random.Generator
Lengths = tuple[Table, Table]


def lognormal(draw: Draw, count: int, mean: float, sigma: float, least: int, most: int) -> Table:
    """Draw whole lengths from a log-normal distribution of the given mean, clipped to a range."""
    drawn = draw.lognormal(math.log(mean) - sigma * sigma / 2, sigma, count)
    return np.clip(drawn, least, most).astype(np.int64)


def conversation_lengths(draw: Draw, count: int) -> Lengths:
    """Draw lengths like those of Azure's conversation service of 2023: 1,155 and 211 tokens on average."""
    return lognormal(draw, count, 1155, 1.1, 4, 14000), lognormal(draw, count, 211, 0.8, 1, 1000)


def sharegpt_lengths(draw: Draw, count: int) -> Lengths:
    """Draw lengths like those of ShareGPT: 230 and 430 tokens, as in Block's artifact for 7B models."""
    return lognormal(draw, count, 230, 1.2, 4, 2000), lognormal(draw, count, 430, 0.9, 4, 1024)


def uniform_lengths(prompt: tuple[int, int], output: tuple[int, int]) -> Callable[[Draw, int], Lengths]:
    """Return a generator of uniform lengths between two bounds, inclusive."""

    def draw_lengths(draw: Draw, count: int) -> Lengths:
        return (
            draw.integers(prompt[0], prompt[1], count, endpoint=True),
            draw.integers(output[0], output[1], count, endpoint=True),
        )

    return draw_lengths


KINDS: dict[str, Callable[[Draw, int], Lengths]] = {
    "conversation": conversation_lengths,
    "sharegpt": sharegpt_lengths,
    "decode-heavy": uniform_lengths((32, 4096), (2048, 4096)),
    "balanced": uniform_lengths((3000, 5000), (3000, 5000)),
    "prefill-heavy": uniform_lengths((2048, 4096), (32, 4096)),
}
"""Length distributions by name; the last three are Dist-1, Dist-2 and Dist-3 of Past-Future (arXiv 2507.10150)."""


def arrivals(draw: Draw, count: int, rate: float, burstiness: float = 1.0) -> Times:
    """Draw arrivals at `rate` a second. `burstiness` is the gaps' coefficient of variation; 1: a Poisson process."""
    if not 0 < rate <= 1e6:
        raise InputError("--rate", "a number of requests a second above 0", rate)
    if not 0 < burstiness <= 100:
        raise InputError("--burstiness", "a coefficient of variation above 0, at most 100", burstiness)
    shape = 1 / burstiness**2
    return np.cumsum(draw.gamma(shape, 1 / (shape * rate), count))


def generate(
    kind: str, count: int, rate: float, seed: int, burstiness: float = 1.0, groups: int = 0, prefix: int = 0
) -> Requests:
    """Generate `count` requests of a kind. With `groups`, each is in one group and shares its first `prefix` tokens."""
    if kind not in KINDS:
        raise InputError("kind", f"one of {', '.join(KINDS)}", kind)
    if not 1 <= count <= 100_000_000:
        raise InputError("--requests", "a number of requests from 1 on", count)
    if groups < 0 or prefix < 0:
        raise InputError("--groups and --prefix", "numbers from 0 on", min(groups, prefix))
    draw = np.random.Generator(np.random.PCG64(seed))
    when = arrivals(draw, count, rate, burstiness)
    prompt, output = KINDS[kind](draw, count)
    if not groups:
        return Requests(kind, when, prompt, output)
    prompt = prompt + prefix
    group = draw.integers(0, groups, count)
    return Requests(kind, when, prompt, output, group=group, prefix=np.full(count, prefix))
