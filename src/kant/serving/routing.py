"""What a router is, what it is told of a request, and how it is asked: by the simulator, and before real engines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags
from kant.serving.site import Site

Draw = np.random.Generator

HOLD = -1
"""What a router says to have a request wait with it."""

TICK_S = 0.02
"""Seconds after which a router is asked again about who is held (arXiv 2408.13510), if a request has ended since."""

LAST = 1 << 40
"""A tie that nobody loses to."""

PROGRAMS = 1 << 16
"""Programs that a router remembers; the one it has known longest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as a router sees it."""

    now: float
    prompt: int
    predicted: float
    program: int
    blocks: Sequence[int] = ()
    """The chain of hashes of its prompt's blocks (`kant.serving.prefix_index`), for routers that ask for it."""

    block_tokens: float = 0.0
    """Tokens of the prompt in each of these."""

    adapter: bool = False
    """Whether the first of these names an adapter of the model, which is no part of the prompt."""

    def cached(self, had: int) -> int:
        """Tokens of the prompt that an engine has which has so many of its blocks; the last is always computed."""
        return max(0, min(int((had - self.adapter) * self.block_tokens), self.prompt - 1))


ROUTES: Tags = {
    "level": ("cluster",),
    "architecture": ("two-level",),
    "unit": ("request",),
    "timing": ("online",),
    "knowledge": ("none",),
    "objective": ("latency",),
    "preemption": ("none",),
    "resources": ("1-d",),
    "method": ("rule",),
    "freshness": ("live",),
}
"""What routers have in common (`kant.model.taxonomy`)."""


class Router(ABC):
    """Chooses an engine for each request: the base of all routers."""

    source: ClassVar[str]
    tags: ClassVar[Tags]
    holds: ClassVar[bool] = False
    """Whether it may say HOLD."""

    overtaken: ClassVar[bool] = False
    """Whether smaller requests go before one that it holds; if not, those behind wait too."""

    prefixes: ClassVar[bool] = False
    """Whether it asks for the blocks of prompts."""

    @abstractmethod
    def choose(self, request: Incoming, sites: Sequence[Site], draw: Draw) -> int:
        """The place among `sites` of the engine that gets the request, or HOLD to be asked again a little later."""

    def sent(self, request: Incoming, site: Site) -> int:
        """A request goes to an engine; returns how many tokens of its prompt that is thought to have computed."""
        return 0

    def forget(self, number: int) -> None:
        """An engine has lost what it had: it has restarted, or is gone."""
        del number  # most routers remember nothing of engines


@dataclass(slots=True)
class Overtaking:
    """Who may go before those that are held: with `overtaken`, requests smaller than the smallest of them."""

    router: Router
    least: float = math.inf

    def may_ask(self, size: float) -> bool:
        """Whether a later request of so many tokens, prompt and predicted output, may be asked about."""
        return size < self.least

    def held(self, size: float) -> None:
        """A request is held now."""
        self.least = min(self.least, size) if self.router.overtaken else -math.inf


def least(values: Sequence[float | tuple[float, float]], draw: Draw) -> int:
    """The place of the least value; of equal ones any, each as likely.

    Routers that see the same engines would otherwise all send to the first of those that have nothing to do.
    """
    low = min(values)
    best = [place for place, value in enumerate(values) if value == low]
    return best[int(draw.integers(len(best)))] if len(best) > 1 else best[0]


def decide(router: Router, request: Incoming, sites: Sequence[Site], draw: Draw) -> int:
    """What the router says; nobody is held where no engine has anything to do."""
    if len(sites) == 1 and not router.holds:
        return 0
    k = router.choose(request, sites, draw)
    return 0 if k == HOLD and all(site.requests == 0 for site in sites) else k
