"""Several tasks at once, where they are about different things: looks, the model's thinking and plans overlap.

A plan is void once anything has changed. So who has planned waits until all who have are ready; then one plan of all
their orders is applied, if it does no more than theirs do: it breaks no rule, stops nobody else, loses no more work.
Otherwise the first is applied, and the others begin again. A task that is about something that one before it is about
waits for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import Any

from kant.ops.facts import about
from kant.ops.memory.replay import Run
from kant.ops.memory.slots import slots_of
from kant.ops.memory.traces import ACTS, Answer, Call, Tools, amounts
from kant.ops.past_question import MOST
from kant.ops.view import View

MOST_AT_ONCE = 8


class _Group:
    """Who has planned, who is ready to act, and what came of it; under one lock, so that nobody plans meanwhile."""

    def __init__(self, tools: Tools) -> None:
        self.tools, self.news = tools, Condition()
        self.plans: dict[_Member, Answer] = {}
        self.ready: dict[_Member, Call] = {}
        self.done: dict[_Member, Answer] = {}

    def act(self, own: _Member, call: Call) -> Answer:
        """Act when all who have planned are ready: whoever is the last acts for all."""
        with self.news:
            self.ready[own] = call
            self.news.notify_all()
            self.news.wait_for(lambda: own in self.done or self.plans.keys() <= self.ready.keys())
            try:
                if own not in self.done:
                    self._together()
                return self.done.pop(own) if own in self.done else self.tools.call(call)
            finally:
                self.ready.pop(own, None)
                self.plans.pop(own, None)
                self.news.notify_all()

    def _together(self) -> None:
        """Apply the plans of all who are ready as one, if that does no more than these do."""
        those = [own for own, call in self.ready.items() if call.tool == "apply" and own in self.plans]
        orders = [order for own in those for order in own.orders]
        plans = [self.plans[own] for own in those]
        if len(those) < 2 or len(orders) > MOST or {each["version"] for each in plans} != {self.tools.view().version}:
            return
        plan = self.tools.call(Call("plan", {"orders": orders}))
        if not does_no_more(plan, plans):
            return
        reason = "; ".join(dict.fromkeys(str(self.ready[own].args.get("reason", "")) for own in those))
        answer = self.tools.call(Call("apply", {"plan_id": plan["plan_id"], "reason": reason}))
        if not answer.get("refused"):
            for own in those:
                del self.ready[own], self.plans[own]
                self.done[own] = answer


def does_no_more(plan: Answer, plans: Sequence[Answer]) -> bool:
    """Whether a plan may be applied, and has no effects beside those of these plans, made in the same state."""

    def of(each: Answer, name: str) -> set[str]:
        return set(each["effects"].get(name, ()))

    if not plan.get("can_be_applied") or plan["asks_a_person"] or "not_foretold" in plan["effects"]:
        return False
    theirs = [amounts(each) for each in plans]
    return (
        plan["version"] == plans[0]["version"]
        and all(of(plan, name) <= set().union(*(of(each, name) for each in plans)) for name in ("stop", "move"))
        and all(most <= sum(each[name] for each in theirs) + 1e-9 for name, most in amounts(plan).items())
    )


class _Member:
    """The tools of one of several tasks."""

    def __init__(self, tools: Tools, group: _Group) -> None:
        self.tools, self.group = tools, group
        self.view = tools.view
        self.orders: list[Any] = []

    def call(self, call: Call) -> Answer:
        if call.tool in ACTS:
            return self.group.act(self, call)
        if call.tool == "plan":
            with self.group.news:
                self.group.plans[self] = {}
        answer = self.tools.call(call)
        if call.tool == "plan" and answer.get("can_be_applied"):
            self.orders = call.args["orders"]
            self.group.plans[self] = answer
        elif call.tool == "plan":
            self.leave()
        return answer

    def leave(self) -> None:
        """It acts by no plan any more."""
        with self.group.news:
            self.group.plans.pop(self, None)
            self.group.news.notify_all()


def waits_for(tasks: Sequence[str], view: View) -> list[list[int]]:
    """For each task those before it that are about something that it is about, too."""
    scopes = [about(view, [str(value) for value in slots_of(task, view)[1].values()]).keys() for task in tasks]
    return [[n for n in range(m) if scopes[n] & scopes[m]] for m in range(len(tasks))]


def run_together(tasks: Sequence[str], tools: Tools, begin: Callable[[str, Tools], Run]) -> list[Run]:
    """Do all of them; `begin` makes the run of each. One that waits for one that came to no end is not begun."""
    group = _Group(tools)
    found: list[Future[Run]] = []

    def one(task: str, earlier: list[Future[Run]]) -> Run:
        stopped = [each.result().task for each in earlier if not each.result().trace.ended]
        own = _Member(tools, group)
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
