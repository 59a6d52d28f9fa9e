"""Records what an assistant does with `kant mcp`, so that runbooks can be compiled from these traces.

Each transaction ends a trace. The transaction's reason is the text of the task; the calls since the previous
transaction are the steps. A transaction that is undone counts as a failure, and its trace is removed.
"""

from __future__ import annotations

from pathlib import Path

from kant.ops.desk import Desk
from kant.ops.facts import facts_of, scope_of
from kant.ops.memory.slots import slots_of
from kant.ops.memory.traces import DONE, Answer, TaskTrace, TraceCall, TraceStep, write_trace
from kant.ops.text import one_line
from kant.ops.view import WorldView

MOST = 50
"""Maximum number of calls kept of an unfinished trace; older calls are dropped."""


class TraceRecorder:
    """Writes traces to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls: dict[str, list[tuple[TraceCall, WorldView, Answer]]] = {}

    def note(self, desk: Desk, tool: str, args: Answer, before: WorldView, answer: Answer) -> None:
        """Record a call on the caller's desk and its answer; `before` is the state before the call."""
        call = TraceCall(tool, args)
        calls = self._calls.setdefault(desk.who.user, [])
        calls.append((call, before, answer))
        del calls[:-MOST]
        if call.tool == "undo" and answer.get("state") == "applied":
            (self.folder / f"{one_line(str(call.args.get('txn')), 100)}.json").unlink(missing_ok=True)
            calls.clear()
        elif call.tool == "apply" and answer.get("state") == "applied":
            self._write(str(answer["txn"]), one_line(str(call.args["reason"])), calls, desk.world.view())
            calls.clear()

    def _write(self, txn: str, task: str, calls: list[tuple[TraceCall, WorldView, Answer]], after: WorldView) -> None:
        words, slots = slots_of(task, calls[0][1])
        trace = TaskTrace(task, slots, [], txn, words)
        for call, before, answer in (*calls, (TraceCall(DONE), after, {})):
            names = trace.names(call)
            own = TraceStep(call, facts_of(before, names), answer, scope_of(before, names), version=before.version)
            trace.steps.append(own)
        write_trace(self.folder, trace)
