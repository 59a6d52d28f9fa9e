"""A service: replicas of an engine behind a router, its workload, and its objectives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kant.model.errors import InputError
from kant.serving.columns import Table, Times
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.generate import KINDS, Draw, Lengths, arrivals
from kant.serving.policies import policy_named
from kant.serving.read import read_requests
from kant.serving.requests import Requests
from kant.serving.routers import router_named
from kant.serving.summary import Objectives, Served

MINUTE_S = 60.0
BLOCK = 1024
"""The number of requests that are drawn together from one random stream."""

IN_TIME = 99
"""The percentage of a minute's requests that must be in time, since the objectives are P99."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The distribution of requests: their lengths, and their burstiness (1: a Poisson process).

    Prompts share nothing, so the prefix cache finds nothing.
    """

    name: str
    lengths: Callable[[Draw, int], Lengths]
    burstiness: float = 1.0

    def requests(self, count: int, rate: float, seed: int) -> Requests:
        """Draw `count` requests at `rate` a second. A higher `count` begins with the same requests. Another rate only
        scales the times.
        """
        parts: list[Lengths] = []
        gaps: list[Times] = []
        for block in range(-(-count // BLOCK)):
            draw = np.random.Generator(np.random.PCG64([seed, block]))
            gaps.append(np.diff(arrivals(draw, BLOCK, 1.0, self.burstiness), prepend=0.0))
            parts.append(self.lengths(draw, BLOCK))
        prompt, output = (np.concatenate(column)[:count] for column in zip(*parts, strict=True))
        return Requests(self.name, np.cumsum(np.concatenate(gaps)[:count]) / rate, prompt, output)

    def during(self, seconds: float, rate: float, seed: int) -> Requests:
        """Draw the requests of the first `seconds` at `rate` a second, at least one."""
        count = math.ceil(rate * seconds)
        while True:
            found = self.requests(count, rate, seed)
            if found.arrival[-1] >= seconds:
                return found.first(max(int(np.searchsorted(found.arrival, seconds)), 1))
            count += BLOCK


def mix_named(name: str, burstiness: float = 1.0, seed: int = 0) -> Mix:
    """Return the mix of a kind of `kant serve generate`, or of the lengths in a file, drawn with replacement.

    Raises InputError if `name` is neither.
    """
    arrivals(np.random.Generator(np.random.PCG64(0)), 1, 1.0, burstiness)  # refuses a burstiness out of range
    if name in KINDS:
        return Mix(name, KINDS[name], burstiness)
    if not Path(name).exists():
        raise InputError("mix", f"one of {', '.join(KINDS)}, or a file of requests", name)
    known = read_requests(Path(name), seed=seed)

    def lengths(draw: Draw, count: int) -> Lengths:
        rows = draw.integers(0, len(known), count)
        return known.prompt[rows], known.output[rows]

    return Mix(known.name, lengths, burstiness)


@dataclass(frozen=True, slots=True)
class Service:
    """The settings of each replica, its router and policy, its workload, and its objectives (P99 of each minute)."""

    settings: EngineSettings
    mix: Mix
    objectives: Objectives
    router: str = "least-tokens"
    policy: str = "fcfs"

    def __post_init__(self) -> None:
        for name, value in (("ttft", self.objectives.ttft_s), ("tpot", self.objectives.tpot_s)):
            if not 0 < value < np.inf:
                raise InputError(name, "a number of seconds above 0", value)
        router_named(self.router)
        policy_named(self.policy)
        object.__setattr__(self, "settings", replace(self.settings, prefix_cache=False))

    def serve(self, requests: Requests, replicas: int, seed: int = 0) -> Served:
        """Simulate requests with a constant number of replicas."""
        router, policy = router_named(self.router), policy_named(self.policy)
        return simulate(requests, self.settings, replicas, policy, router, seed)


def late(served: Served, objectives: Objectives) -> tuple[np.ndarray, np.ndarray]:
    """Return which requests miss the objective for the first token, and which miss the one for later tokens.

    A request that never finishes misses both.
    """
    requests = served.requests
    first = served.first - requests.arrival
    each = (served.finish - served.first) / np.maximum(requests.output - 1, 1)
    return ~(first <= objectives.ttft_s), ~(each <= objectives.tpot_s)


def kept_minutes(arrival: Times, late_first: np.ndarray, late_each: np.ndarray, minutes: range) -> np.ndarray:
    """Return in which minutes the objectives are met: at most one in a hundred of the minute's requests misses each of
    them. A minute without requests meets them."""
    minute = (arrival // MINUTE_S).astype(np.int64)
    inside = (minute >= minutes.start) & (minute < minutes.stop)
    where = minute[inside] - minutes.start

    def count(rows: np.ndarray) -> Table:
        return np.bincount(where, rows[inside], minlength=len(minutes)).astype(np.int64)

    allowed = (100 - IN_TIME) * count(np.ones(len(arrival)))
    kept: np.ndarray = (100 * count(late_first) <= allowed) & (100 * count(late_each) <= allowed)
    return kept
