"""Workload impact: the mutual effect of a request and an engine's requests (Intelligent Router, 2408.13510).

The paper's two gradients are the seconds that a step takes per prompt token (`slope` of the latency) and per token in
decode (`kv`). The paper's equations 1 and 2 are images, and its prose gives only proportionalities. So the scales here
are ours: twice the KV, and `MANY` requests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.serving.columns import Times
from kant.serving.first_token import HAVE, REST
from kant.serving.routing import ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites

MANY = 128
"""The number of requests at which the harm to others is at its maximum."""


def impacts(request: Incoming, sites: Sites, alpha: float = 0.5) -> Times:
    """Return the score of sending a request to each engine, from -1 to 1; higher means less harm.

    All engines have the latency model of the first.

    `alpha` weights the request's own delay against the harm to others. The delay is the time of a step with the prompt
    and with all tokens that the engine's requests will have. The harm grows with the number of the engine's requests,
    since the new request delays all of them.
    """
    latency = sites[0].settings.latency
    slope, kv = latency.slope, max(latency.kv, 1e-9)
    sums = sites.sums(math.inf)
    tokens, mine = sums[:, HAVE] + sums[:, REST], slope * request.prompt
    own = -np.minimum((mine + kv * tokens) / (mine + kv * 2 * sites.room), 1.0)
    others = 1 - 2 * np.minimum(sites.requests / MANY, 1.0)
    return alpha * own + (1 - alpha) * others


@dataclass(frozen=True, slots=True)
class Impact(Router):
    """The engine with the highest score of `impacts` for a request (Intelligent Router, without learning)."""

    source: ClassVar[str] = "Intelligent Router, arXiv 2408.13510"
    tags: ClassVar[Tags] = tagged(ROUTES, knowledge="learned")
    signals: ClassVar[tuple[str, ...]] = ("predicted",)

    alpha: float = 0.5

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least(-impacts(request, sites, self.alpha), draw)
