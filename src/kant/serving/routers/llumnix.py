"""Chooses the engine with the most free KV for each running request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.routing import ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites


@dataclass(frozen=True, slots=True)
class Llumnix(Router):
    """The engine with the most free KV for each running request (Sun et al., OSDI'24), without migration."""

    source: ClassVar[str] = "Llumnix, Sun et al., OSDI 2024"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least([-site.freeness() for site in sites], draw)
