"""A world is the cluster that operations look at and change: a running Kant, a journal or a simulated cluster."""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct, field

from kant.ops.habits import EndedJob
from kant.ops.orders import Order
from kant.ops.view import WorldView
from kant.service.roles import Caller


class Done(Struct, frozen=True, omit_defaults=True):
    """The effect of an order. `undo` has the orders that revert it; `cannot` says why it cannot be reverted.

    `job` is the job that the order names or creates.
    """

    order: Order
    job: str = ""
    undo: tuple[Order, ...] = ()
    cannot: str = ""


class OrderFutures(Struct, frozen=True, kw_only=True):
    """The effect of a change on all jobs, from two simulated futures, with the change and without.

    `answer` is what `kant whatif --json` prints. `stopped` holds the jobs that stop more often with the change,
    `starts` the jobs that start at once because of it, `rejected` the jobs that are rejected because of it. `moves`
    says where it moves jobs. `complaint`: why the change is impossible. `unknown`: orders whose effect is not included.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    stopped: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    complaint: str = ""
    unknown: str = ""


class World(Protocol):
    """A cluster that answers questions and carries out orders, of the kinds in `carries`.

    Each method may raise InputError with one sentence.
    """

    kind: str
    carries: frozenset[str]

    def caller(self) -> Caller | None:
        """Return the caller, if the world itself knows it."""
        ...

    def now(self) -> int:
        """Return the time in microseconds on the clock of this world."""
        ...

    def view(self) -> WorldView:
        """The present state."""
        ...

    def job(self, job: str) -> dict[str, Any]:
        """Everything known about a job, also after its end."""
        ...

    def why(self, job: str) -> dict[str, Any]:
        """Why a job waits (docs/why.md)."""
        ...

    def eta(self, job: str) -> list[dict[str, Any]]:
        """Return when the waiting jobs, or only `job` (not ""), are expected to start."""
        ...

    def explain(self, job: str) -> dict[str, Any]:
        """Why a job has its present place."""
        ...

    def usage(self, by: str) -> list[dict[str, Any]]:
        """Return the GPU-seconds that jobs have used, `by` user or queue."""
        ...

    def events(self, since: int) -> list[dict[str, Any]]:
        """The events after a time, in order."""
        ...

    def ended(self) -> list[EndedJob]:
        """The ended jobs, from which habits are learned."""
        ...

    def log(self, job: str) -> str:
        """Return the log of a job. It is text that a tenant wrote."""
        ...

    def rights(self, order: Order) -> str | None:
        """Return why the caller may not give an order ("": they may); None if the rules for roles decide this."""
        ...

    def futures(self, orders: tuple[Order, ...]) -> OrderFutures:
        """Return the effect of these orders on all jobs, from two simulated futures."""
        ...

    def carry_out(self, order: Order, who: Caller) -> Done:
        """Carry out an order now. A simulated world decides the consequences only in `settle`."""
        ...

    def settle(self) -> None:
        """Complete a transaction, after all its orders are carried out."""
        ...
