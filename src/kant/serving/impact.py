"""Workload impact: the mutual effect of a request and an engine's requests (Intelligent Router, 2408.13510).

The paper's two gradients are seconds of a step for each prompt token (`slope` of the latency) and for each token in
decode (`kv`). Its equations 1 and 2 are typeset as pictures; the prose only gives the proportionalities, and the scales
here are ours: twice the KV, and `MANY` requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags, tagged
from kant.serving.routing import ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Site, Sites

MANY = 128
"""The number of requests at which the harm is at its maximum."""


def impact(request: Incoming, site: Site, alpha: float = 0.5) -> float:
    """Return the score of sending a request to an engine, from -1 to 1; higher means less harm.

    `alpha` weights the request's own delay, a step with its prompt over all tokens that the engine's requests will
    have, against the harm to the others, each of which waits for its prompt once and for its tokens in every step.
    """
    latency = site.settings.latency
    slope, kv = latency.slope, max(latency.kv, 1e-9)
    prompt, done, predicted = site.loads()
    tokens = float(prompt.sum() + np.maximum(predicted, done + 10).sum())
    own = -min((slope * request.prompt + kv * tokens) / (slope * request.prompt + kv * 2 * site.settings.tokens), 1.0)
    harm = slope * request.prompt + kv * (request.prompt + request.predicted)
    others = 1 - 2 * min(site.requests * harm / (MANY * harm), 1.0)
    return alpha * own + (1 - alpha) * others


@dataclass(frozen=True, slots=True)
class Impact(Router):
    """The engine where a request delays others least, and is delayed least (Intelligent Router, without learning)."""

    source: ClassVar[str] = "Intelligent Router, arXiv 2408.13510"
    tags: ClassVar[Tags] = tagged(ROUTES, knowledge="learned")

    alpha: float = 0.5

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least([-impact(request, site, self.alpha) for site in sites], draw)
