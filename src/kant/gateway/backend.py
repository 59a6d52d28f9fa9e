"""A real engine as the dispatcher knows it, and a request on its way to one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kant.gateway.ask import Ask
from kant.gateway.outliers import Health
from kant.gateway.scrape import Scraped
from kant.serving.engine import EngineSettings
from kant.serving.site import ObservedSite


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
    measured: bool = False
    """Whether its metrics were ever read."""
    rows: dict[int, Placement] = field(default_factory=dict)
    """Its requests, by their rows."""
    excess: list[tuple[int, int]] = field(default_factory=list)
    health: Health = field(default_factory=Health)
    """What its answers say of it."""

    expected: deque[tuple[float, Placement]] = field(default_factory=deque)
    """When those of its requests whose answers nobody sees should have their first token, in seconds."""

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

    def expect(self, now: float) -> None:
        """Take requests whose answers nobody sees to run from when the latency model says so."""
        while self.expected and self.expected[0][0] <= now:
            placed = self.expected.popleft()[1]
            if placed.backend is self:
                self.site.said(placed.row, 1)

    def _share_out(self, used: int, waiting: int) -> None:
        """Take `used` tokens of its KV to be those of its requests whose answers nobody sees, but for the last ones.

        So many are `waiting`, says the engine; the others have outputs of equal length beyond their prompts.
        """
        unseen = [placed for placed in self.rows.values() if placed.unseen]
        running = unseen[: max(0, len(unseen) - waiting)]
        if running:
            rest = used - sum(placed.prompt for placed in running)
            for placed in running:
                self.site.said(placed.row, max(1, rest // len(running)))

    def compare(self, scraped: Scraped, own_requests: int, own_tokens: int) -> None:
        """Note what it says to have beyond our requests: the least of three looks, as some are always on the way."""
        self.scraped, self.measured = scraped, True
        if scraped.blocks and scraped.block_size:
            settings = self.site.settings
            known = EngineSettings(
                settings.latency, scraped.blocks, scraped.block_size, settings.max_num_seqs,
                settings.max_num_batched_tokens,
            )  # fmt: skip
            self.site.settings = known
        used = round(scraped.usage * self.site.settings.tokens)
        self._share_out(used, scraped.waiting)
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
    tenant: str = ""
    level: int = 0
    """How urgent its tenant's requests are, lower first."""
    came: float = 0.0
    blocks: Sequence[int] = ()
    """The chain of hashes of its prompt, where the router asks for it."""
    block_tokens: float = 0.0
    adapter: bool = False
    """Whether the first of these is its adapter."""
    without: frozenset[int] = frozenset()
    placed: asyncio.Future[None] | None = None
    unseen: bool = False
    """Whether its answer does not come here: what is known of its tokens is from the metrics of its engine."""
    over: bool = False
    withdraw: Callable[[], None] | None = None
    """Called where its backend is found to be lost."""
    sent: int = 0
    """Its number among all requests that were sent to a backend."""
    tests: bool = False
    """Whether its answer decides if its backend comes back into service."""

    @property
    def size(self) -> float:
        """Tokens of prompt and predicted output."""
        return self.prompt + self.predicted

    def __lt__(self, other: Placement) -> bool:
        return (self.priority, self.order) < (other.priority, other.order)
