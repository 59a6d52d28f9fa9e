"""Chooses by simulating each engine ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving import columns as c
from kant.serving.routing import LAST, ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Site, Sites


@dataclass(frozen=True, slots=True)
class Block(Router):
    """Block (arXiv 2508.03611): simulate each candidate ahead from its state, and take the earliest predicted token.

    `candidates` engines are drawn at random, or all of them if it is 0. Every request is assumed to generate its
    predicted output. The simulation stops at the first token of this request (`metric` ttft) or at its end (e2e).
    """

    source: ClassVar[str] = "Block, arXiv 2508.03611"
    tags: ClassVar[Tags] = tagged(ROUTES, knowledge="learned", method="learned search")
    signals: ClassVar[tuple[str, ...]] = ("predicted",)
    costly: ClassVar[bool] = True

    candidates: int = 0
    metric: str = "ttft"
    horizon: int = 4000

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        chosen = list(range(len(sites)))
        if 0 < self.candidates < len(sites):
            chosen = sorted(draw.permutation(len(sites))[: self.candidates].tolist())
        return chosen[least([self.predict(request, sites[i]) for i in chosen], draw)]

    def predict(self, request: Incoming, site: Site) -> tuple[float, float]:
        """Return when the request would have its first token (or its last) on an engine, and the load of the engine at
        that time.
        """
        twin, now = site.twin(request.now)
        most = max(twin.settings.tokens + 1 - request.prompt, 1)
        output = 1 if self.metric == "ttft" else min(max(round(request.predicted), 1), most)
        r = twin.add(now, request.prompt, output, tie=LAST)
        for _ in range(self.horizon):
            if twin.requests[r, c.STATE] == c.FINISHED:
                break
            twin.run(stop_at_finish=True)
        else:
            return twin.now, float(site.tokens())
        return float(twin.times[r, c.FINISH]), float(site.tokens())
