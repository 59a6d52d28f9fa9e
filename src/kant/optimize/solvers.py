"""Access to the solvers of the extra `optimize`, which are imported only on demand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

from kant.model.errors import missing_extra

HEARD_S = 0.05
"""Seconds after which a request to stop a search is repeated, if the search has not ended."""


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

    Ctrl-C during a search ends it and raises KeyboardInterrupt, or calls whatever handler the process has set.
    """
    solver = _interruptible()()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = limit
    solver.parameters.catch_sigint_signal = False
    return solver


@cache
def _interruptible() -> type[Any]:
    """CP-SAT's solver in a thread next to the caller, so that the caller's signal handlers run while it searches.

    CP-SAT's own handler of SIGINT would end the search and return its present solution as if it were the answer. CP-SAT
    also restores the default handler, by which the next SIGINT kills the process.
    """
    base: type[Any] = cp_sat().CpSolver

    class Interruptible(base):  # type: ignore[misc]
        def solve(self, *given: Any) -> Any:
            with ThreadPoolExecutor(1) as thread:
                found = thread.submit(super().solve, *given)
                try:
                    return found.result()
                except BaseException:
                    while not found.done():
                        self.stop_search()  # a search that has not begun ignores this call
                        wait([found], HEARD_S)
                    raise

    return Interruptible
