"""Access to the solvers of the extra `optimize`, which are imported only on demand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any

from kant.model.errors import missing_extra

HEARD_S = 0.05
"""Seconds after which a request to stop a search is repeated, if the search has not ended."""


def cp_sat() -> Any:
    """The module of OR-Tools' CP-SAT models, `ortools.sat.python.cp_model`. Raises InputError if it is missing."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise missing_extra("optimize") from None
    return cp_model


def deterministic(limit: float, seed: int = 0) -> Any:
    """A CP-SAT solver with one worker that stops after `limit` deterministic seconds.

    Deterministic seconds count the solver's own steps; each is about one core-second. So the same model gives the same
    answer on a busy machine and on an idle one. No solver of Kant has a limit in wall-clock time.

    Ctrl-C during a search ends it and raises KeyboardInterrupt, or calls the handler that the process has set.
    """
    solver = _interruptible()()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = limit
    solver.parameters.catch_sigint_signal = False
    return solver


@cache
def _interruptible() -> type[Any]:
    """CP-SAT's solver in a thread of its own, so that the caller's signal handlers run during a search.

    CP-SAT's own handler of SIGINT would end the search and return its present solution as if it were the answer. It
    would also restore the default handler, so that the next SIGINT kills the process.
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
