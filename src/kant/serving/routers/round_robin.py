"""Chooses the engines in turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.routing import ROUTES, Draw, Incoming, Router
from kant.serving.site import Sites


@dataclass(slots=True)
class RoundRobin(Router):
    """Round robin over the engines."""

    source: ClassVar[str] = "the usual default of load balancers"
    tags: ClassVar[Tags] = tagged(ROUTES, objective="none", resources="none")

    turn: int = field(default=-1, init=False)

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        self.turn = (self.turn + 1) % len(sites)
        return self.turn
