"""The doors to the solvers of the extra `optimize`, opened only when one is asked for."""

from __future__ import annotations

from typing import Any

from kant.model.errors import InputError


def cp_sat() -> Any:
    """The module of OR-Tools' CP-SAT models, `ortools.sat.python.cp_model`; raises InputError where it is absent."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise InputError("this installation", "the extra `optimize` (pip install 'kant[optimize]')") from None
    return cp_model


def deterministic(limit: float) -> Any:
    """A CP-SAT solver that stops after `limit` deterministic seconds: a busy machine finds the same as an idle one."""
    solver = cp_sat().CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = limit
    return solver
