"""A router that balances an engine's cached prefix against its load: one estimate of the time to first token."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from kant.model.taxonomy import Tags
from kant.serving.columns import Times
from kant.serving.first_token import NUMBER, first_tokens, prefix_costs
from kant.serving.prefix_index import PrefixIndex
from kant.serving.routing import PROGRAMS, ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Site, Sites

ADAPTER_MS = 100.0
"""Milliseconds that an engine takes to load a LoRA adapter that it has not served recently."""

STAYS = 1.05
"""A program stays on its engine, which has its answers cached, while the cost is at most this multiple of the least."""


def first_token_ms(sites: Sites, now: float, prompt: int, new: float) -> Times:
    """Return the milliseconds to first token on each engine, if it must compute `new` tokens of the prompt.

    All engines have the latency model and the token budget of the first.
    """
    settings, out = sites[0].settings, np.empty(len(sites))
    row, budget = settings.latency.row(), settings.max_num_batched_tokens
    first_tokens(*sites.loads(), sites.under_way_ms(now), new, row, budget, prompt, out)
    return out


@dataclass(slots=True)
class PrefixAware(Router):
    """The least estimate of the time to the first token, given the cached part of the prompt, times the engine's number
    of requests.

    The estimate counts the tokens that this prompt adds twice: once for this request and once for those after it. So a
    prefix is computed again on another engine only if that avoids a longer wait. The estimate is multiplied by the
    number of requests, as in LMetric (arXiv 2603.15202), which represents the seats and the KV of decoding requests; a
    difference of `few` requests is ignored. Without shared prefixes the choice depends on load alone. A LoRA adapter
    counts as the first block of its prompts.
    """

    source: ClassVar[str] = "this project; the product is LMetric's, arXiv 2603.15202"
    tags: ClassVar[Tags] = ROUTES
    signals: ClassVar[tuple[str, ...]] = ("prefix", "program")
    prefixes: ClassVar[bool] = True

    few: int = 24
    index: PrefixIndex = field(default_factory=PrefixIndex, init=False)
    homes: OrderedDict[int, int] = field(default_factory=OrderedDict, init=False)
    """The engine of the last request of each program."""

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        had = self.index.match(request.blocks)
        costs = self._costs(request, sites, had)
        best = least(costs, draw)
        home = self.homes.get(request.program)
        if home is not None and had.get(home, 0) > request.adapter:  # otherwise nothing is known to be cached
            for k, site in enumerate(sites):
                if site.number == home and costs[k] <= STAYS * costs[best]:
                    return k
        return best

    def _costs(self, request: Incoming, sites: Sites, had: dict[int, int]) -> Times:
        table, rows = sites.loads()
        blocks = np.zeros(len(rows), dtype=np.int64)
        if had:
            blocks[:] = [had.get(number, 0) for number in table[rows, NUMBER].tolist()]
        settings, out = sites[0].settings, np.empty(len(rows))
        prefix_costs(
            table, rows, sites.under_way_ms(request.now), blocks, float(request.block_tokens), int(request.adapter),
            ADAPTER_MS, self.few, settings.latency.row(), settings.max_num_batched_tokens, request.prompt, out,
        )  # fmt: skip
        return out

    def sent(self, request: Incoming, site: Site) -> int:
        number = site.number
        had = self.index.depth(number, request.blocks)
        if request.blocks:
            self.index.add(number, request.blocks, max(1, int(site.settings.tokens / request.block_tokens)))
        if request.program >= 0:
            self.homes[request.program] = number
            self.homes.move_to_end(request.program)
            if len(self.homes) > PROGRAMS:
                self.homes.popitem(last=False)
        return request.cached(had)

    def forget(self, number: int) -> None:
        self.index.forget(number)
