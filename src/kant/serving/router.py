"""Routers: choose the engine of each request on arrival. Each sees the current state of the engines.

A router is one small class with its own state. Among engines that it rates equally, one is drawn at random. A request
is described by `Incoming`; of its output, routers may only use the prediction. The same objects route in the simulator
and in front of real engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from kant.model.choice import ALPHA, anti_affinity, second_is_lighter
from kant.model.errors import InputError
from kant.model.taxonomy import Tags, tagged
from kant.serving import columns as c
from kant.serving.impact import Impact
from kant.serving.learned import Intelligent
from kant.serving.prefix import PrefixAware
from kant.serving.routing import LAST, PROGRAMS, ROUTES, Draw, Incoming, Router, least
from kant.serving.site import Site, Sites


@dataclass(slots=True)
class RoundRobin(Router):
    """Round robin over the engines."""

    source: ClassVar[str] = "the usual default of load balancers"
    tags: ClassVar[Tags] = tagged(ROUTES, objective="none", resources="none")

    turn: int = field(default=-1, init=False)

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        self.turn = (self.turn + 1) % len(sites)
        return self.turn


@dataclass(frozen=True, slots=True)
class RandomEngine(Router):
    """A random engine, each with the same probability."""

    source: ClassVar[str] = "a baseline"
    tags: ClassVar[Tags] = tagged(ROUTES, objective="none", resources="none", method="randomised")

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return int(draw.integers(len(sites)))


@dataclass(frozen=True, slots=True)
class TwoChoices(Router):
    """Of two engines drawn at random the one with fewer requests (Mitzenmacher, TPDS 2001)."""

    source: ClassVar[str] = "M. Mitzenmacher, IEEE TPDS 12(10), 2001"
    tags: ClassVar[Tags] = tagged(ROUTES, method="randomised rule")

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        drawn = draw.permutation(len(sites))[:2].tolist()
        return int(min(drawn, key=lambda i: sites[i].requests))  # if equal, the first drawn


@dataclass(frozen=True, slots=True)
class Dodoor(Router):
    """Of two engines drawn at random the one with the lower score of Dodoor (arXiv 2510.12889), by the known loads.

    The resources are the tokens of the KV and the seats; tokens still to prefill stand for durations. Among several
    routers the known loads are their own, and those of the others as last told (`kant.gateway.gossip`).
    """

    source: ClassVar[str] = "Dodoor, arXiv 2510.12889"
    tags: ClassVar[Tags] = tagged(
        ROUTES, architecture="decentralised", resources="multi-d", method="randomised rule", freshness="cached"
    )

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        drawn = draw.permutation(len(sites))[:2].tolist()
        first, second = sites[drawn[0]], sites[drawn[-1]]
        loads = self.load(request, first), self.load(request, second)
        return int(drawn[second_is_lighter(loads, (first.pending_prefill(), second.pending_prefill()), ALPHA)])

    def load(self, request: Incoming, site: Site) -> float:
        """Return the sum of load scores over both resources."""
        kv = anti_affinity(request.prompt, site.tokens(), site.settings.tokens)
        return kv + anti_affinity(1, site.requests, site.settings.max_num_seqs)


@dataclass(frozen=True, slots=True)
class ShortestQueue(Router):
    """The engine with the fewest running and waiting requests."""

    source: ClassVar[str] = "join the shortest queue"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least(sites.requests, draw)


@dataclass(frozen=True, slots=True)
class LeastTokens(Router):
    """The engine whose requests have the fewest tokens, prompts and outputs so far."""

    source: ClassVar[str] = "least outstanding tokens, as in Block, arXiv 2508.03611"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least(sites.tokens, draw)


@dataclass(frozen=True, slots=True)
class Llumnix(Router):
    """The engine with the most free KV for each running request (Sun et al., OSDI'24), without migration."""

    source: ClassVar[str] = "Llumnix, Sun et al., OSDI 2024"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least([-site.freeness() for site in sites], draw)


@dataclass(frozen=True, slots=True)
class Lmetric(Router):
    """The least product of tokens to prefill, this prompt included, and requests (LMetric, arXiv 2603.15202)."""

    source: ClassVar[str] = "LMetric, arXiv 2603.15202"
    tags: ClassVar[Tags] = ROUTES

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        return least((request.prompt + sites.pending) * (sites.requests + 1), draw)


@dataclass(slots=True)
class ProgramAffinity(Router):
    """Autellix's balancer (arXiv 2502.13965, Algorithm 2): long prompts stay with their program's engine.

    Prompts of at most `short` tokens go to the engine with the fewest requests, as shared system prompts are cached
    everywhere; longer ones to the engine on which their program first had one.
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


@dataclass(frozen=True, slots=True)
class Block(Router):
    """Block (arXiv 2508.03611): run each candidate forward from its state, and take the earliest predicted token.

    `candidates` engines are drawn at random, all of them where it is 0. The prediction takes every request to say as
    much as was predicted of it, and stops at this one's first token (`metric` ttft) or at its end (e2e).
    """

    source: ClassVar[str] = "Block, arXiv 2508.03611"
    tags: ClassVar[Tags] = tagged(ROUTES, knowledge="learned", method="learned search")
    signals: ClassVar[tuple[str, ...]] = ("predicted",)

    candidates: int = 0
    metric: str = "ttft"
    horizon: int = 4000

    def choose(self, request: Incoming, sites: Sites, draw: Draw) -> int:
        chosen = list(range(len(sites)))
        if 0 < self.candidates < len(sites):
            chosen = sorted(draw.permutation(len(sites))[: self.candidates].tolist())
        return chosen[least([self.predict(request, sites[i]) for i in chosen], draw)]

    def predict(self, request: Incoming, site: Site) -> tuple[float, float]:
        """Return when the request would have its first token (or its last) there, and the load of the engine then."""
        twin, now = site.twin(request.now)
        most = max(twin.settings.tokens + 1 - request.prompt, 1)
        output = 1 if self.metric == "ttft" else min(max(round(request.predicted), 1), most)
        r = twin.add(now, request.prompt, output, tie=LAST)
        for _ in range(self.horizon):
            if twin.requests[r, c.STATE] == c.FINISHED:
                break
            twin.run(stop_at_finish=True)
        else:
            return twin.now, float(site.tokens())
        return float(twin.times[r, c.FINISH]), float(site.tokens())


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "random": RandomEngine,
    "two-choices": TwoChoices,
    "dodoor": Dodoor,
    "shortest-queue": ShortestQueue,
    "least-tokens": LeastTokens,
    "llumnix": Llumnix,
    "lmetric": Lmetric,
    "program-affinity": ProgramAffinity,
    "block": Block,
    "impact": Impact,
    "prefix": PrefixAware,
    "intelligent": Intelligent,
}


def router_named(name: str, option: str = "--router") -> Router:
    """Return a new router of that name; raises InputError listing those that exist, about `option`."""
    if name not in ROUTERS:
        raise InputError(option, f"one of {', '.join(ROUTERS)}", name)
    return ROUTERS[name]()
