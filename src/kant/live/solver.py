"""The tasks of a solver, which runs in parallel to the scheduler: a frozen state, and the answer as JSON.

No cycle waits for a solver. A process carries out the tasks; in a simulation, the caller does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from kant.model.errors import InputError
from kant.model.units import count_from
from kant.optimize.answers import DefragmentOrder, LearnedShares, Round
from kant.scheduler.cycle import Scheduler

if TYPE_CHECKING:
    from kant.insight.moment import Moment

What = Literal["optimality"] | Round


NOTHING = LearnedShares()


@dataclass(frozen=True, slots=True)
class SolverTask:
    """A computation about the frozen state `moment`; `what` names it.

    A round needs the `learned` facts about the queue, the `movable` jobs (None: all that the profile lets move), and
    how many jobs a proposal may start (0: as the profile says). For an `order` of defragmentation the answer has the
    changes of that round (`DefragmentPlan`).
    """

    what: What
    moment: Moment
    learned: LearnedShares = NOTHING
    movable: frozenset[str] | None = None
    most_starts: int = 0
    order: DefragmentOrder | None = None


class Failed(msgspec.Struct, frozen=True):
    """The answer to a task that failed: one sentence says why."""

    error: str


Solver = Callable[[SolverTask], Awaitable[bytes]]
"""Carries out a task outside the event loop. Raises InputError if that fails."""


async def no_solver(task: SolverTask) -> bytes:
    """Raise InputError, which says that there is no solver."""
    raise InputError("the solver", "a Kant that was started with a solver process")


def work_out(task: SolverTask) -> bytes:
    """Return the answer to a task; a `Failed` answer if the extra `optimize` is not installed."""
    from kant.optimize.defragment_round import defragment_round
    from kant.optimize.optimality import optimality
    from kant.optimize.proposals import propose

    moment, profile = task.moment, task.moment.profile
    count_from(moment.zero)
    if task.most_starts and profile.fallback is not None:
        most = min(profile.fallback.most_jobs, task.most_starts)
        profile = replace(profile, fallback=msgspec.structs.replace(profile.fallback, most_jobs=most))
    scheduler = Scheduler(moment.thawed(), profile, moment.seed)
    try:
        if task.what == "optimality":
            return msgspec.json.encode(optimality(scheduler, moment.now))
        if task.order is not None:
            return msgspec.json.encode(defragment_round(scheduler, moment.now, task.order, task.movable))
        return msgspec.json.encode(propose(task.what, scheduler, moment.now, task.learned, task.movable))
    except InputError as error:
        return msgspec.json.encode(Failed(str(error)))


def failure(answer: bytes) -> str:
    """Return the sentence of a `Failed` answer; "" for any other answer."""
    try:
        return msgspec.json.decode(answer, type=Failed).error
    except msgspec.DecodeError:
        return ""
