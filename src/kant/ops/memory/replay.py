"""Replay: a task follows its runbook as far as possible; if the runbook has no next step, the model is asked.

Pre-conditions are checked again before each step. If someone else has changed a job, node or queue that the task names,
and nothing has been applied yet, the task restarts: the runbook may have a branch for the new situation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kant.ops.facts import facts_of, scope_of
from kant.ops.memory.runbooks import Found, Runbooks
from kant.ops.memory.traces import ACTS, TaskTrace, TraceCall, TracedTools, TraceStep, read_traces, write_trace

Model = Callable[[TaskTrace], TraceCall | None]
"""Chooses the next call of a task, such as a language model; returns None if it cannot choose."""
NOT_ITS_FAULT = ("stale", "person", "rate", "budget")
"""Refusals that do not count against the refused step."""
MOST_STEPS = 50
MOST_TIMES = 3
"""Maximum number of times that a task begins, including the first time."""


class RunbookRun:
    """One task, step by step. Its trace is written to `folder`, so that another process can continue it.

    `asked` counts the calls that the model chose, `replayed` the calls that a runbook chose, `made` all calls of tools.
    `stopped` says why the run cannot continue. `before` has the steps before the task restarted.
    """

    def __init__(
        self, task: str, tools: TracedTools, books: Runbooks, model: Model, folder: Path | None = None
    ) -> None:
        self.task, self.tools, self.books, self.model, self.folder = task, tools, books, model, folder
        self.asked = self.replayed = self.made = 0
        self.stopped = ""
        self.before: list[TraceStep] = []
        self.times = 0
        self.acted = False
        self._begin(self._unfinished())

    def _unfinished(self) -> TaskTrace | None:
        old = read_traces(self.folder) if self.folder is not None and self.folder.is_dir() else []
        return next((each for each in reversed(old) if each.task == self.task and not each.ended), None)

    def _begin(self, trace: TaskTrace | None, id: str = "") -> None:
        self.at: str | None = ""
        self.path: list[str] = []
        self.trace = trace or self.books.begin(self.task, self.tools.view())
        self.trace.id = id or self.trace.id
        self.times += 1
        for number, step in enumerate(self.trace.steps):
            if step.answer is None:
                self._call(step)
            self._done(number, self.books.follow(self.trace, self.at, number))

    def _write(self) -> None:
        if self.folder is not None:
            write_trace(self.folder, self.trace)

    def step(self) -> bool:
        """Choose the next call and make it. Returns whether there is more to do."""
        trace = self.trace
        if trace.ended or self.stopped or len(trace.steps) + len(self.before) >= MOST_STEPS:
            self.stopped = self.stopped or ("" if trace.ended else f"the task has not ended after {MOST_STEPS} calls")
            return False
        view = self.tools.view()
        changed = self.books.changed(trace, view)
        if (changed or trace.last.get("refused") == "stale") and not self.acted and self.times < MOST_TIMES:
            self.before += trace.steps
            self._begin(None, trace.id)
            return True
        known = self.at is not None and not changed
        found = self.books.next(trace, str(self.at), view) if known else Found(why="no runbook covers this situation")
        call, by = found.call, found.step
        if call is None:
            call = self.model(trace)
            view = self.tools.view()
            if call is None:
                self.stopped = found.why
                return False
        self.asked += by is None
        self.replayed += by is not None
        if call.tool == "submit":
            call = TraceCall(call.tool, {"key": f"{trace.id}-{len(trace.steps)}"} | call.args)
        names = trace.names(call)
        facts, scope = facts_of(view, names), scope_of(view, names)
        own = TraceStep(call, facts, None, scope, "runbook" if by else "model", view.version)
        trace.steps.append(own)
        self._write()
        self._call(own)
        self._done(len(trace.steps) - 1, by.id if by else self.books.follow(trace, self.at, len(trace.steps) - 1))
        return not trace.ended

    def _call(self, step: TraceStep) -> None:
        """Make a call, and retry once if the tool fails: tools are idempotent."""
        for last in (False, True):
            self.made += 1
            try:
                step.answer = self.tools.call(step.call)
                break
            except OSError as error:
                if last:
                    step.answer = {"error": type(error).__name__}
        assert step.answer is not None
        self._write()

    def _done(self, number: int, at: str | None) -> None:
        """Advance the position in the runbook beyond this step, and mark a runbook step that was refused."""
        step = self.trace.steps[number]
        answer = step.answer or {}
        self.at = at
        refused = answer.get("refused") or answer.get("error") or ""
        self.acted = self.acted or (step.call.tool in ACTS and not answer.get("refused"))
        if self.at is not None:
            self.path.append(self.at)
            if step.by == "runbook" and refused and refused not in NOT_ITS_FAULT:
                self.books.doubt(self.trace, self.at, f"it was refused: {refused}")

    def run(self) -> RunbookRun:
        """Run all steps."""
        while self.step():
            pass
        return self

    def learn(self, good: bool) -> None:
        """Learn the trace if the run was `good`; otherwise mark the runbook's steps that plan or act as stale."""
        if good and self.trace.ended:
            self.books.learn(self.trace)
        elif not good:
            acts = {"plan", *ACTS}
            for step, at in zip(self.trace.steps, self.path, strict=False):
                if step.by == "runbook" and step.call.tool in acts:
                    self.books.doubt(self.trace, at, "the task has not succeeded")
