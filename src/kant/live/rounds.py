"""Rounds of a live core: in each a solver computes a proposal (jobs to start or move) in parallel to the scheduler.

The event loop never waits for the solver, but checks whether a proposal has arrived. If the solver is absent, too slow
or killed, `trouble` says so in a sentence that is logged once, and the next round tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from kant.live.core import Core
from kant.live.logs import log_event
from kant.live.moments import present_moment
from kant.live.solver import Solver, SolverTask, failure
from kant.model.errors import InputError
from kant.model.event import PlanProposed, PolicyRouted
from kant.optimize.answers import Round

if TYPE_CHECKING:
    from kant.optimize.rounds import Rounds

log = logging.getLogger("kant.solver")


def all_jobs(core: Core) -> frozenset[str] | None:
    """Return None, which stands for all jobs that the profile lets move."""
    return None


class LiveRounds:
    """The rounds of the present core. `movable` returns the jobs that may be moved (None: all the profile lets move).

    `most_starts` limits the jobs that one proposal may start (0: as the profile says). `wake` is called after a round.
    """

    def __init__(
        self,
        solver: Solver,
        wake: Callable[[], None] = lambda: None,
        movable: Callable[[Core], frozenset[str] | None] = all_jobs,
        most_starts: int = 0,
    ) -> None:
        self.solver = solver
        self.wake = wake
        self.movable = movable
        self.most_starts = most_starts
        self.trouble = ""
        self._core: Core | None = None
        self._rounds: Rounds | None = None
        self._asking: asyncio.Task[None] | None = None
        self._there: PlanProposed | PolicyRouted | None = None

    def turn(self, core: Core) -> PlanProposed | PolicyRouted | None:
        """Return the proposal that has arrived for this core, or None. Begins the next round if that is due."""
        profile = core.profile
        if not profile.asks:
            return None
        if self._core is not core or self._rounds is None:
            from kant.optimize.rounds import Rounds  # most profiles have no rounds

            learned = self._rounds.learned if self._rounds is not None else None
            self._core, self._rounds, self._there = core, Rounds(profile, core.now), None
            if learned is not None and len(learned.wanted) == len(core.state.pools):
                self._rounds.learned = learned
        if self._asking is None and self._rounds.is_due(core.now):
            begun = self._rounds.begin(core.state, core.now)
            if begun:
                self._asking = asyncio.get_running_loop().create_task(self._ask(core, begun))
        there, self._there = self._there, None
        return there

    def close(self) -> None:
        """Cancel the round in progress."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, core: Core, begun: list[Round]) -> None:
        assert self._rounds is not None
        try:
            for what in begun:
                movable = self.movable(core)
                moment = await present_moment(core)
                task = SolverTask(what, moment, self._rounds.learned, movable, self.most_starts)
                answer = await self.solver(task)
                if sentence := failure(answer):
                    raise InputError("the solver", f"an answer ({sentence})")
                found = msgspec.json.decode(answer, type=PlanProposed | PolicyRouted | None)
                if isinstance(found, PolicyRouted):
                    log_event(log, f"{found.policy} acts: {found.why}", decision="route")
                if found is not None and self._core is core:
                    self._there = found
                    break
            self._say("")
        except (InputError, msgspec.DecodeError) as error:
            self._say(str(error))
        finally:
            self._asking = None
            self.wake()

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log_event(log, trouble, logging.WARNING)
        self.trouble = trouble
