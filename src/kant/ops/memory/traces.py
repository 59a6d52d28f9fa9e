"""Traces: the calls of one task, with the facts known before each and its result.

A trace is written before and after each call, so that it can be continued after a kill: at most one call without an
answer is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec import Struct, field

from kant.files import write_bytes
from kant.model.errors import InputError
from kant.ops.desk import Desk, refused
from kant.ops.look import LOOKS
from kant.ops.text import meant, one_line
from kant.ops.view import WorldView

Answer = dict[str, Any]
DONE = "done"
"""The name of the call that ends a task; its arguments are the task's answer."""
ACTS = ("apply", "undo", "submit")


class TraceCall(Struct, frozen=True):
    """A call of a tool."""

    tool: str
    args: dict[str, Any] = field(default_factory=dict)


class TraceStep(Struct, omit_defaults=True):
    """A call of a task, the earlier facts about everything named so far, and the answer to the call (None: unknown).

    `scope` is a digest of the facts that concerned the task before the call, `version` a digest of the whole state.
    `by` says who chose the call: the model, or a runbook.
    """

    call: TraceCall
    facts: dict[str, str] = field(default_factory=dict)
    answer: Answer | None = None
    scope: str = ""
    by: Literal["model", "runbook"] = "model"
    version: str = ""


class TaskTrace(Struct):
    """A task, the values of its slots (the names and numbers in its text), and its steps so far. `id` is unique.

    `words` is the text of the task with slots in place of the values.
    """

    task: str
    slots: dict[str, Any] = field(default_factory=dict)
    steps: list[TraceStep] = field(default_factory=list)
    id: str = ""
    words: str = ""

    @property
    def ended(self) -> bool:
        return bool(self.steps) and self.steps[-1].call.tool == DONE and self.steps[-1].answer is not None

    def names(self, call: TraceCall | None = None) -> list[str]:
        """Return the names in the task, in its calls so far, and in `call`."""
        calls = [step.call for step in self.steps] + ([call] if call is not None else [])
        named = (text for each in calls for _, text in labels_of(each.args, ""))
        return [*map(str, self.slots.values()), *map(meant, named)]

    @property
    def last(self) -> Answer:
        """The latest answer; {} before the first."""
        return (self.steps[-1].answer or {}) if self.steps else {}


class TracedTools(Protocol):
    """The tools of an assistant, and a view of the state in which pre-conditions are checked."""

    def call(self, call: TraceCall) -> Answer:
        """Call a tool; a refusal is an answer too, with `refused` and `sentence`."""
        ...

    def view(self) -> WorldView:
        """The present state."""
        ...


class DeskTools:
    """The tools of `kant mcp` on a local desk. `agreed` asks a person; it returns the approver's name ("": refused)."""

    def __init__(self, desk: Desk, agreed: Callable[[str], str] = lambda question: "") -> None:
        self.desk, self.agreed = desk, agreed

    def view(self) -> WorldView:
        with self.desk.alone():
            return self.desk.world.view()

    def call(self, call: TraceCall) -> Answer:
        if call.tool == DONE:
            return {}
        act = getattr(self.desk, call.tool) if call.tool in (*ACTS, "plan") else None
        if act is None and call.tool not in LOOKS:
            return {"refused": "input", "sentence": f"tool {one_line(call.tool, 100)} does not exist"}
        found = self._answer(act or partial(LOOKS[call.tool], self.desk), call.args)
        if call.tool == "apply" and found.get("refused") == "person":
            yes = self.agreed(self.desk.question(call.args["plan_id"]))
            found = self._answer(self.desk.apply, call.args | {"approved": yes}) if yes else found
        return found

    def _answer(self, act: Callable[..., Answer], args: dict[str, Any]) -> Answer:
        try:
            with self.desk.audit.locked():
                return act(**args)
        except (InputError, TypeError) as error:
            return refused(error)


def labels_of(args: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield each text among arguments with its path; the entries of a list share one path."""
    for key, value in args.items():
        rows = value if isinstance(value, list | tuple) else [value]
        for row in rows:
            if isinstance(row, dict):
                yield from labels_of(row, f"{path}/{key}")
            elif isinstance(row, str):
                yield f"{path}/{key}", row


def outcome(answer: Answer, named: set[str]) -> str:
    """Return what the next call may depend on in an answer, as text without amounts and names."""
    found = []
    for key in ("refused", "error", "phase", "state", "status"):
        if isinstance(answer.get(key), str):
            found.append(f"{key} {answer[key]}")
    if isinstance(answer.get("reason"), dict):
        found.append(f"reason {answer['reason'].get('why', '')}")
    if isinstance(answer.get("total"), int):
        found.append(
            f"{('none', 'one', 'several')[min(answer['total'], 2)]}" + ", and more pages" * bool(answer.get("next"))
        )
    if "plan_id" in answer:
        rules = sorted({each["rule"] for each in answer["violations"] if isinstance(each, dict)})
        found.append(f"breaks {', '.join(rules)}" if rules else "can be applied")
        stops = answer["effects"].get("stop", [])
        if stops:
            found.append("stops what is named" if set(stops) <= named else "stops others")
        if answer["effects"].get("move"):
            found.append("moves jobs")
        if answer["effects"].get("not_foretold"):
            found.append("not all is foretold")
        if answer["asks_a_person"]:
            found.append("asks a person")
        if answer["cannot_be_undone"]:
            found.append("cannot be undone")
    return "; ".join(found)


def amounts(answer: Answer) -> dict[str, float]:
    """Return the amounts of a plan that must not grow: GPU-hours lost, jobs that wait longer. {}: it is no plan."""
    if "plan_id" not in answer:
        return {}
    return {"gpu_hours_lost": answer["gpu_hours_lost"], "jobs_later": answer["blast_radius"]["jobs_later"]}


def write_trace(folder: Path, trace: TaskTrace) -> None:
    """Write a trace and replace its earlier version; it is on disk when this returns."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(folder / f"{trace.id}.json", msgspec.json.encode(trace))


def read_traces(folder: Path) -> list[TaskTrace]:
    """Return the traces in a folder, in the order of writing. Raises InputError, which names the file."""
    if not folder.is_dir():
        raise InputError(str(folder), "a folder of traces (`kant mcp --traces`)")
    found = []
    for path in sorted(folder.glob("*.json"), key=lambda each: (each.stat().st_mtime_ns, each.name)):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=TaskTrace))
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(str(path), f"a trace ({error})") from None
    return found
