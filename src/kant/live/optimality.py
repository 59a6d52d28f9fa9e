"""How far a live Kant is from the optimum, computed outside the cycle: the latest look, with its age.

Looks are computed by a solver in another process, one after the other, with long pauses; all readers use the latest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from kant.cluster.state import ClusterState
from kant.insight.moment import moment_of
from kant.live.answers import pool_rows
from kant.live.core import Core
from kant.live.sentences import public_id
from kant.live.solver import Solver, SolverTask, failure
from kant.model.errors import InputError
from kant.model.units import GPU
from kant.optimize.answers import Optimality, Startable

EVERY = 60.0
"""Minimum seconds between two looks."""

REST = 10.0
"""After a look the solver pauses for this many times its duration."""

LOOK = 1.0
"""Seconds between two checks whether a look is due."""

WITHIN = 60.0
"""Seconds that a question waits for a look at the present."""


class OptimalityLooks:
    """The latest look at a core. `trouble` says why there is none, "" if there is one or none was requested yet."""

    def __init__(self, solver: Solver, clock: Callable[[], float] = time.monotonic) -> None:
        self.solver = solver
        self.clock = clock
        self.trouble = ""
        self._core: Core | None = None
        self._kept: Optimality | None = None
        self._mark = (0, 0)
        self._made = self._rests_until = float("-inf")

    def latest(self) -> tuple[Optimality, float] | None:
        """Return the latest look and its age in seconds; None before the first."""
        return None if self._kept is None else (self._kept, self.clock() - self._made)

    async def present(self, core: Core) -> Optimality:
        """Return a look at the core as it is now. Raises InputError where none can be made."""
        if self._kept is None or self._core is not core or self._mark != _mark(core):
            try:
                await asyncio.wait_for(self._look(core), WITHIN)
            except TimeoutError:
                raise InputError("the solver", f"one that answers within {WITHIN:g} s") from None
        if self._kept is None:
            raise InputError("the solver", f"one that answers ({self.trouble})")
        return self._kept

    async def keep_up(self, present: Callable[[], Core | None]) -> None:
        """Make looks while things change, until cancelled."""
        while True:
            core = present()
            due = core is not None and (self._core is not core or self._mark != _mark(core))
            if core is not None and due and self.clock() >= self._rests_until:
                try:
                    await self._look(core)
                except InputError as error:
                    self.trouble = str(error)
            await asyncio.sleep(LOOK)

    async def _look(self, core: Core) -> None:
        mark, began = _mark(core), self.clock()
        self._rests_until = began + EVERY
        answer = await self.solver(SolverTask("optimality", moment_of(core.scheduler, core.past, core.now, core.zero)))
        self.trouble = failure(answer)
        if self.trouble:
            raise InputError("the solver", f"one that answers ({self.trouble})")
        self._kept = msgspec.json.decode(answer, type=Optimality)
        self._core, self._mark, self._made = core, mark, self.clock()
        self._rests_until = self._made + max(EVERY, REST * (self._made - began))


def _mark(core: Core) -> tuple[int, int]:
    """Return a mark that changes when what a look sees has changed."""
    return core.state.job_changes.end, core.state.node_version


def status_json(state: ClusterState, now: int, zero: int = 0) -> dict[str, Any]:
    """Return the cluster's pools and the numbers of running and waiting jobs, as one object."""
    return {
        "time_us": now,
        "zero_us": zero,
        "running": len(state.running),
        "waiting": len(state.pending),
        "waiting_gpus": state.waiting_milli / GPU,
        "pools": pool_rows(state),
    }


def optimality_json(found: Optimality) -> dict[str, Any]:
    """Return a look for `--json`, with public job ids."""
    return {
        "as_of_us": found.time,
        "waiting": found.waiting,
        "waiting_gpus": found.waiting_milli / GPU,
        "held_back": found.held_back,
        "startable": {"in_place": _startable(found.in_place), "with_moves": _startable(found.with_moves)},
        "gangs": [msgspec.to_builtins(gang) for gang in found.gangs],
        "stranded_gpus": found.stranded_milli / GPU,
        "stranded": [
            {
                "queue": one.queue,
                "gpus": one.gpu_milli / GPU,
                "jobs": [{"job": public_id(job), "gpus": milli / GPU} for job, milli in one.jobs],
            }
            for one in found.stranded
        ],
        "left_out": found.left_out,
        "limit_s": found.limit_s,
    }


def _startable(found: Startable) -> dict[str, Any]:
    return {
        "jobs": [public_id(job) for job in found.jobs],
        "gpus": found.gpu_milli / GPU,
        "share": found.share,
        "moves": [public_id(job) for job in found.moves],
        "proven": found.proven,
    }
