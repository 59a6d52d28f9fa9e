"""Long prompts go to the engine on which their program began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.routing import PROGRAMS, ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Sites


@dataclass(slots=True)
class ProgramAffinity(Router):
    """Autellix's balancer (arXiv 2502.13965, Algorithm 2): long prompts stay with their program's engine.

    Prompts of at most `short` tokens go to the engine with the fewest requests, since shared system prompts are cached
    everywhere; longer ones go to the first engine of their program.
    """

    source: ClassVar[str] = "Autellix, Luo et al., arXiv 2502.13965"
    tags: ClassVar[Tags] = tagged(ROUTES, unit="request dag")
    signals: ClassVar[tuple[str, ...]] = ("program",)

    short: int = 2048
    pinned: dict[int, int] = field(default_factory=dict, init=False)

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        used = least(sites.requests, draw)
        if request.prompt <= self.short or request.program < 0:
            return used
        wanted = self.pinned.get(request.program)
        for k, site in enumerate(sites):
            if site.number == wanted:
                return k
        if len(self.pinned) >= PROGRAMS:
            self.pinned.pop(next(iter(self.pinned)))
        self.pinned[request.program] = sites[used].number
        return used
