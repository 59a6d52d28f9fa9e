"""A world: what operations look at and act on. A running Kant, a journal and a simulated cluster are worlds."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct, field

from kant.ops.habits import EndedJob
from kant.ops.orders import Order
from kant.ops.view import View
from kant.service.roles import Caller


class Done(Struct, frozen=True, omit_defaults=True):
    """What an order has done. `undo` has the orders that take it back; `cannot` says why there are none.

    `job` is the job that it was about, or that came of it.
    """

    order: Order
    job: str = ""
    undo: tuple[Order, ...] = ()
    cannot: str = ""


class Futures(Struct, frozen=True, kw_only=True):
    """What becomes of everybody with a change and without.

    `answer` is what `kant whatif --json` prints. `stopped` are the jobs that stop more often with the change,
    `starts` those that start at once by it, `rejected` those that are given back. `moves` says where jobs go that it
    moves. `complaint`: why there is none. `unknown`: of which orders the effect is not in it.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    complaint: str = ""
    unknown: str = ""


class World(Protocol):
    """What can be asked of a cluster and ordered of it. `carries` are the kinds of orders that it carries out.

    Each method raises InputError with one sentence.
    """

    kind: str
    carries: frozenset[str]

    def caller(self) -> Caller | None:
        """Who asks, where the world itself knows that."""
        ...

    def now(self) -> int:
        """Microseconds on the clock of this world."""
        ...

    def view(self) -> View:
        """How it stands now."""
        ...

    def job(self, job: str) -> dict[str, Any]:
        """All that is known of a job, also of one that is over."""
        ...

    def why(self, job: str) -> dict[str, Any]:
        """Why a job waits (docs/why.md)."""
        ...

    def eta(self, job: str) -> list[dict[str, Any]]:
        """When the waiting jobs, or one, are expected to start."""
        ...

    def explain(self, job: str) -> dict[str, Any]:
        """Why a job has the place that it has."""
        ...

    def usage(self, by: str) -> list[dict[str, Any]]:
        """What jobs have used, by user or queue."""
        ...

    def events(self, since: int) -> list[dict[str, Any]]:
        """What has happened after a time, in order."""
        ...

    def ended(self) -> list[EndedJob]:
        """The jobs that are over, of which habits are learned."""
        ...

    def log(self, job: str) -> str:
        """What a job has written: text of a tenant."""
        ...

    def rights(self, order: Order) -> str | None:
        """Why the caller may not give an order, "" if they may; None where roles and queues decide that."""
        ...

    def futures(self, orders: tuple[Order, ...]) -> Futures:
        """What these orders would do to everybody, by two simulated futures."""
        ...

    def carry_out(self, order: Order, who: Caller) -> Done:
        """Do it now. A simulated world decides what follows when it is told to `settle`."""
        ...

    def settle(self) -> None:
        """All orders of a transaction are carried out."""
        ...
