"""Runbooks: the steps for a kind of task, compiled from successful traces. They are files that people review.

A runbook is a tree. A step has its pre-conditions (`when`) and the sources of its arguments. Its children are the calls
that followed it, so a runbook has a branch for each situation that occurred. In any other situation the model is asked,
and its choice becomes another branch. This is the tree of actions of MOBIMEM's AgentRR (arXiv 2512.15784), with typed
facts and explanations instead of embeddings.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from msgspec import Struct, field

from kant.model.errors import InputError
from kant.ops.facts import facts_of, scope_of
from kant.ops.look import LOOKS
from kant.ops.memory.slots import (
    OWN,
    KnownFacts,
    UnknownError,
    explained,
    is_known,
    lasting,
    merged,
    slots_of,
    value_of,
)
from kant.ops.memory.traces import ACTS, DONE, TaskTrace, TraceCall, TraceStep, amounts, labels_of, outcome
from kant.ops.text import meant, safe_id, texts_of_tenants
from kant.ops.view import WorldView
from kant.toml_file import read_toml

OF_A_RUN = (*OWN, "key", "reason")


class BookStep(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A step that follows the step `after` ("": it is the first) if the facts in `when` hold. The keys of `when` say
    which job, queue or node of the task a fact describes.

    `args` holds the arguments of `tool` with their explanations (`memory/slots.py`). `most` has the largest amounts of
    any plan that was applied. `seen` is the number of traces with this step. A step is not replayed if it is `stale`,
    or if the facts do not determine the call (`ask`); both fields hold the reason. `chosen` has unexplained arguments
    by a digest of task, state and answers (`moment`): if these are equal, the same arguments are chosen again.
    """

    id: str
    tool: str
    after: str = ""
    when: dict[str, str] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)
    seen: int = 1
    stale: str = ""
    ask: str = ""
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)


class Runbook(Struct, forbid_unknown_fields=True):
    """The steps for one kind of task; `tasks` holds the texts that request it, all with the same slots."""

    name: str
    tasks: list[str]
    step: list[BookStep] = field(default_factory=list)

    def children(self, after: str) -> list[BookStep]:
        return [each for each in self.step if each.after == after]


class Found(Struct):
    """The next call of a runbook with its step, or why the runbook has no step."""

    step: BookStep | None = None
    call: TraceCall | None = None
    why: str = ""


class Runbooks:
    """Runbooks by the words of their tasks. With `exact`, tasks have no slots: only equal texts match."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.books: dict[str, Runbook] = {}

    def begin(self, task: str, view: WorldView) -> TaskTrace:
        """Return a new trace of a task, without steps."""
        words, slots = (task, {}) if self.exact else slots_of(task, view)
        return TaskTrace(task, slots, [], uuid4().hex, words)

    def of(self, trace: TaskTrace) -> Runbook | None:
        """The runbook of the trace's task, or None."""
        return self.books.get(trace.words)

    def next(self, trace: TaskTrace, at: str, view: WorldView) -> Found:
        """Find the next call after the step `at` of the runbook, in the present state."""
        book = self.of(trace)
        known = KnownFacts.at(trace, len(trace.steps), self.exact)
        steps = book.children(at) if book else []
        now = moment(trace, len(trace.steps), view.version)
        met = [step for step in steps if step.chosen.get(now)]
        fits: list[tuple[BookStep, TraceCall]] = []
        call: TraceCall | None
        why = "no runbook covers this situation"
        for step in met if len(met) == 1 else steps:
            chosen = step.chosen.get(now, {}) if len(met) == 1 else {}
            try:
                rest = {name: node for name, node in step.args.items() if name not in chosen}
                call = TraceCall(step.tool, chosen | value_of(rest, known))
            except UnknownError:
                call = None
            if not self._holds(step, trace, call, view):
                continue
            if call is None or step.stale or step.ask:
                return Found(why=step.stale or step.ask or f"the arguments of {step.tool} are not determined")
            fits.append((step, call))
        if len(fits) > 1:  # a look only finds facts: prefer a call that acts
            fits = [each for each in fits if each[1].tool not in LOOKS]
        if len(fits) != 1:
            return Found(why="several branches of the runbook match" if fits else why)
        step, call = fits[0]
        if wrong := self._unfit(step, trace):
            return Found(why=wrong)
        return Found(step, call)

    def changed(self, trace: TaskTrace, view: WorldView) -> bool:
        """Return whether another caller has changed facts of the task since its last step, or made its plan void."""
        last = trace.steps[-1] if trace.steps else None
        if last is None or last.call.tool in ACTS:
            return False
        void = last.call.tool == "plan" and trace.last.get("version", view.version) != view.version
        return void or last.scope != scope_of(view, trace.names())

    def _holds(self, step: BookStep, trace: TaskTrace, call: TraceCall | None, view: WorldView) -> bool:
        """Return whether the present facts equal those of the step. If the step's call is unknown (None), it is enough
        that they are among the step's facts.
        """
        found = situation(trace, len(trace.steps), call or TraceCall(step.tool), view)
        return found == step.when or (call is None and found.items() <= step.when.items())

    def _unfit(self, step: BookStep, trace: TaskTrace) -> str:
        """Return why the runbook must not take a step although its facts hold: the plan is too large; "" if it may."""
        found = amounts(trace.last)
        larger = [name for name, most in step.most.items() if found.get(name, most + 1) > most]
        return f"{larger[0]} is larger than in every plan that was learned" if larger else ""

    def learn(self, trace: TaskTrace) -> None:
        """Learn a successful trace, but only up to the step before which someone else changed facts about the task.

        Later choices in the trace were based on facts that no longer held.
        """
        words = trace.words
        book = self.books.setdefault(words, Runbook(_name(words, self.books), [words]))
        at = ""
        for number, own in enumerate(trace.steps):
            if number and changed_under(trace.steps[number - 1], own.facts):
                return
            known = KnownFacts.at(trace, number, self.exact)
            when = recorded(trace, number)
            args = explained(own.call, known)
            found = amounts(trace.steps[number - 1].answer or {}) if own.call.tool == "apply" and number else {}
            step = self._take(book, BookStep(f"s{len(book.step) + 1}", own.call.tool, at, when, args, found))
            if not step.ask and own.version and not is_known(step.args, known):
                chosen, now = own_args(own.call), moment(trace, number, own.version)
                same = step.chosen.get(now, chosen) == chosen
                step.chosen[now] = chosen if same and is_plain_and_new(own.call, known) else {}
            at = step.id

    def _take(self, book: Runbook, new: BookStep) -> BookStep:
        same = [each for each in book.children(new.after) if each.when == new.when]
        for step in same:
            both = merged(step.args, new.args) if step.tool == new.tool else None
            if both is not None:
                step.args, step.seen, step.stale = both, step.seen + 1, ""
                step.most = {name: max(most, new.most.get(name, 0)) for name, most in step.most.items()}
                return step
        for step in [each for each in same if not each.stale]:
            step.ask = new.ask = "the facts do not determine the call"
        book.step.append(new)
        return new

    def follow(self, trace: TaskTrace, at: str | None, number: int) -> str | None:
        """Return the id of the runbook step after `at` that matches step `number` of the trace, or None."""
        book, own = self.of(trace), trace.steps[number]
        if book is None or at is None:
            return None
        when, args = recorded(trace, number), explained(own.call, KnownFacts.at(trace, number, self.exact))
        for step in book.children(at):
            if step.tool == own.call.tool and merged(step.args, args) is not None and step.when == when:
                return step.id
        return None

    def doubt(self, trace: TaskTrace, at: str, why: str) -> None:
        """Mark the step with id `at` as stale for the reason `why`: it failed although its pre-conditions held."""
        book = self.of(trace)
        for step in book.step if book else ():
            if step.id == at:
                step.stale = why

    def save(self, folder: Path) -> list[Path]:
        """Write each runbook to a file of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        found = []
        for book in {book.name: book for book in self.books.values()}.values():
            found.append(folder / f"{book.name}.toml")
            found[-1].write_text(to_toml(book), encoding="utf-8")
        return found

    @classmethod
    def load(cls, folder: Path) -> Runbooks:
        """Load all runbooks in a folder. Raises InputError."""
        own = cls()
        if not folder.is_dir():
            raise InputError(str(folder), "a folder of runbooks (`kant ops runbooks compile`)")
        for path in sorted(folder.glob("*.toml")):
            book = read_runbook(path)
            for words in book.tasks:
                if words in own.books:
                    raise InputError(
                        f"{path}, tasks", f"words that no other runbook has ({own.books[words].name})", words
                    )
                own.books[words] = book
        return own


def moment(trace: TaskTrace, number: int, version: str) -> str:
    """Return a digest of what a call is based on: the task, the version of the state, earlier calls and answers."""
    before = [
        (each.call.tool, own_args(each.call), each.version, lasting(each.answer)) for each in trace.steps[:number]
    ]
    text = msgspec.json.encode([trace.task, version, before], order="sorted")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def own_args(call: TraceCall) -> dict[str, Any]:
    """Return the arguments of a call, without those that are specific to one run of the task."""
    return {name: value for name, value in call.args.items() if name not in OF_A_RUN or call.tool == DONE}


def is_plain_and_new(call: TraceCall, known: KnownFacts) -> bool:
    """Return whether all text arguments of a call are plain words that occur in no tenant's text in earlier answers."""
    theirs = "\n".join(text for answer in known.answers for text in texts_of_tenants(answer))
    return all(safe_id(text) == text and text not in theirs for _, text in labels_of(own_args(call), ""))


def changed_under(before: TraceStep, facts: dict[str, str]) -> bool:
    """Return whether the `facts` of a task differ from those at the step `before`, although that step changed
    nothing.
    """
    return before.call.tool not in ACTS and any(facts.get(name) != said for name, said in before.facts.items())


def situation(trace: TaskTrace, number: int, call: TraceCall, view: WorldView) -> dict[str, str]:
    """Return the present facts about everything that the task, its calls so far and `call` name, by label."""
    return _labelled(trace, number, call, lambda name: facts_of(view, [name]).get(name))


def recorded(trace: TaskTrace, number: int) -> dict[str, str]:
    """Return the recorded facts before a step of the trace, by label (as `situation` returns present facts)."""
    return _labelled(trace, number, trace.steps[number].call, trace.steps[number].facts.get)


def _labelled(trace: TaskTrace, number: int, call: TraceCall, fact: Callable[[str], str | None]) -> dict[str, str]:
    """Return facts by the slot or argument that names them, and under `answer` the outcome of the last answer."""
    before = trace.steps[:number]
    named = [("{" + slot + "}", str(value)) for slot, value in trace.slots.items()]
    named += [
        pair
        for n, each in enumerate((*before, None), 1)
        for pair in labels_of((each.call if each else call).args, f"{n}")
    ]
    places: dict[str, set[str]] = {}
    seen: set[str] = set()
    for label, text in named:
        name = meant(text)
        said = fact(name) if name not in seen else None
        seen.add(name)
        if said is not None:
            places.setdefault(label, set()).add(said)
    alone = call.tool in LOOKS or (call.tool == DONE and bool(before) and before[-1].call.tool in ACTS)
    found = {} if alone else {label: " | ".join(sorted(said)) for label, said in places.items()}
    return found | ({"answer": outcome(before[-1].answer or {}, seen)} if before else {})


def _name(words: str, books: dict[str, Runbook]) -> str:
    plain = re.sub(r"[^a-z]+", "-", re.sub(r"\{\w+\}", "", words.lower())).strip("-")[:40].strip("-") or "task"
    taken = {book.name for book in books.values()}
    if plain not in taken:
        return plain
    return f"{plain}-{hashlib.blake2b(words.encode(), digest_size=3).hexdigest()}"


def read_runbook(path: Path) -> Runbook:
    """Read a runbook from a file. Raises InputError, which names the field."""
    book = read_toml(path, Runbook)
    ids = [step.id for step in book.step]
    if len(set(ids)) < len(ids) or not book.tasks:
        raise InputError(str(path), "at least one task, and a different id for each step")
    for number, step in enumerate(book.step):
        if step.after and step.after not in ids[:number]:
            raise InputError(f"{path}, step {step.id}, after", "the id of an earlier step", step.after)
    return book


def texts_of(folder: Path) -> dict[str, str]:
    """The texts of the runbooks of a folder, by name. Raises InputError as `Runbooks.load` does."""
    Runbooks.load(folder)
    return {read_runbook(path).name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))}


def to_toml(book: Runbook) -> str:
    """Return the TOML text of a runbook's file."""
    lines = [f"name = {_toml(book.name)}", f"tasks = {_toml(book.tasks)}"]
    for step in book.step:
        lines += ["", "[[step]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in msgspec.to_builtins(step).items()]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items())
        return "{" + (f" {pairs} " if pairs else "") + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
