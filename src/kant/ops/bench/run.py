"""Runs agents on tasks, several times each, and counts: pass@1, pass@k, pass^k, turns, violations.

Each attempt has a world of its own. Results are lines of a file, so an interrupted run resumes where it stopped. Only
attempts that failed without a fault of the agent are repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from kant.model.errors import InputError
from kant.ops.bench.agents import BenchAgent, Instruction, PipelineError
from kant.ops.bench.task import BenchTask
from kant.ops.bench.tools import EndedError, Kind, ToolCall, Tools
from kant.ops.bench.verify import judge, violations_left

TRIES = 3
"""How often an attempt is made in one run if the pipeline fails."""


PAUSE_S = 2.0
"""Seconds before the second try; twice as many before the third."""


class AttemptRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One attempt of an agent at a task.

    `complaints` has the sentences of each failed check of the verifier. `attempted` is the number of calls that the
    rules refused, plus the number of violations that plans showed. `committed` names the changes that were made
    although they were not requested or are forbidden. `ended` says why the agent had to stop; `calls` has its calls of
    tools. `error` says why the attempt itself failed, so that its result is unknown.
    """

    task: str
    agent: str
    tools: Kind = "desk"
    attempt: int
    passed: bool
    complaints: dict[str, list[str]] = field(default_factory=dict)
    turns: int = 0
    attempted: int = 0
    committed: list[str] = field(default_factory=list)
    ended: str = ""
    error: str = ""
    answer: dict[str, Any] = field(default_factory=dict)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.task, self.agent, self.tools, self.attempt


def attempt(task: BenchTask, agent: BenchAgent, number: int = 1, kind: Kind = "desk", most: int = 100) -> AttemptRow:
    """Make one attempt of an agent at a task, in a new world, and judge the result. Raises PipelineError."""
    world = task.world()
    before = world.view()
    desk = task.desk(world)
    tools = Tools(desk, kind, most)
    answer: dict[str, Any] = {}
    ended = ""
    try:
        answer = agent.work(Instruction(task.name, task.text, task.ask, number), tools)
    except EndedError as error:
        ended = str(error)
    committed = violations_left(task, before, world.view())
    verdict = judge(task, before, world, answer, desk.audit.entries if kind == "desk" else None)
    return AttemptRow(
        task=task.name, agent=agent.name, tools=kind, attempt=number, passed=verdict.passed and not ended,
        complaints=verdict.complaints(), turns=len(tools.calls), attempted=tools.attempted, committed=committed,
        ended=ended, answer=answer, calls=tools.calls,
    )  # fmt: skip


def bench(
    tasks: Sequence[BenchTask], agent: BenchAgent, k: int = 4, kind: Kind = "desk", out: Path | None = None,
    seen: Callable[[AttemptRow], None] = lambda row: None, most: int = 100,
) -> list[AttemptRow]:  # fmt: skip
    """Make `k` attempts of an agent at each task, without those that `out` already contains. Raises InputError."""
    known = {row.key: row for row in read_rows(out)} if out is not None else {}
    rows = []
    for task in tasks:
        for number in range(1, k + 1):
            row = known.get((task.name, agent.name, kind, number))
            if row is None or row.error:
                row = _tried(task, agent, number, kind, most)
                if out is not None:
                    _add(out, row)
            rows.append(row)
            seen(row)
    return rows


def _tried(task: BenchTask, agent: BenchAgent, number: int, kind: Kind, most: int) -> AttemptRow:
    error = ""
    for again in range(TRIES):
        if again:
            time.sleep(PAUSE_S * again)
        try:
            return attempt(task, agent, number, kind, most)
        except PipelineError as failure:
            error = str(failure)
    return AttemptRow(task=task.name, agent=agent.name, tools=kind, attempt=number, passed=False, error=error)


def read_rows(path: Path) -> list[AttemptRow]:
    """Read the rows of a file; [] if the file does not exist. An incomplete last line is ignored. Raises InputError."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(msgspec.json.decode(line, type=AttemptRow))
        except msgspec.MsgspecError as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise InputError(f"{path}:{number}", f"a line of results of kant ops bench ({error})") from None
    return rows


def _add(path: Path, row: AttemptRow) -> None:
    try:
        text = path.read_bytes() if path.exists() else b""
        with path.open("wb" if text and not text.endswith(b"\n") else "ab") as file:
            if text and not text.endswith(b"\n"):
                file.write(text[: text.rfind(b"\n") + 1])
            file.write(msgspec.json.encode(row) + b"\n")
    except OSError as error:
        raise InputError(str(path), f"a file that can be written ({error})") from None


def traces(rows: Iterable[AttemptRow]) -> dict[str, tuple[list[ToolCall], dict[str, Any]]]:
    """Return by task the calls and the answer of the first attempt that passed."""
    found: dict[str, tuple[list[ToolCall], dict[str, Any]]] = {}
    for row in rows:
        if row.passed:
            found.setdefault(row.task, (row.calls, row.answer))
    return found


class Score(Struct, frozen=True):
    """A summary of rows. `pass_1` is the share of attempts that passed, `pass_any` (pass@k) the share of tasks that
    passed at least once, `pass_all` (pass^k) the share of tasks that passed every time. `errors`: attempts with unknown
    result.
    """

    tasks: int
    attempts: int
    pass_1: float
    pass_any: float
    pass_all: float
    turns: float
    attempted: int
    committed: int
    errors: int

    @classmethod
    def of(cls, rows: Iterable[AttemptRow]) -> Score:
        every = list(rows)
        known = [row for row in every if not row.error]
        by_task: dict[str, list[bool]] = {}
        for row in known:
            by_task.setdefault(row.task, []).append(row.passed)

        def share(passed: Iterable[bool]) -> float:
            own = list(passed)
            return round(sum(own) / len(own), 4) if own else 0.0

        return cls(
            tasks=len(by_task), attempts=len(known), pass_1=share(row.passed for row in known),
            pass_any=share(any(each) for each in by_task.values()),
            pass_all=share(all(each) for each in by_task.values()),
            turns=round(sum(row.turns for row in known) / len(known), 2) if known else 0.0,
            attempted=sum(row.attempted for row in known), committed=sum(len(row.committed) for row in known),
            errors=len(every) - len(known),
        )  # fmt: skip
