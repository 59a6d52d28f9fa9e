"""What a solver works out beside a scheduler that decides: a task with a frozen moment, and its answer as JSON.

No cycle waits for one. Who carries tasks out (a process, or in a simulation the caller itself) knows nothing of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from kant.insight.moment import Moment
from kant.model.errors import InputError
from kant.model.units import count_from
from kant.scheduler.cycle import Scheduler

What = Literal["optimality"]


@dataclass(frozen=True, slots=True)
class SolverTask:
    """What is to be worked out about a moment."""

    what: What
    moment: Moment


class Failed(msgspec.Struct, frozen=True):
    """The answer where there is none: one sentence."""

    error: str


Solver = Callable[[SolverTask], Awaitable[bytes]]
"""Works a task out away from the loop. Raises InputError where it cannot."""


async def no_solver(task: SolverTask) -> bytes:
    """Where there is none."""
    raise InputError("the solver", "one that was started with this Kant")


def work_out(task: SolverTask) -> bytes:
    """The answer of a task. A sentence where the extra `optimize` is not installed."""
    from kant.optimize.optimality import optimality

    moment = task.moment
    count_from(moment.zero)
    try:
        return msgspec.json.encode(optimality(Scheduler(moment.thawed(), moment.profile, moment.seed), moment.now))
    except InputError as error:
        return msgspec.json.encode(Failed(str(error)))


def failure(answer: bytes) -> str:
    """The sentence of an answer that is none, "" for one that is."""
    try:
        return msgspec.json.decode(answer, type=Failed).error
    except msgspec.DecodeError:
        return ""
