"""The solver's process: it reads tasks about moments from its input and writes answers to its output."""

from __future__ import annotations

import pickle
import sys

from kant.live.solver import SolverTask, work_out
from kant.service.side_process import SideProcess, answer_all

PROCESS = (sys.executable, "-m", "kant.service.solver_process")


class SolverProcess:
    """A solver in a separate process. Call it with a task; `close` ends it."""

    def __init__(self, process: tuple[str, ...] = PROCESS) -> None:
        self._side = SideProcess(process, "the solver")

    async def __call__(self, task: SolverTask) -> bytes:
        """Return the answer to a task. Raises InputError if the process cannot answer."""
        return await self._side.ask(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))

    async def close(self) -> None:
        """End the process."""
        await self._side.close()


def answer(question: bytes) -> bytes:
    """Return the answer to a pickled task."""
    task = pickle.loads(question)
    assert isinstance(task, SolverTask)
    return work_out(task)


if __name__ == "__main__":
    sys.exit(answer_all(answer))
