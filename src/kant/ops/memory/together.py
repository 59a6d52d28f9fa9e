"""Several tasks at once, where they are about different things: their looks and the model's thinking overlap.

A plan is void once anything has changed, so from a plan to its apply one task is alone. A task that is about something
that one before it is about waits for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

from kant.ops.facts import about
from kant.ops.memory.replay import Run
from kant.ops.memory.slots import slots_of
from kant.ops.memory.traces import Answer, Call, Tools
from kant.ops.view import View

MOST_AT_ONCE = 8


class _InTurn:
    """The tools of one of several tasks: from a plan to what comes of it no other task plans or acts."""

    def __init__(self, tools: Tools, turn: Lock) -> None:
        self.tools, self.turn, self.mine = tools, turn, False
        self.view = tools.view

    def call(self, call: Call) -> Answer:
        if call.tool in ("plan", "undo", "submit") and not self.mine:
            self.turn.acquire()
            self.mine = True
        try:
            return self.tools.call(call)
        finally:
            if call.tool != "plan":
                self.leave()

    def leave(self) -> None:
        if self.mine:
            self.mine = False
            self.turn.release()


def waits_for(tasks: Sequence[str], view: View) -> list[list[int]]:
    """For each task those before it that are about something that it is about, too."""
    scopes = [about(view, [str(value) for value in slots_of(task, view)[1].values()]).keys() for task in tasks]
    return [[n for n in range(m) if scopes[n] & scopes[m]] for m in range(len(tasks))]


def run_together(tasks: Sequence[str], tools: Tools, begin: Callable[[str, Tools], Run]) -> list[Run]:
    """Do all of them; `begin` makes the run of each. One that waits for one that came to no end is not begun."""
    turn = Lock()
    found: list[Future[Run]] = []

    def one(task: str, earlier: list[Future[Run]]) -> Run:
        stopped = [each.result().task for each in earlier if not each.result().trace.ended]
        own = _InTurn(tools, turn)
        run = begin(task, own)
        if stopped:
            run.stopped = f"it is about what `{stopped[0]}` is about, and that is not over"
        try:
            return run.run()
        finally:
            own.leave()

    with ThreadPoolExecutor(min(MOST_AT_ONCE, max(1, len(tasks)))) as pool:
        for task, before in zip(tasks, waits_for(tasks, tools.view()), strict=True):
            found.append(pool.submit(one, task, [found[n] for n in before]))
    return [each.result() for each in found]
