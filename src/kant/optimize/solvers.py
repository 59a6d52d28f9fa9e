"""Access to the solvers of the extra `optimize`, which are imported only on demand."""

from __future__ import annotations

from typing import Any

from kant.model.errors import missing_extra


def cp_sat() -> Any:
    """The module of OR-Tools' CP-SAT models, `ortools.sat.python.cp_model`; raises InputError if it is absent."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise missing_extra("optimize") from None
    return cp_model


def deterministic(limit: float, seed: int = 0) -> Any:
    """A CP-SAT solver with one worker that stops after `limit` deterministic seconds.

    Deterministic seconds count the solver's own steps, about a core-second each. So the same model gives the same
    answer on a busy machine and on an idle one. No solver of Kant has a limit by the clock.
    """
    solver = cp_sat().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = limit
    return solver
