"""Chooses the engine with the fewest tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.routing import ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites


@dataclass(frozen=True, slots=True)
class LeastTokens(Router):
    """The engine whose requests have the fewest tokens: prompts and outputs so far."""

    source: ClassVar[str] = "least outstanding tokens, as in Block, arXiv 2508.03611"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least(sites.tokens, draw)
