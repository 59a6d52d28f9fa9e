"""Replays a router's recorded day on simulated engines: as it was, and with another setup.

Both runs have the same requests at the same times. The day is cut into slices of equally many requests. Figures are
compared slice by slice, so that variation over the hours, which both runs share, cancels out. The router sees what it
would see of real engines: the requests sent, the tokens so far, and of outputs only the mean of earlier ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kant.files import read_bytes
from kant.model.errors import InputError
from kant.serving.columns import Times
from kant.serving.engine import EngineSettings
from kant.serving.fleet import simulate
from kant.serving.policies import policy_named
from kant.serving.read import MooncakeLine, mooncake_lines, mooncake_requests
from kant.serving.requests import Requests
from kant.serving.routers import router_named
from kant.serving.split import simulate_apart
from kant.serving.summary import Objectives, Served

FIRST_GUESS, FORGETS = 256.0, 0.02
"""The predicted output in tokens before any was seen, and the weight of each new one in the mean, as in the router."""


@dataclass(frozen=True, slots=True)
class Day:
    """A record's requests; the router, policy and number of engines that served them; and measured times.

    `first` has the seconds to the first piece of each answer. `left_out` is how many requests no engine served.
    """

    requests: Requests
    first: Times
    router: str
    policy: str
    engines: int
    left_out: int
    shadow: dict[str, str | int | float] | None
    """The results of `--shadow`: its `router`; the number of `requests` for which it was asked; how often it `agrees`;
    how many requests it would have `held`; and by how many seconds first tokens would have come later (`later_s`, the
    mean of all).
    """


@dataclass(frozen=True, slots=True)
class Setup:
    """A setup for a day: a router, a number of engines, and their policy.

    `prefill` of the engines only compute prompts, and the others decode; 0: each engine does both. KV moves between
    them at `kv_gb_s` GB a second.
    """

    router: str
    engines: int
    policy: str = "fcfs"
    prefill: int = 0
    kv_gb_s: float = 25.0

    def __str__(self) -> str:
        first = "" if self.policy == "fcfs" else f", {self.policy}"
        if self.prefill:
            return f"{self.router}, {self.prefill} prefill + {self.engines - self.prefill} decode engines{first}"
        return f"{self.router}, {self.engines} engine{'s' * (self.engines != 1)}{first}"


def read_day(path: Path, served: str | None = None) -> Day:
    """Read a record of `kant serve route --record`; of several models only `served`. Raises InputError."""
    rows, places, left_out = mooncake_lines(path, read_bytes(path))
    if not rows or not all(row.time for row in rows):
        raise InputError(
            str(path), "the record of a router (`kant serve route --record`), with requests that were served"
        )
    models = Counter(row.model for row in rows)
    if served is not None and served not in models:
        raise InputError("--served", f"a model of the record: {', '.join(sorted(models))[:200]}", served)
    if served is None and len(models) > 1:
        raise InputError("--served", f"one of the record's models: {', '.join(sorted(models))[:200]}")
    kept = [i for i, row in enumerate(rows) if served is None or row.model == served]
    rows, places = [rows[i] for i in kept], [places[i] for i in kept]
    requests = mooncake_requests(path, rows, places)
    first = np.array([np.nan if row.first_s is None else row.first_s for row in rows])
    router, policy = (Counter(getattr(row, name) for row in rows).most_common(1)[0][0] for name in ("router", "policy"))
    requests = replace(requests, predicted=_predicted(rows))
    return Day(requests, first, router, policy, len({row.backend for row in rows}), left_out, _shadow(rows))


def _shadow(rows: list[MooncakeLine]) -> dict[str, str | int | float] | None:
    asked = [row for row in rows if row.shadow]
    if not asked:
        return None
    return {
        "router": Counter(row.shadow for row in asked).most_common(1)[0][0],
        "requests": len(asked),
        "agrees": sum(row.shadow_agrees for row in asked),
        "held": sum(row.shadow_backend is None for row in asked),
        "later_s": sum(row.shadow_later_s for row in asked) / len(asked),
    }


def _predicted(rows: list[MooncakeLine]) -> Times:
    """Return the router's prediction for each output: a running mean of the previous outputs."""
    found, mean = np.zeros(len(rows)), FIRST_GUESS
    for i, row in enumerate(rows):
        found[i] = mean
        mean += FORGETS * (max(row.output_length, 1) - mean)
    return found


def replay(day: Day, setup: Setup, settings: EngineSettings, seed: int) -> Served:
    """Simulate the day with a setup; raises InputError if that is not possible."""
    if not setup.prefill:
        policy, router = policy_named(setup.policy), router_named(setup.router)
        return simulate(day.requests, settings, setup.engines, policy, router, seed, observed=True)
    engines = setup.prefill, setup.engines - setup.prefill
    return simulate_apart(day.requests, settings, engines, setup.policy, setup.router, setup.kv_gb_s, seed)


Figure = Callable[[Served, Objectives], Times]
"""Returns a value for each request; NaN if the request has none."""


def _first(served: Served, _: Objectives) -> Times:
    return served.first - served.requests.arrival


def _each(served: Served, _: Objectives) -> Times:
    rest = served.requests.output - 1
    return np.where(rest > 0, (served.finish - served.first) / np.maximum(rest, 1), np.nan)


def _late(served: Served, promise: Objectives) -> Times:
    each = np.nan_to_num(_each(served, promise))
    return ((_first(served, promise) > promise.ttft_s) | (each > promise.tpot_s)).astype(np.float64)


FIGURES: dict[str, tuple[Figure, Callable[[Times], float]]] = {
    "ttft_s.mean": (_first, lambda values: float(np.nanmean(values))),
    "ttft_s.p99": (_first, lambda values: float(np.nanquantile(values, 0.99))),
    "tpot_s.p99": (_each, lambda values: float(np.nanquantile(values, 0.99))),
    "late": (_late, lambda values: float(values.mean())),
}
"""The compared figures: per request, then per slice. Less is better. `late` is the share outside the objectives."""

FLOOR = 0.001
"""A negligible difference, in seconds or as a share. It is added to both values before they are divided."""


def by_slice(served: Served, figure: str, slices: int, promise: Objectives) -> Times:
    """Return a figure for each slice of the day, in order."""
    of, value = FIGURES[figure]
    parts = np.array_split(of(served, promise), slices)
    return np.array([value(part) if np.isfinite(part).any() else 0.0 for part in parts])


def whole(served: Served, figure: str, promise: Objectives) -> float:
    """Return a figure for the whole day."""
    return float(by_slice(served, figure, 1, promise)[0])
