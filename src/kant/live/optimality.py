"""Compares the GPU use of a live Kant with the optimum, outside the scheduling cycle. Each result is called a look.

A solver in another process computes looks one after the other, with long pauses. All readers get the latest look, with
its age. The solver computes no look while nobody reads them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from kant.live.core import Core
from kant.live.solver import Solver, SolverTask, failure
from kant.model.errors import InputError
from kant.optimize.answers import Optimality

EVERY = 60.0
"""Minimum seconds between the starts of two looks."""

REST = 10.0
"""The pause of the solver after a look, as a multiple of the look's duration."""

LOOK = 1.0
"""Seconds between two checks of whether a look is due."""

WITHIN = 60.0
"""Seconds that a question waits for a look at the present state."""


class OptimalityLooks:
    """Computes looks at a core and keeps the latest. `trouble` says why the last attempt failed; "" if it did not."""

    def __init__(self, solver: Solver, clock: Callable[[], float] = time.monotonic) -> None:
        self.solver = solver
        self.clock = clock
        self.trouble = ""
        self._core: Core | None = None
        self._kept: Optimality | None = None
        self._is_read = False  # whether anybody has asked for a look since the last look began
        self._mark = (0, 0)
        self._made = self._rests_until = float("-inf")

    def latest(self) -> tuple[Optimality, float] | None:
        """Return the latest look and its age in seconds; None before the first. The call also requests another look."""
        self._is_read = True
        return None if self._kept is None else (self._kept, self.clock() - self._made)

    async def present(self, core: Core) -> Optimality:
        """Return a look at the present state of the core. Raises InputError if the solver does not compute it."""
        if self._kept is None or self._core is not core or self._mark != _mark(core):
            try:
                await asyncio.wait_for(self._look(core), WITHIN)
            except TimeoutError:
                raise InputError("the solver", f"an answer within {WITHIN:g} s: try again later") from None
        if self._kept is None:
            raise InputError("the solver", f"an answer ({self.trouble})")
        return self._kept

    async def keep_up(self, present: Callable[[], Core | None]) -> None:
        """Repeat the look while the core changes and someone reads the looks, until cancelled."""
        while True:
            core = present()
            due = self._is_read and core is not None and (self._core is not core or self._mark != _mark(core))
            if core is not None and due and self.clock() >= self._rests_until:
                try:
                    await self._look(core)
                except InputError as error:
                    self.trouble = str(error)
            await asyncio.sleep(LOOK)

    async def _look(self, core: Core) -> None:
        from kant.live.moments import present_moment  # nobody may ever read a look

        mark, began = _mark(core), self.clock()
        self._rests_until, self._is_read = began + EVERY, False
        answer = await self.solver(SolverTask("optimality", await present_moment(core)))
        self.trouble = failure(answer)
        if self.trouble:
            raise InputError("the solver", f"an answer ({self.trouble})")
        self._kept = msgspec.json.decode(answer, type=Optimality)
        self._core, self._mark, self._made = core, mark, self.clock()
        self._rests_until = self._made + max(EVERY, REST * (self._made - began))


def _mark(core: Core) -> tuple[int, int]:
    """Return a mark that changes when the input of a look has changed."""
    return core.state.job_changes.end, core.state.node_version
