"""The tools of an agent: those of `kant mcp`, that is, the actions of a `Desk` and the queries of `ops.look`.

The kind `plain` has, for comparison, the four tools of a batch system: list jobs, list nodes, submit, cancel. They act
at once, after the same checks: the caller may give the order, and the job exists.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import Struct

from kant.model.errors import InputError
from kant.ops import look
from kant.ops.desk import Desk, RefusalError, refused
from kant.ops.orders import Order, order_schema, parse_orders
from kant.ops.rules import violations
from kant.ops.text import one_line

Kind = Literal["desk", "plain"]
Answer = dict[str, Any]
AGAINST_RULES = ("violations", "person", "role", "own", "rate", "budget")
"""The codes of refusals of forbidden actions. Other refusals are answers to calls that come too late or lack
information.
"""


class ToolCall(Struct, frozen=True):
    """One call of a tool and its answer."""

    tool: str
    arguments: dict[str, Any]
    answer: Answer


class EndedError(Exception):
    """The agent cannot continue, by its own fault: it has used up its calls, or its conversation is too long."""


class Tools:
    """Calls tools on a desk and keeps the `calls`: `tools("plan", orders=[...])`. A refusal is an answer, too."""

    def __init__(self, desk: Desk, kind: Kind = "desk", most: int = 100) -> None:
        self.kind = kind
        self.calls: list[ToolCall] = []
        self.attempted = 0
        self.desk = desk
        self._most = most
        self._of: dict[str, Callable[..., Answer]] = {}
        if kind == "plain":
            self._of = {"jobs": look.jobs, "nodes": look.nodes, "submit": _submit_plainly, "cancel": _cancel_plainly}
        else:
            self._of = dict(look.LOOKS)
            self._of |= {"plan": Desk.plan, "apply": _apply, "undo": Desk.undo, "submit": _submit}

    @property
    def names(self) -> list[str]:
        """The names of the available tools."""
        return list(self._of)

    def __call__(self, tool: str, /, **arguments: Any) -> Answer:
        """Call a tool. Raises EndedError after `most` calls."""
        if len(self.calls) >= self._most:
            raise EndedError(f"it has made all of its {self._most} calls")
        return self._kept(tool, arguments, self._answer(tool, arguments))

    def refuse(self, tool: str, sentence: str) -> Answer:
        """Refuse a call whose arguments are not an object: it counts as a call, and does nothing."""
        return self._kept(tool, {}, {"refused": "input", "sentence": f"{one_line(tool, 60)}: {sentence}"})

    def _kept(self, tool: str, arguments: dict[str, Any], answer: Answer) -> Answer:
        self.calls.append(ToolCall(tool, arguments, answer))
        self.attempted += len(answer.get("violations", ())) or answer.get("refused") in AGAINST_RULES
        return answer

    def _answer(self, tool: str, arguments: dict[str, Any]) -> Answer:
        act = self._of.get(tool)
        if act is None:
            return {"refused": "input", "sentence": f"tool {one_line(tool, 60)} does not exist"}
        try:
            inspect.signature(act).bind(self.desk, **arguments)
            hints = get_type_hints(act)
            for name, value in arguments.items():
                msgspec.convert(value, hints[name])
            return act(self.desk, **arguments)
        except (TypeError, msgspec.ValidationError) as error:
            return {"refused": "input", "sentence": one_line(f"{tool}: {error}")}
        except InputError as error:
            return refused(error)

    def schemas(self) -> list[dict[str, Any]]:
        """The tools as chat completions expect them: functions with JSON schemas of their parameters."""
        return [_schema(name, act) for name, act in self._of.items()]


def _apply(desk: Desk, plan_id: str, reason: str) -> Answer:
    """Carry out a plan, all of it or nothing. A plan beyond the limits is refused: there is no person to ask."""
    return desk.apply(plan_id, reason)


def _submit(desk: Desk, job: dict[str, Any], key: str = "") -> Answer:
    """Queue a job at once, since it harms nobody. The same `key` again gives the same job."""
    return desk.submit(job, key)


def _ordered_plainly(desk: Desk, order: Order) -> Answer:
    broken = violations(desk.world.view(), (order,), desk.who, desk.world)
    broken = [each for each in broken if each.rule != "protected"]
    if broken:
        raise RefusalError("violations", "; ".join(each.sentence for each in broken))
    done = desk.world.carry_out(order, desk.who)
    desk.world.settle()
    return {"job": done.job}


def _submit_plainly(desk: Desk, job: dict[str, Any]) -> Answer:
    """Queue a job at once."""
    (order,) = parse_orders([job | {"op": "submit"}])
    return _ordered_plainly(desk, order)


def _cancel_plainly(desk: Desk, job: str) -> Answer:
    """Withdraw a job at once, waiting or running."""
    (order,) = parse_orders([{"op": "cancel", "job": job}])
    return _ordered_plainly(desk, order)


TYPES = {"str": "string", "int": "integer", "bool": "boolean", "dict[str, Any]": "object"}


def _schema(name: str, act: Callable[..., Answer]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    for each in list(inspect.signature(act).parameters.values())[1:]:
        kind = TYPES.get(str(each.annotation), "object")
        properties[each.name] = {"type": kind}
        if each.name == "orders":
            properties[each.name] = {"type": "array", "items": order_schema()}
        if each.default is inspect.Parameter.empty:
            required.append(each.name)
    taken = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": act.__doc__, "parameters": taken}}
