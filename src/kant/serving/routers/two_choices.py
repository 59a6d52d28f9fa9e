"""Chooses the shorter of two queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.routing import ROUTES, Draw, Incoming, Router
from kant.serving.site import Sites


@dataclass(frozen=True, slots=True)
class TwoChoices(Router):
    """Of two engines drawn at random the one with fewer requests (Mitzenmacher, TPDS 2001)."""

    source: ClassVar[str] = "M. Mitzenmacher, IEEE TPDS 12(10), 2001"
    tags: ClassVar[Tags] = tagged(ROUTES, method="randomised rule")

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        drawn = draw.permutation(len(sites))[:2].tolist()
        return int(min(drawn, key=lambda i: sites[i].requests))  # if equal, the first drawn
