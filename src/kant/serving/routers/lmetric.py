"""Chooses by the product of tokens to prefill and requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.routing import ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites


@dataclass(frozen=True, slots=True)
class Lmetric(Router):
    """The engine with the least (tokens to prefill, with this prompt) x (requests): LMetric, arXiv 2603.15202."""

    source: ClassVar[str] = "LMetric, arXiv 2603.15202"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least((request.prompt + sites.pending) * (sites.requests + 1), draw)
