"""The router interface and its inputs, shared by the simulator and the router of real engines."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags
from kant.serving.columns import Table, Times
from kant.serving.site import Site, Sites

Draw = np.random.Generator

HOLD = -1
"""What a router returns if it holds a request."""

TICK_S = 0.02
"""Seconds after which a router is asked again about held requests (arXiv 2408.13510), if a request has ended since."""

LAST = 1 << 40
"""A value for breaking ties that loses to all others."""

PROGRAMS = 1 << 16
"""The number of programs that a router remembers; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as a router sees it."""

    now: float
    prompt: int
    predicted: float
    program: int
    blocks: Sequence[int] = ()
    """The hash chain of the prompt's blocks (`kant.serving.prefix_index`), for routers that use prefixes."""

    block_tokens: float = 0.0
    """The prompt tokens of each block."""

    adapter: bool = False
    """Whether the first block stands for a LoRA adapter of the model, which is not part of the prompt."""

    def cached(self, had: int) -> int:
        """Return the cached prompt tokens of an engine with `had` of `blocks`; the last token is always computed."""
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
"""The common tags of routers (`kant.model.taxonomy`)."""


class Router(ABC):
    """Chooses an engine for each request: the base of all routers."""

    source: ClassVar[str]
    tags: ClassVar[Tags]
    holds: ClassVar[bool] = False
    """Whether the router may return HOLD."""

    overtaken: ClassVar[bool] = False
    """Whether smaller requests may overtake a held one. Otherwise all requests behind a held one wait."""

    signals: ClassVar[tuple[str, ...]] = ()
    """What the router uses of a request besides its prompt: predicted, program or prefix."""

    prefixes: ClassVar[bool] = False
    """Whether the router uses the blocks of prompts."""

    costly: ClassVar[bool] = False
    """Whether a decision takes milliseconds, so that with real engines another process makes it."""

    @abstractmethod
    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        """Return the index in `sites` of the engine for the request, or HOLD to be asked again later."""

    def sent(self, request: Incoming, site: Site) -> int:
        """Record that a request is sent to an engine; return how many of its prompt tokens are assumed cached there."""
        return 0

    def forget(self, number: int) -> None:
        """Forget the state of an engine that has restarted or is gone."""
        del number  # most routers keep no state about engines


@dataclass(slots=True)
class Overtaking:
    """Decides which requests may overtake held ones: those smaller than all of them if `overtaken`, else none."""

    router: Router
    least: float = math.inf

    def may_ask(self, size: float) -> bool:
        """Whether a later request of this size may be routed. The size is prompt plus predicted output, in tokens."""
        return size < self.least

    def held(self, size: float) -> None:
        """Record a held request."""
        self.least = min(self.least, size) if self.router.overtaken else -math.inf


def least(values: Sequence[float | tuple[float, float]] | Table | Times, draw: Draw) -> int:
    """Return the index of the least value; of equal values, a random one.

    If the choice were fixed, all routers that see the same engines would choose the same idle one.
    """
    if isinstance(values, np.ndarray):
        first = int(values.argmin())
        equal = (values == values[first]).nonzero()[0]
        return first if len(equal) == 1 else int(equal[int(draw.integers(len(equal)))])
    low = min(values)
    best = [place for place, value in enumerate(values) if value == low]
    return best[int(draw.integers(len(best)))] if len(best) > 1 else best[0]


def decide(router: Router, request: Incoming, sites: Sequence[Site], draw: Draw) -> int:
    """Return the router's choice; no request is held if all engines are idle."""
    if len(sites) == 1 and not router.holds:
        return 0
    k = router.choose(request, sites if isinstance(sites, Sites) else Sites(sites), draw)
    return 0 if k == HOLD and all(site.requests == 0 for site in sites) else k
