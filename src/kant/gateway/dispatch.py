"""Decides which backend gets a request, and when: applies the simulator's policy and router to real engines.

An arriving request gets its priority from the policy. The router then chooses among the backends that are up, serve the
request's model and have capacity. If there is none, or if the router or the policy holds the request, it waits in the
order of priority. This module reads neither a clock nor the network: its caller reports arrivals, output and ends.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kant.gateway.ask import PRIORITIES, Ask, RefusedError
from kant.gateway.backend import Backend, Limits, Placement
from kant.gateway.held import Held, held_for
from kant.gateway.outliers import Ejection
from kant.gateway.programs import ProgramNumbers
from kant.gateway.scrape import Scraped
from kant.gateway.shares import Shares
from kant.live.logs import log_event
from kant.model.errors import InputError
from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.first_token import warm_up, with_room
from kant.serving.policy import Job, Policy
from kant.serving.predictor import LengthRanker
from kant.serving.routers.prefix import PrefixAware, first_token_ms
from kant.serving.routing import HOLD, Incoming, Router, decide
from kant.serving.site import LoadTable, ObservedSite, Sites

if TYPE_CHECKING:
    from kant.gateway.aside import Aside

log = logging.getLogger("kant.gateway")
EJECTION = Ejection()

MOST_AGAIN_S = 60
"""The maximum of `Retry-After`, in seconds."""

MOST_BACKENDS, MOST_KNOWN = 1 << 14, 64
"""The maximum number of backends, and of models in the cache of usable backends (clients choose names of models)."""

FIRST_GUESS = 256.0
"""The number of output tokens that is assumed before any output was seen."""

FORGETS = 0.02
"""The weight of the latest response in the running averages."""

RANKS, MIDDLE = 128.0, 256.0
"""Scale and offset that turn a trained ranker's scores, small numbers around 0, into positive numbers of the magnitude
of token counts, because priorities are rounded to whole numbers.
"""


class Dispatcher:
    """Assigns all requests of a router to its backends."""

    def __init__(
        self,
        urls: Sequence[str],
        settings: EngineSettings,
        policy: Policy,
        router: Router,
        limits: Limits,
        seed: int | None = 0,
        ranker: LengthRanker | None = None,
        ejection: Ejection = EJECTION,
    ) -> None:
        self.settings, self.ejection = settings, ejection
        self.numbers = 0
        """How many backends there have been; each has its own number."""
        self.loads = LoadTable(MOST_BACKENDS)
        self._known: dict[str, tuple[list[Backend], Sites]] = {}
        """For each model, the backends that may get its requests."""
        self._out = np.zeros(MOST_BACKENDS, dtype=np.int64)
        warm_up()
        self.expected: list[tuple[float, int, Placement, Backend]] = []
        """A heap of the expected times, in seconds, of first tokens of requests whose responses are not seen."""
        self.backends: list[Backend] = []
        for url in urls:
            self._add(url)
        self.policy, self.router, self.limits, self.ranker = policy, router, limits, ranker
        self.draw = np.random.Generator(np.random.PCG64(seed))
        self.aside: Aside | None = None
        """Decides instead of the router, if the router's decisions are costly."""
        self.book = Engine(settings, limits.at_once)
        self.free = list(range(limits.at_once))[::-1]
        self.held: dict[str, Held] = {}
        """Waiting requests by model; no queue is empty."""
        self.waiting = 0
        """How many requests wait."""
        self.adapters: frozenset[str] = frozenset()
        """Models that are adapters of others, as reported by backends."""
        self.shares = Shares()
        self.wait_s = 0.0
        """How long the latest released request waited, in seconds."""
        self.count = self.sent = 0
        self.panics = False
        """Whether requests go to ejected backends, because no other is left."""
        self.now = self.began = 0.0
        self.output = FIRST_GUESS
        self.unseen = False
        """Whether there were requests whose responses this router does not see."""
        self.bytes_per_token, self.prefixes = 4.0, router.prefixes
        self.programs = ProgramNumbers(policy.forget)
        self.addresses: frozenset[str] = frozenset(urls)

    # --- a request --------------------------------------------------------------------------------------------------

    def come(self, ask: Ask, predicted: float | None = None, tenant: str = "", level: int = 0) -> Placement:
        """Register a request without placing it. `predicted` is the predicted output in tokens (None: unknown).

        `tenant` is the unit of fair sharing; `level` is the urgency of its requests (lower goes first). Raises
        RefusedError if too many requests are active.
        """
        if self.count == 0:
            self.began = self.now
        if not self.free:
            raise RefusedError(503, f"at most {self.limits.at_once} requests at once", "overloaded", 1)
        row = self.free.pop()
        prompt = ask.prompt(self.bytes_per_token)
        if predicted is None:
            predicted = self.output if ask.most is None else min(self.output, float(ask.most))
        program = self.programs.number(ask.program)
        said = predicted if self.ranker is None else MIDDLE + RANKS * float(self.ranker.rank([ask.text])[0])
        self.book.requests[row] = 0
        self.book.requests[row, c.PROMPT] = prompt
        priority = self.policy.arrived(self.book, Job(prompt, said, ask.priority, program, self.now - self.began), row)
        self.count += 1
        placed = Placement(
            row, self.count, ask, prompt, predicted, program, priority, tenant=tenant, level=level, came=self.now
        )
        if self.prefixes and self.settings.prefix_cache:
            placed.adapter = ask.model in self.adapters
            adapter = ask.model if placed.adapter else ""
            placed.blocks, placed.block_tokens = ask.blocks(adapter, self.bytes_per_token)
        return placed

    def sent_priority(self, placed: Placement) -> int | None:
        """Return vLLM's `priority` for a request. None if the policy sets none, so that the client's value applies."""
        if not self.policy.by_priority:
            return None
        return int(max(-PRIORITIES, min(round(placed.priority), PRIORITIES)))

    def offer(self, placed: Placement) -> bool:
        """Place a request now (True), or hold it (False): then the future `placed.placed` ends when it gets a backend.

        Raises RefusedError if no backend has its model, too many requests are held, or its deadline cannot be met.
        """
        model = placed.ask.model
        if self._too_late(placed):
            said = f"no backend would send the first token within {placed.deadline_s:g} seconds"
            raise RefusedError(429, said, "overloaded", self._again())
        queue = self.held.get(model)
        if (queue is None or queue.may_ask(placed)) and self._place(placed):
            return True
        if self.backends and not any(backend.serves(model) for backend in self.backends):
            raise RefusedError(404, f"the model {model[:100]!r} is not served here", "invalid_request_error")
        if self.waiting >= self.limits.held:
            self._shed(placed)
            queue = self.held.get(model)
        placed.placed = asyncio.get_running_loop().create_future()
        if queue is None:
            queue = self.held[model] = held_for(self.router, self.shares)
        queue.push(placed)
        self.waiting += 1
        return False

    def _again(self) -> int:
        """Return the value of `Retry-After`."""
        return min(max(1, math.ceil(self.wait_s)), MOST_AGAIN_S)

    def _too_late(self, placed: Placement) -> bool:
        """Whether no backend would meet its first-token deadline, by the latency model if that is enabled."""
        if placed.deadline_s == math.inf or self.limits.first_token_s == math.inf:
            return False
        sites = [backend.site for backend in self.in_service(placed.ask.model, placed.without)]
        if not sites:
            return False
        had = self.router.index.match(placed.blocks) if isinstance(self.router, PrefixAware) else {}
        new = placed.prompt - self._incoming(placed).cached(max(had.values(), default=0))
        first_ms = first_token_ms(Sites(sites), self.now, placed.prompt, float(new)).min()
        return bool(first_ms > 1e3 * (placed.deadline_s - (self.now - placed.came)))

    def _shed(self, placed: Placement) -> None:
        """The queue is full: of the waiting requests and this one, refuse the last in order, with a retry time."""
        refused = RefusedError(429, f"at most {self.limits.held} requests may wait", "overloaded", self._again())
        mine = self.shares.begins(placed.tenant)
        lasts = (queue.last((placed.level, mine)) for queue in self.held.values())
        after = [last for last in lasts if last is not None]
        victim = max(after, key=lambda last: (last.level, self.shares.of(last.tenant), last.order), default=None)
        if victim is None or victim.placed is None:
            raise refused
        future = victim.placed
        self.take_back(victim)
        if not future.done():
            future.set_exception(refused)

    def in_service(self, model: str, without: frozenset[int]) -> list[Backend]:
        """Return the backends that may get a request for a model, whether or not they have capacity.

        Ejected backends are included only if no other backend is left. Then all of them are, as in Envoy's panic mode.
        """
        may = [b for b in self.backends if b.open and b.serves(model) and b.number not in without]
        return [b for b in may if b.health.accepts(self.now)] or may

    def usual(self, model: str) -> tuple[list[Backend], Sites]:
        """Return the backends that may get any request for a model. The result is cached until a backend changes."""
        known = self._known.get(model)
        if known is None:
            known = self._with_loads(self.in_service(model, frozenset()))
            if not any(b.health.ejected for b in self.backends):  # the end of an ejection depends on the time
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[model] = known
        return known

    def _with_loads(self, backends: list[Backend]) -> tuple[list[Backend], Sites]:
        sites = [backend.site for backend in backends]
        return backends, Sites(sites, self.loads, np.array([site.row for site in sites], dtype=np.int64))

    def _open(self, placed: Placement) -> tuple[list[Backend], Sites]:
        """Return the backends that have capacity for a request now, and their loads for the router."""
        model, limits, out = placed.ask.model, self.limits, self._out
        backends, sites = (
            self._with_loads(self.in_service(model, placed.without)) if placed.without else self.usual(model)
        )
        latency, budget = self.settings.latency.row(), self.settings.max_num_batched_tokens
        most = limits.in_flight, 1e3 * limits.first_token_s
        count = with_room(*sites.loads(), *most, latency, budget, placed.prompt, out)
        if not count or (count == len(backends) and not self.policy.limits):
            return backends[:count], sites
        open_now = [backends[k] for k in out[:count].tolist()]
        if self.policy.limits:
            open_now = [backend for backend in open_now if self._admits(backend, placed)]
        return self._with_loads(open_now)

    def _admits(self, backend: Backend, placed: Placement) -> bool:
        """Whether the policy admits a request beside those that the backend has."""
        rows = list(backend.rows)
        if not rows:
            return True
        self.book.settings = backend.site.settings
        for row in rows:
            self.book.requests[row, c.DONE] = backend.site.live[row].done
        return self.policy.admitted(self.book, rows, [placed.row]) > 0

    def _place(self, placed: Placement) -> bool:
        """Let the router choose a backend. Return False if it holds the request, or none is available."""
        if self.expected:
            self.expect()
        backends, sites = self._open(placed)
        if not backends:
            return False
        request = self._incoming(placed)
        aside = self.aside if len(backends) > 1 else None
        if aside is None:
            k = decide(self.router, request, sites, self.draw)
        else:
            k = aside.choose(self, placed, backends, request)
        if k == HOLD:
            return False
        backend = backends[k]
        self._send(placed, backend, request)
        self.sent += 1
        placed.sent = self.sent
        if backend.health.ejected:
            placed.tests = backend.health.tested = True
        return True

    def _incoming(self, placed: Placement) -> Incoming:
        """Return a request in the router's form."""
        return Incoming(
            self.now, placed.prompt, placed.predicted, placed.program, placed.blocks, placed.block_tokens,
            placed.adapter,
        )  # fmt: skip

    def expect(self) -> None:
        """Mark requests with unseen responses as started once their predicted first token is due."""
        while self.expected and self.expected[0][0] <= self.now:
            _, _, placed, backend = heapq.heappop(self.expected)
            if placed.backend is backend:
                backend.site.said(placed.row, 1)

    def _send(self, placed: Placement, backend: Backend, request: Incoming) -> None:
        """Assign a request to a backend."""
        if placed.unseen:
            self.unseen = True
            ms = first_token_ms(Sites([backend.site]), self.now, placed.prompt, float(placed.prompt))[0]
            heapq.heappush(self.expected, (self.now + float(ms) / 1e3, placed.order, placed, backend))
        placed.backend, placed.foreseen = backend, None
        backend.rows[placed.row] = placed
        cached = self.router.sent(request, backend.site)
        backend.site.send(placed.row, placed.prompt, placed.predicted, cached)
        self.shares.charge(placed.tenant, placed.prompt, placed.predicted)

    def ask_again(self) -> None:
        """Place held requests in the order of priority, until one must still wait. Each model has its own queue."""
        for model, queue in list(self.held.items()):
            queue.place(self._released)
            if not queue:
                del self.held[model]

    def _released(self, placed: Placement) -> bool:
        """Place a held request and wake its handler. Returns False if it must still wait."""
        assert placed.placed is not None
        if placed.placed.cancelled():  # the waiting handler was cancelled, and will end the request
            placed.placed = None
        elif self._place(placed):
            self.wait_s = self.now - placed.came
            placed.placed.set_result(None)
        else:
            return False
        self.waiting -= 1
        return True

    def move(self, placed: Placement, other: Backend) -> None:
        """Move a request to the backend that served it, after the backend to which it was first sent has failed."""
        assert placed.backend is not None
        self.answered(placed, False)
        if placed.tests:
            self._tested(placed, placed.backend)
        self.shares.charge(placed.tenant, -placed.prompt, -placed.predicted)  # the request is charged only once
        placed.backend.rows.pop(placed.row)
        sent = placed.backend.site.end(placed.row)
        self._send(placed, other, self._incoming(placed))
        other.site.said(placed.row, sent.done)
        self._let_go()

    def said(self, placed: Placement, done: int) -> None:
        """Report that `done` tokens of a request's output have arrived."""
        if placed.backend is not None:
            placed.backend.site.said(placed.row, done)
            if placed.tests:
                self._tested(placed, placed.backend)  # it responds: the next test request may be sent

    def counted(self, before: Scraped, now: Scraped) -> None:
        """Update the mean output length from two scrapes of an engine, if this router does not see every response."""
        ended, tokens = now.ended - before.ended, now.generated - before.generated
        if self.unseen and before.ended and ended > 0 and tokens > 0:
            self.output += min(FORGETS * ended, 1.0) * (tokens / ended - self.output)

    def passed(self, placed: Placement) -> None:
        """End a request whose response is not seen. Its output counts as long as predicted."""
        if not placed.over:
            self.said(placed, max(1, round(placed.predicted)))
            self.end(placed, None)

    def answered(self, placed: Placement, good: bool) -> float:
        """Report that a request's backend responded well, or failed.

        Returns for how many seconds the backend is ejected because of this failure; 0.0 if it is not ejected.
        """
        backend = placed.backend
        if backend is None:
            return 0.0
        health = backend.health
        if good:
            if health.good(placed.sent, self.now):
                log_event(log, "back in service", backend=backend.number, url=backend.url)
                self._watch_panic()
                self.ask_again()
            return 0.0
        if not health.bad(placed.sent, self.now, self.sent, self.ejection):
            return 0.0
        log_event(
            log, "ejected, as its answers fail", logging.WARNING, backend=backend.number, url=backend.url,
            failures=health.failures, seconds=health.lasts,
        )  # fmt: skip
        self._watch_panic()
        return health.lasts

    def _watch_panic(self) -> None:
        """Log once when every open backend is ejected, so that all of them are used. Also note when that is over."""
        self._known.clear()
        opened = [backend.health.ejected for backend in self.backends if backend.open]
        panics = bool(opened) and all(opened)
        if panics != self.panics:
            self.panics = panics
            if panics:
                log_event(log, "every backend is ejected, so all are used", logging.WARNING)

    @staticmethod
    def _tested(placed: Placement, backend: Backend) -> None:
        placed.tests = backend.health.tested = False

    def take_back(self, placed: Placement) -> int:
        """Remove a request from its backend or queue; it may be offered again. Returns its output tokens so far."""
        done = 0
        if placed.backend is not None:
            if placed.tests:
                self._tested(placed, placed.backend)
            placed.backend.rows.pop(placed.row, None)
            done = placed.backend.site.end(placed.row).done
            if placed.backend.leaving:
                self._let_go()
            placed.backend = None
            self._settle(placed, done)
        elif placed.placed is not None:
            queue = self.held[placed.ask.model]
            queue.discard(placed)
            self.waiting -= 1
            if not queue:
                del self.held[placed.ask.model]
        placed.placed = None
        return done

    def _settle(self, placed: Placement, done: int) -> None:
        """Replace a request's predicted output by its actual output in its tenant's share."""
        self.shares.charge(placed.tenant, 0, done - placed.predicted)
        queue = self.held.get(placed.ask.model)
        if queue is not None and done < placed.predicted:
            queue.changed(placed)

    def end(self, placed: Placement, output: int | None, prompt: int | None = None) -> None:
        """End a request after `output` tokens (None: it failed). `prompt`: prompt tokens as counted by the engine.

        Held requests are then tried again. Calling this a second time does nothing.
        """
        if placed.over:
            return
        placed.over = True
        if output:
            self.said(placed, output)  # the output of a response without a stream is known only now
        done = self.take_back(placed)
        if output is not None:
            self.output += FORGETS * (output - self.output)
            if prompt is not None and not placed.ask.ids and len(placed.ask.text) >= 64 and prompt > 0:
                ratio = min(max(len(placed.ask.text) / prompt, 0.5), 16.0)
                self.bytes_per_token += FORGETS * (ratio - self.bytes_per_token)
        self.book.requests[placed.row, c.OUTPUT] = done if output is None else output
        self.policy.finished(self.book, placed.row)
        self.free.append(placed.row)
        self.ask_again()

    # --- a backend --------------------------------------------------------------------------------------------------

    def _add(self, url: str) -> None:
        if not self.loads.free:
            raise InputError("the backends", f"at most {MOST_BACKENDS}", self.numbers)
        site = ObservedSite(self.settings, self.numbers, self.loads)
        self.backends.append(Backend(self.numbers, url, site, self._known.clear))
        self.numbers += 1

    def replace_backends(self, addresses: Mapping[str, bool]) -> None:
        """Replace the list of backends, each with whether it may get new requests.

        A backend that may not get new requests, or is no longer listed, keeps the requests that it has. Once it has
        none and is not listed, it is removed.
        """
        known = {backend.url: backend for backend in self.backends}
        for url, may in addresses.items():
            if url in known:
                known[url].leaving = not may
            elif may:
                self._add(url)
        for url, backend in known.items():
            backend.leaving |= url not in addresses
        self.addresses = frozenset(addresses)
        self._let_go()
        self.ask_again()

    def _let_go(self) -> None:
        """Remove backends that are leaving, have no requests, and are no longer listed."""
        for backend in self.backends:
            backend.gone = backend.leaving and not backend.rows and backend.url not in self.addresses
            if backend.gone:
                self.router.forget(backend.number)
                backend.site.leave()
        self.backends = [backend for backend in self.backends if not backend.gone]

    def unreachable(self, backend: Backend) -> None:
        """Record that no connection to a backend can be opened. It gets no requests until a scrape succeeds; the
        requests that it has continue."""
        backend.up = False
        self.router.forget(backend.number)  # it may return with an empty cache
        self._watch_panic()

    def lost(self, backend: Backend) -> None:
        """Record that a backend no longer responds. It gets no requests, and those that it has are withdrawn."""
        self.unreachable(backend)
        for placed in list(backend.rows.values()):
            if placed.withdraw is not None:
                placed.withdraw()
            elif placed.unseen:
                self.passed(placed)

    def found(self, backend: Backend) -> None:
        """Record that a backend responds again."""
        if not backend.up:
            backend.up = True
            self._watch_panic()
            self.ask_again()
