"""The agent with memory: it replays runbooks, and asks another agent if no runbook has the next step."""

from __future__ import annotations

from typing import Any

from kant.ops.bench.agents import BenchAgent, FinalAnswer, Instruction
from kant.ops.bench.run import AttemptRow
from kant.ops.bench.tools import ToolCall, Tools
from kant.ops.memory.replay import RunbookRun
from kant.ops.memory.runbooks import Runbooks
from kant.ops.memory.traces import DONE, Answer, TaskTrace, TraceCall
from kant.ops.view import WorldView


class Remembering:
    """Does a task by runbooks and learns from the attempts that pass. `asked` counts the calls that `inner` chose.

    `inner` is restarted for each choice and is given the answers to the calls made so far. So its choices must depend
    only on its instruction and on answers, as those of scripted agents do.
    """

    name = "replay"

    def __init__(self, inner: BenchAgent, books: Runbooks) -> None:
        self.inner, self.books = inner, books
        self.asked = self.steps = 0
        self._last: RunbookRun | None = None

    def work(self, instruction: Instruction, tools: Tools) -> FinalAnswer:
        def model(trace: TaskTrace) -> TraceCall:
            again = _Again(trace, tools)
            try:
                return TraceCall(DONE, self.inner.work(instruction, again))  # type: ignore[arg-type]
            except _WantedError as wanted:
                return wanted.call

        self._last = RunbookRun(instruction.text, _Suite(tools), self.books, model).run()
        self.asked += self._last.asked
        self.steps += len(self._last.before) + len(self._last.trace.steps)
        return self._last.trace.steps[-1].call.args if self._last.trace.ended else {}

    def seen(self, row: AttemptRow) -> None:
        """Learn from an attempt after it was judged."""
        if self._last is not None:
            self._last.learn(row.passed)
            self._last = None


class _Suite:
    """The tools of the suite, in the form in which `RunbookRun` calls tools."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    def view(self) -> WorldView:
        return self.tools.desk.world.view()

    def call(self, call: TraceCall) -> Answer:
        return self.tools(call.tool, **call.args) if call.tool != DONE else {}


class _WantedError(Exception):
    """Carries the first call that has not been made yet."""

    def __init__(self, call: TraceCall) -> None:
        self.call = call


class _Again:
    """Tools that return the recorded answers, up to the first call that has not been made yet."""

    def __init__(self, trace: TaskTrace, tools: Tools) -> None:
        self.kind, self.names = tools.kind, tools.names
        self.calls: list[ToolCall] = []
        self._made = list(trace.steps)

    def __call__(self, tool: str, /, **arguments: Any) -> Answer:
        while self._made:
            step = self._made.pop(0)
            if (step.call.tool, _plain(step.call.args)) == (tool, _plain(arguments)):
                self.calls.append(ToolCall(tool, arguments, step.answer or {}))
                return step.answer or {}
        raise _WantedError(TraceCall(tool, arguments))


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if key not in ("reason", "key")}
