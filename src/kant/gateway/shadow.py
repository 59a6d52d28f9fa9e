"""Asks a second router what it would have decided. It only watches: requests go where the first router sends them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kant.gateway.backend import Backend, Opinion, Placement
from kant.gateway.dispatch import Dispatcher
from kant.serving.routers.prefix import PrefixAware, first_token_ms
from kant.serving.routing import HOLD, Incoming, Router, decide
from kant.serving.site import Site, Sites


class ShadowedDispatcher(Dispatcher):
    """A dispatcher that also asks `shadow` at each decision, once per request and in the same state of all engines."""

    def __init__(self, *args: Any, shadow: Router, **more: Any) -> None:
        super().__init__(*args, **more)
        self.shadow = shadow
        self.prefixes |= shadow.prefixes
        self._shadow_draw = np.random.Generator(np.random.PCG64(0))
        """The shadow's own random numbers, so that the router's choices are the same with and without a shadow."""

    def _send(self, placed: Placement, backend: Backend, request: Incoming) -> None:
        if placed.opinion is None:
            placed.opinion = self._ask(placed, backend, request)
        self.shadow.sent(request, backend.site)
        super()._send(placed, backend, request)

    def _ask(self, placed: Placement, backend: Backend, request: Incoming) -> Opinion:
        backends, sites = self._open(placed)
        k = decide(self.shadow, request, sites, self._shadow_draw)
        if k == HOLD:
            return Opinion(None, 0.0, False)
        later_ms = self._first_ms(request, backends[k].site) - self._first_ms(request, backend.site)
        return Opinion(backends[k].number, later_ms / 1e3, backends[k] is backend)

    def _first_ms(self, request: Incoming, site: Site) -> float:
        """Return the milliseconds to a first token on a site, counting what either router knows to be cached on it."""
        known = [router.index for router in (self.router, self.shadow) if isinstance(router, PrefixAware)]
        had = max((index.match(request.blocks).get(site.number, 0) for index in known), default=0)
        return float(first_token_ms(Sites([site]), self.now, request.prompt, request.prompt - request.cached(had))[0])

    def _let_go(self) -> None:
        before = self.backends
        super()._let_go()
        for backend in before:
            if backend.gone:
                self.shadow.forget(backend.number)

    def unreachable(self, backend: Backend) -> None:
        super().unreachable(backend)
        self.shadow.forget(backend.number)
