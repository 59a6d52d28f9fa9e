"""Chooses an engine at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.routing import ROUTES, Draw, Incoming, Router
from kant.serving.site import Sites


@dataclass(frozen=True, slots=True)
class RandomEngine(Router):
    """A random engine, each with the same probability."""

    source: ClassVar[str] = "a baseline"
    tags: ClassVar[Tags] = tagged(ROUTES, objective="none", resources="none", method="randomised")

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return int(draw.integers(len(sites)))
