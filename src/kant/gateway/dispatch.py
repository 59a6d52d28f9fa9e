"""Which backend gets a request, and when: the policy and the router of the simulator, asked about real engines.

A request that comes gets its priority from the policy. The router then chooses among the backends that are up, serve
its model and have room; where there is none, or the router or the policy holds it, it waits here, in order of priority.
Nothing here reads a clock or a network: what comes, what was said and what ended is told.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import numpy as np

from kant.gateway.ask import PRIORITIES, Ask, RefusedError
from kant.gateway.scrape import Scraped
from kant.serving import columns as c
from kant.serving.engine import Engine, EngineSettings
from kant.serving.policy import Job, Policy
from kant.serving.predictor import LengthRanker
from kant.serving.routing import HOLD, PROGRAMS, Incoming, Overtaking, Router, decide
from kant.serving.site import ObservedSite

NOBODY = -1
FIRST_GUESS = 256.0
"""Tokens of an output before any was seen."""

FORGETS = 0.02
"""Weight of the latest answer in what is learned of all."""

RANKS, MIDDLE = 128.0, 256.0
"""A trained ranker's numbers are small and about 0; priorities are whole numbers, and those of tokens above it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`in_flight`: requests at once on one backend; `held`: requests that wait here; `at_once`: all there are."""

    in_flight: int = 1 << 20
    held: int = 10_000
    at_once: int = 16_384


@dataclass(slots=True)
class Backend:
    """A real engine: where it is, whether it gets requests, and what is known of those that it has."""

    number: int
    url: str
    site: ObservedSite
    up: bool = True
    draining: bool = False
    """Whether an operator lets it get no new requests."""
    leaving: bool = False
    """Whether whoever runs it takes it away: it gets no new requests, and is gone when it has none."""
    gone: bool = False
    models: frozenset[str] | None = None
    scraped: Scraped = field(default_factory=Scraped)
    rows: dict[int, Placement] = field(default_factory=dict)
    """Its requests, by their rows."""
    excess: list[tuple[int, int]] = field(default_factory=list)

    host: str = ""
    """Its host and port, as a request names them."""

    def __post_init__(self) -> None:
        self.host = urlsplit(self.url).netloc

    @property
    def open(self) -> bool:
        """Whether it may get new requests."""
        return self.up and not self.draining and not self.leaving

    def serves(self, model: str) -> bool:
        """Whether it may have the model; where it has not said, it may."""
        return not model or self.models is None or model in self.models

    def compare(self, scraped: Scraped, own_requests: int, own_tokens: int) -> None:
        """Note what it says to have beyond our requests: the least of three looks, as some are always on the way."""
        self.scraped = scraped
        if scraped.blocks and scraped.block_size:
            settings = self.site.settings
            known = EngineSettings(
                settings.latency, scraped.blocks, scraped.block_size, settings.max_num_seqs,
                settings.max_num_batched_tokens,
            )  # fmt: skip
            self.site.settings = known
        used = round(scraped.usage * self.site.settings.tokens)
        self.excess = [*self.excess, (scraped.requests - own_requests, used - own_tokens)][-3:]
        if len(self.excess) == 3:
            self.site.other_requests = max(0, min(requests for requests, _ in self.excess))
            others = max(0, min(tokens for _, tokens in self.excess))
            self.site.other_tokens = others if self.site.other_requests else 0


@dataclass(slots=True, eq=False)
class Placement:
    """A request from its coming to its end, and where it is: `backend` is None while it is held."""

    row: int
    order: int
    ask: Ask
    prompt: int
    predicted: float
    program: int
    priority: float
    backend: Backend | None = None
    without: frozenset[int] = frozenset()
    placed: asyncio.Future[None] | None = None
    over: bool = False
    withdraw: Callable[[], None] | None = None
    """Called where its backend is found to be lost."""

    @property
    def size(self) -> float:
        """Tokens of prompt and predicted output."""
        return self.prompt + self.predicted

    def __lt__(self, other: Placement) -> bool:
        return (self.priority, self.order) < (other.priority, other.order)


class Dispatcher:
    """All requests that are here, and all backends."""

    def __init__(
        self,
        urls: Sequence[str],
        settings: EngineSettings,
        policy: Policy,
        router: Router,
        limits: Limits,
        seed: int = 0,
        ranker: LengthRanker | None = None,
    ) -> None:
        self.settings = settings
        self.numbers = 0
        """How many backends there have been; each has a number of its own."""
        self.backends: list[Backend] = []
        for url in urls:
            self._add(url)
        self.policy, self.router, self.limits, self.ranker = policy, router, limits, ranker
        self.draw = np.random.Generator(np.random.PCG64(seed))
        self.book = Engine(settings, limits.at_once)
        self.free = list(range(limits.at_once))[::-1]
        self.held: dict[str, list[Placement]] = {}
        self.count = 0
        self.now = self.began = 0.0
        self.output = FIRST_GUESS
        self.bytes_per_token = 4.0
        self.programs: OrderedDict[str, int] = OrderedDict()
        self.named = 0
        self.addresses: frozenset[str] = frozenset(urls)

    # --- a request --------------------------------------------------------------------------------------------------

    def come(self, ask: Ask, predicted: float | None = None) -> Placement:
        """A request comes; it is not placed yet. `predicted` is its output, in tokens, as a header says.

        Raises RefusedError where there are too many.
        """
        if self.count == 0:
            self.began = self.now
        if not self.free:
            raise RefusedError(503, f"at most {self.limits.at_once} requests at once", "overloaded", 1)
        row = self.free.pop()
        prompt = ask.prompt(self.bytes_per_token)
        if predicted is None:
            predicted = self.output if ask.most is None else min(self.output, float(ask.most))
        program = self._program(ask.program)
        said = predicted if self.ranker is None else MIDDLE + RANKS * float(self.ranker.rank([ask.text])[0])
        self.book.requests[row] = 0
        self.book.requests[row, c.PROMPT] = prompt
        priority = self.policy.arrived(self.book, Job(prompt, said, ask.priority, program, self.now - self.began), row)
        self.count += 1
        return Placement(row, self.count, ask, prompt, predicted, program, priority)

    def _program(self, name: str) -> int:
        """A number for a program; the one that has not called for longest is forgotten where there are too many."""
        if not name:
            return NOBODY
        number = self.programs.get(name)
        if number is None:
            if len(self.programs) >= PROGRAMS:
                self.policy.forget(self.programs.popitem(last=False)[1])
            number = self.programs[name] = self.named
            self.named += 1
        else:
            self.programs.move_to_end(name)
        return number

    def sent_priority(self, placed: Placement) -> int | None:
        """vLLM's `priority` of a request; None where the policy orders nobody, and what the client says stands."""
        if not self.policy.by_priority:
            return None
        return int(max(-PRIORITIES, min(round(placed.priority), PRIORITIES)))

    def offer(self, placed: Placement) -> bool:
        """Place a request now, or hold it: then `placed` is resolved once it has a backend.

        Raises RefusedError where no backend has its model, or too many are held.
        """
        model = placed.ask.model
        overtaking = Overtaking(self.router)
        for waits in self.held.get(model, ()):
            if placed < waits:  # it goes first by priority
                continue
            overtaking.held(waits.size)
            if not self.router.overtaken:
                break
        if overtaking.may_ask(placed.size) and self._place(placed):
            return True
        if self.backends and not any(backend.serves(model) for backend in self.backends):
            raise RefusedError(404, f"the model {model[:100]!r} is not served here", "invalid_request_error")
        if sum(map(len, self.held.values())) >= self.limits.held:
            raise RefusedError(503, f"at most {self.limits.held} requests wait here", "overloaded", 1)
        placed.placed = asyncio.get_running_loop().create_future()
        heapq.heappush(self.held.setdefault(model, []), placed)
        return False

    def _open(self, placed: Placement) -> Iterable[Backend]:
        """Backends that may get a request now."""
        for backend in self.backends:
            if not backend.open or backend.number in placed.without:
                continue
            if backend.serves(placed.ask.model) and len(backend.rows) < self.limits.in_flight:
                if self.policy.limits and not self._admits(backend, placed):
                    continue
                yield backend

    def _admits(self, backend: Backend, placed: Placement) -> bool:
        """Whether the policy lets a request run with those that the backend has."""
        rows = list(backend.rows)
        if not rows:
            return True
        self.book.settings = backend.site.settings
        for row in rows:
            self.book.requests[row, c.DONE] = backend.site.live[row].done
        return self.policy.admitted(self.book, rows, [placed.row]) > 0

    def _place(self, placed: Placement) -> bool:
        """Let the router choose; False where it holds, or there is nobody to choose from."""
        backends = list(self._open(placed))
        if not backends:
            return False
        incoming = Incoming(self.now, placed.prompt, placed.predicted, placed.program)
        k = decide(self.router, incoming, [backend.site for backend in backends], self.draw)
        if k == HOLD:
            return False
        placed.backend = backend = backends[k]
        backend.rows[placed.row] = placed
        backend.site.send(placed.row, placed.prompt, placed.predicted)
        return True

    def ask_again(self) -> None:
        """Place who is held, in order of priority, until one of them must still wait; each model has its own queue."""
        for model in list(self.held):
            queue = self.held[model]
            overtaking = Overtaking(self.router)
            stay: list[Placement] = []
            while queue:
                placed = heapq.heappop(queue)
                if overtaking.may_ask(placed.size) and self._place(placed):
                    assert placed.placed is not None
                    placed.placed.set_result(None)
                    continue
                overtaking.held(placed.size)
                stay.append(placed)
                if not self.router.overtaken:
                    break
            self.held[model] = stay + queue
            heapq.heapify(self.held[model])
            if not self.held[model]:
                del self.held[model]

    def move(self, placed: Placement, other: Backend) -> None:
        """A request turns out to be on another backend."""
        assert placed.backend is not None
        placed.backend.rows.pop(placed.row)
        sent = placed.backend.site.end(placed.row)
        placed.backend = other
        other.rows[placed.row] = placed
        other.site.send(placed.row, placed.prompt, placed.predicted)
        other.site.said(placed.row, sent.done)

    def said(self, placed: Placement, done: int) -> None:
        """So many tokens of its output have come."""
        if placed.backend is not None:
            placed.backend.site.said(placed.row, done)

    def take_back(self, placed: Placement) -> int:
        """A request leaves its backend, or who is held; it may be offered again. Returns its tokens so far."""
        done = 0
        if placed.backend is not None:
            placed.backend.rows.pop(placed.row, None)
            done = placed.backend.site.end(placed.row).done
            placed.backend = None
        elif placed.placed is not None:
            queue = self.held[placed.ask.model]
            queue.remove(placed)
            heapq.heapify(queue)
            if not queue:
                del self.held[placed.ask.model]
        placed.placed = None
        return done

    def end(self, placed: Placement, output: int | None, prompt: int | None = None) -> None:
        """A request is over, after `output` tokens (None: it failed); its prompt has `prompt` tokens, says the engine.

        What is held is asked about again. A second call does nothing.
        """
        if placed.over:
            return
        placed.over = True
        done = self.take_back(placed)
        if output is not None:
            self.output += FORGETS * (output - self.output)
            if prompt is not None and not placed.ask.ids and len(placed.ask.text) >= 64 and prompt > 0:
                ratio = min(max(len(placed.ask.text) / prompt, 0.5), 16.0)
                self.bytes_per_token += FORGETS * (ratio - self.bytes_per_token)
        self.book.requests[placed.row, c.OUTPUT] = done if output is None else output
        self.policy.finished(self.book, placed.row)
        self.free.append(placed.row)
        if any(backend.leaving for backend in self.backends):
            self._let_go()
        self.ask_again()

    # --- a backend --------------------------------------------------------------------------------------------------

    def _add(self, url: str) -> None:
        self.backends.append(Backend(self.numbers, url, ObservedSite(self.settings, self.numbers)))
        self.numbers += 1

    def have(self, addresses: Mapping[str, bool]) -> None:
        """These are the backends now, each with whether it may get new requests.

        One that may not, or is not named any more, keeps what it has; it is gone when it has nothing and is not named.
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
        """Forget backends that leave, have nothing, and are not named any more."""
        for backend in self.backends:
            backend.gone = backend.leaving and not backend.rows and backend.url not in self.addresses
        self.backends = [backend for backend in self.backends if not backend.gone]

    def lost(self, backend: Backend) -> None:
        """A backend does not answer any more: it gets nothing, and what it has is taken back."""
        backend.up = False
        for placed in list(backend.rows.values()):
            if placed.withdraw is not None:
                placed.withdraw()

    def found(self, backend: Backend) -> None:
        """A backend answers again."""
        if not backend.up:
            backend.up = True
            self.ask_again()
