"""Chooses the lower of two load scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.choice import ALPHA, anti_affinity, second_is_lighter
from kant.model.taxonomy import Tags, tagged
from kant.serving.routing import ROUTES, Draw, Incoming, Router
from kant.serving.site import Site, Sites


@dataclass(frozen=True, slots=True)
class Dodoor(Router):
    """Of two random engines, the one with the lower score of Dodoor (arXiv 2510.12889), by the known loads.

    The resources are the tokens of the KV and the seats; tokens still to prefill stand for durations. With several
    routers, the known loads are a router's own, and the last ones that the others sent (`kant.gateway.gossip`).
    """

    source: ClassVar[str] = "Dodoor, arXiv 2510.12889"
    tags: ClassVar[Tags] = tagged(
        ROUTES, architecture="decentralised", resources="multi-d", method="randomised rule", freshness="cached"
    )

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        drawn = draw.permutation(len(sites))[:2].tolist()
        first, second = sites[drawn[0]], sites[drawn[-1]]
        loads = self.load(request, first), self.load(request, second)
        return int(drawn[second_is_lighter(loads, (first.pending_prefill(), second.pending_prefill()), ALPHA)])

    def load(self, request: Incoming, site: Site) -> float:
        """Return the sum of load scores over both resources."""
        kv = anti_affinity(request.prompt, site.tokens(), site.settings.tokens)
        return kv + anti_affinity(1, site.requests, site.settings.max_num_seqs)
