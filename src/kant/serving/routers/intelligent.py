"""A router trained on the simulated engines (Intelligent Router, arXiv 2408.13510).

The policy scores each engine by a few features of its requests and of the new one, with the same weights for all
engines, so the number of engines does not matter. It holds a request if holding scores higher than every engine.
`benchmarks.studies.router_training` trains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import ClassVar

import msgspec
import numpy as np

from kant.model.errors import InputError
from kant.model.taxonomy import Tags, tagged
from kant.serving.columns import Times
from kant.serving.routers.impact import impacts
from kant.serving.routing import HOLD, ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites

HEAVY = 250
"""A request with this many output tokens or more is a heavy decode: the paper's 5 s on its engine."""

FEATURES = ("requests", "heavy", "tokens", "peak", "overflow", "soonest")
"""Features of an engine: its requests; the heavy ones; the share of the KV that their tokens take now, and at their
predicted lengths; how much of the new request would not fit then; and the remaining tokens of the first request to end.
For heavy new requests a second set of weights applies."""

SCORES = 2 * len(FEATURES)
WEIGHTS = SCORES + 2
"""The number of weights. The last two are for holding heavy requests (others are not held): a constant, least peak."""


def features(request: Incoming, sites: Sites) -> Times:
    """Return a row of features for each engine, given a request. Each feature is at most about 1."""
    count, heavy, tokens, rest, soonest, room = *sites.sums(HEAVY).T, sites.room
    peak = (tokens + rest) / room
    over = np.maximum(0.0, peak + (request.prompt + request.predicted) / room - 1)
    rows = np.zeros((len(room), SCORES))
    own = (count / 64, heavy / 32, tokens / room, peak, over, np.where(count > 0, soonest, 0.0) / HEAVY)
    for k, column in enumerate(own):
        rows[:, k] = column
    if request.predicted >= HEAVY:
        rows[:, len(FEATURES) :] = rows[:, : len(FEATURES)]
    return rows


@cache
def shipped() -> tuple[float, ...]:
    """Return the weights trained by `python -m benchmarks.studies.serving_intelligent`, in the form `guided`."""
    text = (resources.files("kant.serving") / "intelligent.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[float]))


@dataclass(slots=True)
class Intelligent(Router):
    """Learned on the simulator with the workload impact as a guide (Intelligent Router); it may hold requests."""

    source: ClassVar[str] = "Intelligent Router, arXiv 2408.13510"
    tags: ClassVar[Tags] = tagged(ROUTES, knowledge="learned", method="learned")
    signals: ClassVar[tuple[str, ...]] = ("predicted",)
    holds: ClassVar[bool] = True
    overtaken: ClassVar[bool] = True

    weights: tuple[float, ...] = field(default_factory=shipped)
    watch: bool = False
    regrets: list[float] = field(default_factory=list)
    """With `watch`: for each choice, the best score of `impacts` minus the score of the choice. Holding scores 0."""

    def __post_init__(self) -> None:
        if len(self.weights) != WEIGHTS or not all(map(math.isfinite, self.weights)):
            raise InputError("the weights of the router", f"{WEIGHTS} numbers", len(self.weights))

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        heavy = request.predicted >= HEAVY
        if len(sites) == 1 and not (heavy or self.watch):
            return 0
        weights = np.array(self.weights)
        rows = features(request, sites)
        scores = rows @ weights[:SCORES]
        k = least(-scores, draw)
        if heavy:
            hold = float(weights[SCORES:] @ (1.0, float(rows[:, FEATURES.index("peak")].min())))
            k = HOLD if hold > scores[k] else k
        if self.watch:
            harms = impacts(request, sites)
            best = max(float(harms.max()), 0.0) if heavy else float(harms.max())
            self.regrets.append(best - (0.0 if k == HOLD else float(harms[k])))
        return k
