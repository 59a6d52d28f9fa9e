"""A real engine as the dispatcher sees it (`Backend`), and a request for an engine (`Placement`)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from urllib.parse import urlsplit

from kant.gateway.ask import Ask
from kant.gateway.outliers import Health
from kant.gateway.scrape import Scraped
from kant.serving.site import ObservedSite

STATE = frozenset({"up", "draining", "leaving", "models"})
"""The fields that say which requests a backend may get."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on requests: `in_flight` on one backend, `held` (waiting in the router), and `at_once` (both together).

    A backend gets no more requests while its KV is full, or if a first token is expected only after `first_token_s`.
    """

    in_flight: int = 1 << 20
    held: int = 10_000
    at_once: int = 16_384
    first_token_s: float = math.inf


@dataclass(slots=True)
class Backend:
    """A real engine: its address, whether it gets requests, and the state of its requests."""

    number: int
    url: str
    site: ObservedSite
    changed: Callable[[], object] = bool
    """Called when a field of `STATE` is set."""
    up: bool = True
    draining: bool = False
    """Whether an operator has stopped new requests to this backend."""
    leaving: bool = False
    """Whether it is being removed: it gets no new requests, and is gone once it has none."""
    gone: bool = False
    models: frozenset[str] | None = None
    scraped: Scraped = field(default_factory=Scraped)
    measured: bool = False
    """Whether its metrics have been read at least once."""
    rows: dict[int, Placement] = field(default_factory=dict)
    """Its requests, by their row in the dispatcher's tables."""
    excess: list[tuple[int, int]] = field(default_factory=list)
    clients: tuple[int, int] = (0, 0)
    """Estimated requests and tokens on this engine that come from no router of this group."""
    peers: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """The load that each other router has put on this engine: requests, tokens, and tokens still to prefill."""
    health: Health = field(default_factory=Health)
    """Its health, judged by its responses."""

    host: str = ""
    """Its host and port, for the Host header."""

    def __post_init__(self) -> None:
        self.host = urlsplit(self.url).netloc

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if name in STATE:
            self.changed()

    @property
    def open(self) -> bool:
        """Whether it may get new requests."""
        return self.up and not self.draining and not self.leaving

    def serves(self, model: str) -> bool:
        """Whether it may serve the model; also True if its models are not known."""
        return not model or self.models is None or model in self.models

    def _share_out(self, used: int, waiting: int) -> None:
        """Estimate the progress of requests whose responses this router does not see, if they use `used` tokens of KV.

        The newest `waiting` of these requests have no KV. The others are assumed to have outputs of equal length.
        """
        unseen = [placed for placed in self.rows.values() if placed.unseen]
        running = unseen[: max(0, len(unseen) - waiting)]
        if running:
            rest = used - sum(placed.prompt for placed in running)
            for placed in running:
                self.site.said(placed.row, max(1, rest // len(running)))

    def own_load(self) -> tuple[int, int, int]:
        """Return this router's own load on the backend: requests, tokens, and tokens still to prefill."""
        site = self.site
        pending = site.pending_prefill() - site.other_pending
        return len(self.rows), site.tokens() - site.other_tokens, pending

    def _of_peers(self) -> tuple[int, int, int]:
        """Return the load of all other routers on the backend, in the same form."""
        requests, tokens, pending = (sum(column) for column in zip((0, 0, 0), *self.peers.values(), strict=True))
        return requests, tokens, pending

    def add_up(self) -> None:
        """Set the totals that the router uses, which include the load from peers and from other clients."""
        requests, tokens, pending = self._of_peers()
        self.site.beside(requests + self.clients[0], tokens + self.clients[1], pending)

    def compare(self, scraped: Scraped, own_requests: int, own_tokens: int) -> None:
        """Estimate the load from clients of no router in this group: the smallest excess in three scrapes."""
        self.scraped, self.measured = scraped, True
        if scraped.blocks and scraped.block_size:
            self.site.resize(replace(self.site.settings, num_blocks=scraped.blocks, block_size=scraped.block_size))
        peers = self._of_peers()
        used = round(scraped.usage * self.site.settings.tokens)
        self._share_out(used, scraped.waiting)
        self.excess = [*self.excess, (scraped.requests - own_requests - peers[0], used - own_tokens - peers[1])][-3:]
        if len(self.excess) == 3:
            requests, tokens = (max(0, min(column)) for column in zip(*self.excess, strict=True))
            self.clients = requests, tokens if requests else 0
            self.add_up()


class Opinion(NamedTuple):
    """The backend that the shadow would have chosen, or None if it would have held the request.

    `later_s`: how many seconds later its first token would come, by the latency model; negative: earlier.
    """

    backend: int | None
    later_s: float
    agrees: bool


@dataclass(slots=True, eq=False)
class Placement:
    """A request from arrival to end, with its backend; `backend` is None while the request is held."""

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
    """The urgency of its tenant's requests, lower first."""
    came: float = 0.0
    deadline_s: float = math.inf
    """The number of seconds after arrival within which its client wants the first token."""
    due: float = 0.0
    """When it is refused if still held, in dispatcher seconds; of equal priorities, the earliest `due` goes first."""
    blocks: Sequence[int] = ()
    """The hash chain of its prompt, if the router uses prefixes."""
    block_tokens: float = 0.0
    adapter: bool = False
    """Whether the first of `blocks` stands for the adapter."""
    without: frozenset[int] = frozenset()
    foreseen: int | None = None
    """The number of the backend that another process (`Aside`) has chosen for it."""
    placed: asyncio.Future[None] | None = None
    unseen: bool = False
    """Whether this router does not see its response: its tokens are then known only from the engine's metrics."""
    over: bool = False
    withdraw: Callable[[], None] | None = None
    """Called if its backend is found to be lost."""
    sent: int = 0
    """Its sequence number among all requests sent to a backend."""
    opinion: Opinion | None = None
    """What the shadow router would have decided, if there is a shadow."""
    tests: bool = False
    """Whether it is the test request whose response decides whether an ejected backend returns to service."""

    @property
    def size(self) -> float:
        """The tokens of the prompt and of the predicted output."""
        return self.prompt + self.predicted

    @property
    def key(self) -> tuple[float, float, int]:
        """Its position among the waiting requests of its tenant: lower goes first."""
        return self.priority, self.due, self.order

    def __lt__(self, other: Placement) -> bool:
        return self.key < other.key
