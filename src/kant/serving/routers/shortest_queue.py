"""Chooses the engine with the shortest queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.routing import ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites


@dataclass(frozen=True, slots=True)
class ShortestQueue(Router):
    """The engine with the fewest running and waiting requests."""

    source: ClassVar[str] = "join the shortest queue"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least(sites.requests, draw)
