"""The run of a leader, from one build of its state to the next: the core, and the record of what happened.

The code for answers is imported with the first request (`serve/questions`).
"""

from __future__ import annotations

import secrets

from kant.kube.connect.ticket import NOT_LEADING
from kant.live.core import Core
from kant.live.optimality import OptimalityLooks
from kant.live.record import RunRecord
from kant.live.solver import Solver, no_solver
from kant.live.start_forecasts import StartForecasts
from kant.model.errors import InputError
from kant.model.units import count_from


class NotLeadingError(InputError):
    """This replica does not lead."""

    reason = NOT_LEADING

    def __init__(self) -> None:
        super().__init__("this replica", "the leader, once it has read the cluster: ask again, or ask another replica")


class LedRun:
    """The run of this replica, with a core while it leads. `optimality` has the solver's results on the run."""

    def __init__(self, forecasts: StartForecasts, solver: Solver = no_solver) -> None:
        self.forecasts = forecasts
        self.optimality = OptimalityLooks(solver)
        self._core: Core | None = None
        self._run: RunRecord | None = None

    def follow(self, core: Core) -> None:
        """Use a new core, whose state is about to be built."""
        self._core = core
        self._run = RunRecord(
            core.state, secrets.token_hex(4), zero=core.zero, profile=core.profile.name, waits=core.waits
        )
        core.observers.append(self._run)

    def leave(self) -> None:
        """Drop the core, since another replica leads."""
        self._core = self._run = None

    @property
    def mark(self) -> tuple[object, ...]:
        """A value that changes with every change of a job, a node or the run; () while this replica does not lead."""
        run = self._run
        return () if run is None else (run.name, run.jobs.log.end, run.pieces.log.end, len(run.nodes))

    def present(self) -> tuple[Core, RunRecord]:
        """Return the core and its record. Raises NotLeadingError if there is no core, or its state is incomplete."""
        if self._run is None or (core := self.settled_core()) is None:
            raise NotLeadingError
        count_from(core.zero)
        return core, self._run

    def settled_core(self) -> Core | None:
        """Return the core; None if there is no core, or its state is incomplete."""
        return self._core if self._core is not None and self._core.is_settled else None
