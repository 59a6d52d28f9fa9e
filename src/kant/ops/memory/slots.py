"""Explains where each argument of a call came from, so that the call of one task can be made for another task.

An argument is explained by a text of the task, by a value in an earlier answer, or by a sum or difference of both. All
explanations that have fitted every trace so far are kept, and a call is replayed only if they all give the same value
(version spaces: T. Mitchell, 1982; for programs by examples S. Gulwani, POPL 2011). For an unexplained argument the
model is asked each time. Texts of tenants are never used as explanations.

`{node}` is a slot of the task, `{2/plan_id}` a value in the second answer. In a path, `#` stands for the only entry of
a list, `@` for the only key of an object, `user=$user` for the one row whose field equals the slot, and `nodes~$node`
for the one row whose field contains it. `{each/id}` refers to the row for which an order of a list is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kant.model.job import LEVELS
from kant.ops.facts import kind_in
from kant.ops.memory.traces import DONE, TaskTrace, TraceCall
from kant.ops.orders import KINDS
from kant.ops.view import WorldView

WORDS = {*KINDS, *LEVELS, "", "waiting", "blocked", "running", "stopping", "held", "user", "queue"}
"""Words of the tools: they mean the same in every task, and need no explanation."""
OWN = ("plan_id", "txn")
"""Arguments that only an earlier answer can explain."""
SILENT = ("untrusted", "now_us", "as_of_us", "version", "next", "total")
"""Fields of an answer that are never used as explanations."""
CLOCK = ("now_us", "as_of_us", "next")
TOKEN = re.compile(r"[^\s,;!?\"'()<>=]+")
PART = re.compile(r"\{([^{}]+)\}")
ASK: dict[str, Any] = {"ask": True}


class UnknownError(Exception):
    """The explanations do not determine the argument."""


def slots_of(task: str, view: WorldView) -> tuple[str, dict[str, Any]]:
    """Return a task's text with slots for names and numbers, and the slots: `drain {node}`, {"node": "node-00003"}."""
    slots: dict[str, Any] = {}
    parts: list[str] = []
    end = 0
    for found in TOKEN.finditer(task):
        word = found[0].rstrip(".:")
        kind = kind_in(view, word) or _kind(word)
        if not kind:
            continue
        value = float(word) if kind == "number" else word
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        same = [name for name, other in slots.items() if other == value]
        count = sum(name.rstrip("0123456789") == kind for name in slots)
        name = same[0] if same else kind + (str(count + 1) if count else "")
        slots[name] = value
        parts += [task[end : found.start()], "{" + name + "}"]
        end = found.start() + len(word)
    return "".join([*parts, task[end:]]), slots


def _kind(word: str) -> str:
    """Return the kind of a token that may differ in the next task (number, time or word); "" for an English word."""
    kinds = (r"\d+(\.\d+)?", "number"), (r"(\d+(\.\d+)?(us|ms|s|m|h|d))+", "time"), (r".*\d.*", "word")
    return next((kind for pattern, kind in kinds if re.fullmatch(pattern, word)), "")


@dataclass(slots=True)
class KnownFacts:
    """What explanations may refer to: the task, its slots, the answers so far, and one row of a list (`{each/...}`).

    `exact`: a value may also be explained as a constant, as in a replay without slots.
    """

    task: str
    slots: dict[str, Any]
    answers: list[dict[str, Any]]
    row: Any = None
    exact: bool = False
    _leaves: list[tuple[str, Any]] | None = field(default=None)

    @classmethod
    def at(cls, trace: TaskTrace, step: int, exact: bool = False) -> KnownFacts:
        """Return what is known before step `step` of a trace."""
        return cls(trace.task, trace.slots, [each.answer or {} for each in trace.steps[:step]], exact=exact)

    def within(self, row: Any) -> KnownFacts:
        return KnownFacts(self.task, self.slots, self.answers, row, self.exact)

    def leaves(self) -> list[tuple[str, Any]]:
        """All scalar values in the answers, each with its path."""
        if self._leaves is None:
            found = [leaf for n, answer in enumerate(self.answers, 1) for leaf in _walk(answer, self.slots, f"{n}")]
            if self.row is not None:
                found = [*_walk(self.row, self.slots, "each"), *found]
            self._leaves = found
        return self._leaves


def _walk(value: Any, slots: dict[str, Any], path: str, lists: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the scalars below a value or, with `lists`, the lists below it, each with its path."""
    if isinstance(value, dict):
        if len(value) == 1 and not lists:
            yield f"{path}/@", next(iter(value))
        for key, each in value.items():
            if key not in SILENT and "/" not in key and key.isidentifier():
                yield from _walk(each, slots, f"{path}/{key}", lists)
    elif isinstance(value, list):
        if lists and value:
            yield path, value
        if len(value) == 1:
            yield from _walk(value[0], slots, f"{path}/#", lists)
        elif value and all(isinstance(row, dict) for row in value):
            for key in dict(value[0]):
                for name in slots:
                    for sign in "=~":
                        rows = _chosen(value, key, sign, slots[name])
                        if len(rows) == 1:
                            yield from _walk(rows[0], slots, f"{path}/{key}{sign}${name}", lists)
    elif not lists and not isinstance(value, bool) and value is not None:
        yield path, value


def _chosen(rows: Any, key: str, sign: str, value: Any) -> list[Any]:
    if sign == "=":
        return [row for row in rows if row.get(key) == value]
    return [row for row in rows if isinstance(row.get(key), list | dict) and value in row[key]]


def _at(known: KnownFacts, path: str) -> Any:
    """Return the value at a path such as `2/plan_id`. Raises UnknownError if there is none."""
    first, *rest = path.split("/")
    try:
        value = known.row if first == "each" else known.answers[int(first) - 1]
        for part in rest:
            if part == "@" or part == "#":
                (value,) = value
            elif "$" in part:
                key, sign, name = re.split(r"([=~])\$", part)
                (value,) = _chosen(value, key, sign, known.slots[name])
            else:
                value = value[part]
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        raise UnknownError from None
    return value


# --- explain ----------------------------------------------------------------------------------------------------------


def explained(call: TraceCall, known: KnownFacts) -> dict[str, Any]:
    """Return the arguments of a call with all their explanations. The `key` of a submission is left out: it is new in
    each run. In the final call a plain word such as `done` may also stand for itself.

    """
    found = {key: _explain(value, known, key) for key, value in call.args.items() if key != "key"}
    if call.tool == DONE:
        for key, value in call.args.items():
            if isinstance(value, str) and re.fullmatch(r"[a-z][a-z-]*", value) and value not in known.slots.values():
                found[key] = _pack([value, *(each for each in _options(found[key]) if each not in (ASK, value))])
    return found


def _explain(value: Any, known: KnownFacts, key: str = "") -> Any:
    if key == "reason":
        return "{task}"
    if isinstance(value, dict):
        return {name: _explain(each, known, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        found: list[Any] = [[_explain(each, known) for each in value]]
        if value and known.row is None:
            for number, answer in enumerate(known.answers, 1):
                for path, rows in _walk(answer, known.slots, f"{number}", lists=True):
                    found += _for_each(value, rows, path, known)
        return _pack(found)
    return _pack(list(dict.fromkeys(_alternatives(value, known, key))))


def _for_each(value: Any, rows: list[Any], path: str, known: KnownFacts) -> Iterator[Any]:
    """Yield a pattern that explains each entry of a list by the row at the same index, if there is such a pattern."""
    if len(rows) != len(value):
        return
    pattern = None
    for each, row in zip(value, rows, strict=True):
        own = _explain(each, known.within(row))
        pattern = own if pattern is None else merged(pattern, own)
        if pattern is None or has_unexplained(pattern):
            return
    if "{each" in json.dumps(pattern):
        yield {"each": path, "as": pattern}


def _alternatives(value: Any, known: KnownFacts, key: str) -> Iterator[Any]:
    if isinstance(value, bool) or value is None or (isinstance(value, str) and value in WORDS):
        yield value
        return
    if isinstance(value, str) and key not in OWN:
        text = value
        for name, slot in sorted(known.slots.items(), key=lambda item: -len(str(item[1]))):
            text = re.sub(rf"(?<![A-Za-z0-9{{]){re.escape(str(slot))}(?![A-Za-z0-9}}])", f"{{{name}}}", text)
        whole = PART.fullmatch(text)
        if text != value and not (whole and not isinstance(known.slots.get(whole[1]), str)):
            yield text
    elif not isinstance(value, str):
        yield from (f"{{{name}}}" for name, slot in known.slots.items() if _same(slot, value))
        numbers = [(name, slot) for name, slot in known.slots.items() if not isinstance(slot, str)]
        for path, leaf in known.leaves():
            if not isinstance(leaf, str):
                yield from (f"{{{path} + {name}}}" for name, slot in numbers if leaf + slot == value)
                yield from (f"{{{path} - {name}}}" for name, slot in numbers if leaf - slot == value)
    yield from (f"{{{path}}}" for path, leaf in known.leaves() if _same(leaf, value))
    if known.exact and key not in OWN:
        yield value


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, str) == isinstance(other, str)


def _pack(found: list[Any]) -> Any:
    return (found[0] if len(found) == 1 else {"either": found}) if found else ASK


def has_unexplained(node: Any) -> bool:
    """Return whether an explanation contains an unexplained argument."""
    if isinstance(node, dict):
        return "ask" in node or any(has_unexplained(each) for each in node.values())
    return isinstance(node, list) and any(has_unexplained(each) for each in node)


def is_known(node: Any, known: KnownFacts) -> bool:
    """Return whether the explanations in `node` determine one value, given what is known."""
    try:
        value_of(node, known)
    except UnknownError:
        return False
    return True


def lasting(value: Any) -> Any:
    """Return the parts of an answer that are equal for equal questions in the same state: all but the times and the
    ids of plans and transactions.
    """
    if isinstance(value, dict):
        return {key: lasting(each) for key, each in value.items() if key not in (*OWN, *CLOCK)}
    return [lasting(each) for each in value] if isinstance(value, list) else value


# --- merge ------------------------------------------------------------------------------------------------------------


def merged(one: Any, other: Any) -> Any:
    """Return the explanations that `one` and `other` have in common; None if their structures differ."""
    found: list[Any] = []
    for a in _options(one):
        for b in _options(other):
            both = _meet(a, b)
            if both is not None and both not in found:
                found.append(both)
    found = [each for each in found if not has_unexplained(each)] or found
    if not found:
        return None if _is_tree(one) or _is_tree(other) else ASK
    return _pack(found)


def _options(node: Any) -> list[Any]:
    return node["either"] if isinstance(node, dict) and "either" in node else [node]


def _is_tree(node: Any) -> bool:
    return any(isinstance(each, list) or (isinstance(each, dict) and "ask" not in each) for each in _options(node))


def _meet(one: Any, other: Any) -> Any:
    if type(one) is type(other) and one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        if "each" in one and one["each"] != other["each"]:
            return None
        found = {key: one[key] if key == "each" else merged(one[key], other[key]) for key in one}
        return None if any(each is None and one[key] is not None for key, each in found.items()) else found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        several = [merged(a, b) for a, b in zip(one, other, strict=True)]
        return None if any(each is None for each in several) else several
    return None


# --- evaluate ---------------------------------------------------------------------------------------------------------


def value_of(node: Any, known: KnownFacts) -> Any:
    """Return the value that explanations give. Raises UnknownError if they give no value, or different values."""
    if isinstance(node, dict):
        if "ask" in node:
            raise UnknownError
        if "either" in node:
            found = [value_of(each, known) for each in node["either"]]
            if any(type(each) is not type(found[0]) or each != found[0] for each in found):
                raise UnknownError
            return found[0]
        if "each" in node:
            rows = _at(known, node["each"])
            if not isinstance(rows, list) or not rows:
                raise UnknownError
            return [value_of(node["as"], known.within(row)) for row in rows]
        return {key: value_of(each, known) for key, each in node.items()}
    if isinstance(node, list):
        return [value_of(each, known) for each in node]
    if isinstance(node, str):
        whole = PART.fullmatch(node)
        return _of(whole[1], known) if whole else PART.sub(lambda part: str(_of(part[1], known)), node)
    return node


def _of(text: str, known: KnownFacts) -> Any:
    if text == "task":
        return known.task
    path, _, sum = text.partition(" ")
    value = _at(known, path) if "/" in path else known.slots.get(path)
    if value is None or isinstance(value, list | dict):
        raise UnknownError
    if sum:
        sign, _, name = sum.partition(" ")
        number = known.slots.get(name)
        if isinstance(value, str) or not isinstance(number, int | float):
            raise UnknownError
        value = value + number if sign == "+" else value - number
    return value
