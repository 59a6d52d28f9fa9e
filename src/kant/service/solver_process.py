"""The process that runs solvers and simulates policies: it reads tasks with frozen states, and writes answers."""

from __future__ import annotations

import pickle
import sys

import msgspec

from kant.live.solver import SolverTask, work_out
from kant.model.units import count_from
from kant.service.side_process import SideProcess, answer_all

PROCESS = (sys.executable, "-m", "kant.service.solver_process")


class SolverProcess(SideProcess):
    """A solver in a separate process. Call the object with a task; `close` ends the process."""

    def __init__(self, process: tuple[str, ...] = PROCESS) -> None:
        super().__init__(process, "the solver")

    async def __call__(self, task: SolverTask) -> bytes:
        """Return the answer to a task. Raises InputError if the process cannot answer."""
        return await self.ask(pickle.dumps(task, pickle.HIGHEST_PROTOCOL))


def answer(question: bytes) -> bytes:
    """Return the answer to a pickled task."""
    task = pickle.loads(question)
    assert isinstance(task, SolverTask)
    if task.what == "route":
        from kant.sim.look_ahead import look_ahead  # likewise the simulator

        count_from(task.moment.zero)
        return msgspec.json.encode(look_ahead(task.moment))
    return work_out(task)


if __name__ == "__main__":
    sys.exit(answer_all(answer))
