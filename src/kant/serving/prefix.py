"""A router that weighs what an engine has of a prompt against what it has to do: one estimate of the first token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.prefix_index import PrefixIndex
from kant.serving.routing import PROGRAMS, ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Site

ADAPTER_MS = 100.0
"""What an engine takes to load a LoRA adapter that it has not served lately."""

STAYS = 1.05
"""A program stays with its engine where that costs at most so many times the least: its answers are cached there."""


def first_token_ms(site: Site, now: float, prompt: int, new: float) -> float:
    """Milliseconds until an engine has the first token of a request of whose prompt it must compute `new` tokens.

    Arithmetic on the engine's latency model: the rest of the step under way, then as many steps as what is still to
    compute there and this prompt fill, each over the KV of who decodes beside.
    """
    settings = site.settings
    latency = settings.latency
    beside = site.requests
    tokens = site.pending_prefill() + new
    steps = max(1, -(-tokens // max(settings.max_num_batched_tokens - beside, 1)))
    step = latency.overhead + latency.kv * site.tokens()
    computing = max(latency.floor * steps, latency.slope * tokens + latency.fixed * steps)
    return float(site.under_way_ms(now) + computing + step * steps + latency.context * new * (prompt - new / 2))


@dataclass(slots=True)
class PrefixAware(Router):
    """The least estimate of the first token, with what the engine has of the prompt, times the requests there.

    The estimate counts the tokens that this prompt adds twice, once for this request and once for those that come after
    it: so a prefix is computed again elsewhere only where that spares a longer wait. Its product with the requests, as
    in LMetric (arXiv 2603.15202), sees what an estimate of one request does not, seats and KV of who decodes; `few`
    requests more or less do not matter. Without shared prefixes it is a rule about load alone. A LoRA adapter counts
    as the first block of its prompts.
    """

    source: ClassVar[str] = "this project; the product is LMetric's, arXiv 2603.15202"
    tags: ClassVar[Tags] = ROUTES
    prefixes: ClassVar[bool] = True

    few: int = 24
    index: PrefixIndex = field(default_factory=PrefixIndex, init=False)
    homes: OrderedDict[int, int] = field(default_factory=OrderedDict, init=False)
    """Of each program the engine that it was last on."""

    def choose(self, request: Incoming, sites: Sequence[Site], draw: Draw) -> int:
        had = self.index.match(request.blocks)
        costs = [self._cost(request, site, had.get(site.number, 0)) for site in sites]
        best = least(costs, draw)
        home = self.homes.get(request.program)
        if home is not None and had.get(home, 0) > request.adapter:  # else nothing of it is known to be there
            for k, site in enumerate(sites):
                if site.number == home and costs[k] <= STAYS * costs[best]:
                    return k
        return best

    def _cost(self, request: Incoming, site: Site, had: int) -> float:
        new = request.prompt - request.cached(had)
        ms = first_token_ms(site, request.now, request.prompt, new) + site.settings.latency.slope * new
        if request.adapter and not had:
            ms += ADAPTER_MS
        return ms * (site.requests + self.few)

    def sent(self, request: Incoming, site: Site) -> int:
        number = site.number
        had = self.index.match(request.blocks).get(number, 0)
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
