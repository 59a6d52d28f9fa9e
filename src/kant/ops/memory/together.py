"""Runs tasks that name different jobs, queues and nodes concurrently: they look, choose and plan at the same time.

A plan is void once anything has changed. So a task with a plan waits until all tasks with plans are ready to act. Then
one plan with the orders of all tasks is applied, if it has the combined effects: it breaks no rule, starts, stops and
moves the same jobs, and loses no more work. Otherwise the first plan is applied, and the other tasks restart. A task
waits for the earlier tasks that name one of its jobs, queues or nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition
from typing import Any

from kant.ops.facts import about
from kant.ops.memory.replay import RunbookRun
from kant.ops.memory.slots import slots_of
from kant.ops.memory.traces import ACTS, Answer, TraceCall, TracedTools, amounts
from kant.ops.past_question import MOST
from kant.ops.view import WorldView

MOST_AT_ONCE = 8
SEEN = ("start_now", "stop", "move")
"""The effects by which a combined plan is compared with the plans of its tasks."""


class _Group:
    """The tasks that run together (members): their `plans`, the calls that are `ready` to be made, and results."""

    def __init__(self, tools: TracedTools) -> None:
        self.tools, self.news = tools, Condition()
        self.plans: dict[_Member, Answer] = {}
        self.ready: dict[_Member, TraceCall] = {}
        self.done: dict[_Member, Answer] = {}

    def act(self, own: _Member, call: TraceCall) -> Answer:
        """Wait until all members with plans are ready. Then the first of them acts for all. Return the answer."""
        with self.news:
            self.ready[own] = call
            self.news.notify_all()
            self.news.wait_for(lambda: own in self.done or self._is_first(own))
            try:
                if own not in self.done:
                    self._together()
                return self.done.pop(own) if own in self.done else self.tools.call(call)
            finally:
                self.ready.pop(own, None)
                self.plans.pop(own, None)
                self.news.notify_all()

    def _is_first(self, own: _Member) -> bool:
        """Return whether all members with plans are ready, and this member is the first ready member in task order."""
        return self.plans.keys() <= self.ready.keys() and own is min(self.ready, key=lambda each: each.number)

    def _together(self) -> None:
        """Apply the plans of all ready members as one plan, if that has the same effects."""
        those = [own for own, call in self.ready.items() if call.tool == "apply" and own in self.plans]
        orders = [order for own in those for order in own.orders]
        plans = [self.plans[own] for own in those]
        if len(those) < 2 or len(orders) > MOST or {each["version"] for each in plans} != {self.tools.view().version}:
            return
        plan = self.tools.call(TraceCall("plan", {"orders": orders}))
        if not has_effects_of(plan, plans):
            return
        reason = "; ".join(dict.fromkeys(str(self.ready[own].args.get("reason", "")) for own in those))
        answer = self.tools.call(TraceCall("apply", {"plan_id": plan["plan_id"], "reason": reason}))
        if not answer.get("refused"):
            for own in those:
                del self.ready[own], self.plans[own]
                self.done[own] = answer


def has_effects_of(plan: Answer, plans: Sequence[Answer]) -> bool:
    """Return whether `plan` may be applied, has the combined effects of `plans`, and costs no more than they do."""

    def of(each: Answer, name: str) -> set[str]:
        return set(each["effects"].get(name, ()))

    if not plan.get("can_be_applied") or plan["asks_a_person"] or "not_foretold" in plan["effects"]:
        return False
    theirs = [amounts(each) for each in plans]
    return (
        plan["version"] == plans[0]["version"]
        and all(of(plan, name) == set().union(*(of(each, name) for each in plans)) for name in SEEN)
        and all(most <= sum(each[name] for each in theirs) + 1e-9 for name, most in amounts(plan).items())
    )


class _Member:
    """The tools of one member of a group; `number` is its index among the tasks."""

    def __init__(self, tools: TracedTools, group: _Group, number: int) -> None:
        self.tools, self.group, self.number = tools, group, number
        self.view = tools.view
        self.orders: list[Any] = []

    def call(self, call: TraceCall) -> Answer:
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
        """Withdraw the plan of this member, so that no other member waits for it."""
        with self.group.news:
            self.group.plans.pop(self, None)
            self.group.news.notify_all()


def waits_for(tasks: Sequence[str], view: WorldView) -> list[list[int]]:
    """Return for each task the indices of the earlier tasks that name a job, queue or node of this task."""
    scopes = [about(view, [str(value) for value in slots_of(task, view)[1].values()]).keys() for task in tasks]
    return [[n for n in range(m) if scopes[n] & scopes[m]] for m in range(len(tasks))]


def run_together(
    tasks: Sequence[str], tools: TracedTools, begin: Callable[[str, TracedTools], RunbookRun]
) -> list[RunbookRun]:
    """Run all tasks; `begin` creates the run of a task. A task is skipped if a task that it waits for did not end."""
    group = _Group(tools)
    found: list[Future[RunbookRun]] = []

    def one(number: int, task: str, earlier: list[Future[RunbookRun]]) -> RunbookRun:
        stopped = [each.result().task for each in earlier if not each.result().trace.ended]
        own = _Member(tools, group, number)
        run = begin(task, own)
        if stopped:
            run.stopped = f"it depends on `{stopped[0]}`, which has not ended"
        try:
            return run.run()
        finally:
            own.leave()

    with ThreadPoolExecutor(min(MOST_AT_ONCE, max(1, len(tasks)))) as pool:
        for number, before in enumerate(waits_for(tasks, tools.view())):
            found.append(pool.submit(one, number, tasks[number], [found[n] for n in before]))
    return [each.result() for each in found]
