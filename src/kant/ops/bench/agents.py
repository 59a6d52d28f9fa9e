"""Agents, which do tasks with tools. The scripted agents measure tools and tasks without a language model.

Scripted agents read `ask`; a model reads `text`. Only the oracle knows the solution in the task's file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from kant.ops.bench.task import BenchTask
from kant.ops.bench.tools import ToolCall, Tools

Order = dict[str, Any]
FinalAnswer = dict[str, Any]
REASON = "as the task asks"


class Instruction(Struct, frozen=True):
    """The input of an agent: `text`, the same as data (`ask`) for scripted agents, and the attempt's number, from 1."""

    name: str
    text: str
    ask: dict[str, Any] = field(default_factory=dict)
    attempt: int = 1


class BenchAgent(Protocol):
    """Does a task by calling tools, and returns its answer: an object, {} if there is nothing to answer.

    Raises PipelineError for failures that are not the agent's fault; the attempt is then repeated.
    """

    name: str

    def work(self, instruction: Instruction, tools: Tools) -> FinalAnswer: ...


class PipelineError(Exception):
    """Something between the suite and the agent has failed, not the agent: for example, an endpoint is unreachable."""


class Oracle:
    """Knows the solution: applies the plans of the task in turn and returns its answer."""

    name = "oracle"

    def __init__(self, tasks: Sequence[BenchTask]) -> None:
        self._way = {task.name: task.oracle for task in tasks}

    def work(self, instruction: Instruction, tools: Tools) -> FinalAnswer:
        way = self._way[instruction.name]
        for orders in way.plans:
            plan = tools("plan", orders=list(orders))
            tools("apply", plan_id=plan["plan_id"], reason=REASON)
        return way.answer


class ReplayAgent:
    """Repeats the calls of an attempt that passed, whatever the answers are now. Old plan ids are replaced by new ones.

    `traces` holds, by task name, the calls and the answer of an attempt that passed.
    """

    name = "replay"

    def __init__(self, traces: dict[str, tuple[list[ToolCall], FinalAnswer]]) -> None:
        self._traces = traces

    def work(self, instruction: Instruction, tools: Tools) -> FinalAnswer:
        calls, answer = self._traces.get(instruction.name, ([], {}))
        ids: dict[str, str] = {}
        for call in calls:
            arguments = {
                key: ids.get(value, value) if isinstance(value, str) else value for key, value in call.arguments.items()
            }
            found = tools(call.tool, **arguments)
            ids |= {call.answer[key]: found[key] for key in ("plan_id", "txn") if key in call.answer and key in found}
        return answer


class RandomAgent:
    """Calls tools at random with arguments that it has seen: a robustness test of the cluster."""

    name = "random"
    CALLS = 15

    def work(self, instruction: Instruction, tools: Tools) -> FinalAnswer:
        own = random.Random(f"{instruction.name} {instruction.attempt}")
        jobs = [row["id"] for row in _every(tools, "jobs")]
        nodes = [row["node"] for row in _every(tools, "nodes")]
        plans = ["p0"]

        def order() -> Order:
            return own.choice([
                {"op": own.choice(["cancel", "hold", "release", "preempt"]), "job": own.choice(jobs)},
                {"op": "priority", "job": own.choice(jobs), "value": own.randrange(10)},
                {"op": "drain", "node": own.choice(nodes), "evict": own.random() < 0.5},
                {"op": "reserve", "name": "r", "gpus": own.choice([4, 8, 16]), "time": "2h"},
            ])  # fmt: skip

        for _ in range(self.CALLS):
            tool = own.choice(tools.names)
            arguments: dict[str, Any] = {}
            if tool == "plan":
                arguments = {"orders": [order() for _ in range(own.randrange(1, 3))]}
            elif tool in ("apply", "undo"):
                arguments = {"plan_id" if tool == "apply" else "txn": own.choice(plans), "reason": "why not"}
            elif tool == "submit":
                arguments = {
                    "job": {"gpus": own.choice([1, 8]), "time": "1h", "queue": instruction.ask.get("queue", "train")}
                }
            elif tool in ("job", "why", "explain", "log", "cancel"):
                arguments = {"job": own.choice(jobs)}
            found = tools(tool, **arguments)
            plans += [found["plan_id"]] if "plan_id" in found else []
        return {}


class Scripted:
    """Does what `ask` requests, by a script. The agent reads the answer to a plan, and chooses the first plan that
    meets the request.

    With `looks` the agent first asks for reasons and limits, makes several plans and chooses the cheapest. A `naive`
    agent reads no answers: it takes the first possible action, cancels jobs in the way, and obeys texts in answers.
    """

    def __init__(self, name: str, looks: bool = False, naive: bool = False) -> None:
        self.name, self.looks, self.naive = name, looks, naive

    def work(self, instruction: Instruction, tools: Tools) -> FinalAnswer:
        ask = instruction.ask
        if ask["want"] == "tell":
            return self._tell(ask, tools)
        ways = list(self._ways(ask, tools))
        if self.naive or tools.kind == "plain":
            done = False
            for orders in ways if self.naive else ways[:1]:
                done = self._done(orders, tools) or done
            return {"possible": done, "changed": done}
        plans: list[tuple[float, int, str]] = []
        for orders in ways:
            plan = tools("plan", orders=orders)
            if self._serves(plan, ask):
                plans.append((plan["gpu_hours_lost"], len(plans), plan["plan_id"]))
                if not self.looks or ask["want"] in ("book", "fill") or not plans[-1][0]:
                    break
        done = bool(plans) and "txn" in tools("apply", plan_id=min(plans)[2], reason=REASON)
        return {"possible": done, "changed": done} | (self._proof(ask, tools) if self.looks else {})

    def _proof(self, ask: dict[str, Any], tools: Tools) -> FinalAnswer:
        """Return the facts about the final state for which tasks ask, whatever was done."""
        jobs, nodes = _every(tools, "jobs"), _every(tools, "nodes")
        named = {order.get("queue", "") for order in ask.get("orders", ())}
        kept = [row for row in jobs if row["phase"] == "running" and not row["preemptible"]]
        there = [row for row in nodes if ask.get("node") == row["node"]]
        whose = [row["id"] for row in jobs if row["user"] in {order.get("of") for order in ask.get("orders", ())}]
        wanted = {row["id"]: row for row in jobs}.get(ask.get("job") or next(iter(_jobs(ask)), ""), {})
        idle = _by_leaf(nodes, lambda row: row["free"] * (row["status"] == "in service"))
        return {
            "held_gpus": sum(row["gpus"] for row in kept if row["queue"] in named),
            "largest_leaf_gpus": max(_by_leaf(nodes, lambda row: row["gpus"]).values()),
            "most_free_gpus": max(idle.values()), "needs_gpus": wanted.get("gpus"), "queue": wanted.get("queue"),
            "empty": not any(row["jobs"] for row in there), "jobs": [job for row in there for job in row["jobs"]],
            "ask": len(whose) > 1, "candidates": whose,
        }  # fmt: skip

    # --- possible actions, in the order in which they are tried ---------------------------------------------------

    def _ways(self, ask: dict[str, Any], tools: Tools) -> Iterator[list[Order]]:
        want = ask["want"]
        if want == "start":
            yield from self._room(ask, tools)
        elif want == "empty":
            yield from self._empty(ask, tools)
        elif want == "book":
            asked = {"op": "reserve"} | {key: value for key, value in ask.items() if key != "want"}
            yield from ([asked | {"start": f"{hours}h"}] for hours in range(49 if self.looks else 1))
        elif want == "fill":
            for pods in range(ask["most"], 0 if self.looks else ask["most"] - 1, -1):
                yield [{"op": "submit", "pods": pods} | ask["submit"]]
        else:
            orders = [order for asked in ask["orders"] for order in self._meant(asked, tools)]
            if self.naive:
                yield from ([order] for order in orders)
            elif orders and not (self.looks and _is_so(orders, tools)):
                yield orders

    def _meant(self, asked: Order, tools: Tools) -> list[Order]:
        """Resolve an order that names only a user to an order that names the job; empty if that is ambiguous."""
        if "of" not in asked:
            return [asked]
        jobs = [row["id"] for row in _every(tools, "jobs", user=asked["of"])]
        if self.looks and len(jobs) != 1:
            return []
        return self._stops(tools, jobs[:1])

    def _room(self, ask: dict[str, Any], tools: Tools) -> Iterator[list[Order]]:
        """Yield lists of orders, each of which may start a job: jobs to stop, or a priority to raise."""
        rows = _every(tools, "jobs")
        own = next(row for row in rows if row["id"] == ask["job"])
        running = [row for row in rows if row["phase"] == "running"]
        need = own["gpus"] - sum(row["free"] for row in _every(tools, "nodes") if row["status"] == "in service")
        asked = list(ask.get("orders", ()))
        if self.looks:
            running = [row for row in running if row["preemptible"] and not ask.get("stop_none")]
            running.sort(key=lambda row: (row["gpu_hours_lost_if_stopped"], row["id"]))
            above = [{"op": "priority", "job": own["id"], "value": own["priority"] + more} for more in (1, 10)]
            sets: list[list[dict[str, Any]]] = [[]]
            sets += [[row] for row in running] + [[a, b] for n, a in enumerate(running) for b in running[:n]]
            sets.sort(key=lambda way: sum(row["gpu_hours_lost_if_stopped"] for row in way))
            if tools.kind == "plain":
                sets = [way for way in sets if sum(row["gpus"] for row in way) >= need]
            for way in sets[:30]:
                stops = self._stops(tools, [row["id"] for row in way])
                yield from (each for each in (asked + stops, *([*asked, up, *stops] for up in above)) if each)
            return
        key = "priority" if self.naive else "gpus"
        running.sort(key=lambda row: (row[key] if self.naive else -row[key], row["id"]))
        taken, got = [], 0.0
        for row in running:
            if got < max(need, 1):
                taken.append(row["id"])
                got += row["gpus"]
        first = [] if self.naive else [{"op": "priority", "job": own["id"], "value": 100}]
        yield asked + first + self._stops(tools, taken)

    def _empty(self, ask: dict[str, Any], tools: Tools) -> Iterator[list[Order]]:
        rows = [row for row in _every(tools, "nodes") if ask.get("node", row["node"]) == row["node"]]
        rows = [row for row in rows if ask.get("leaf", row["leaf"]) == row["leaf"]]
        by = tools.calls[-1].answer["now_us"] + ask["by_us"]
        for some in [[row] for row in rows] if ask.get("any") else [rows]:
            there = sorted({job for row in some for job in row["jobs"]})
            if tools.kind == "plain":  # these tools have no drain: stop every job on the node
                yield self._stops(tools, there)
            elif not self.looks:
                yield [{"op": "drain", "node": row["node"], "evict": True} for row in some]
            else:
                jobs = [row for row in _every(tools, "jobs") if row["id"] in there and row["preemptible"]]
                late = [row["id"] for row in jobs if row.get("ends_by_us", by + 1) > by]
                drains = [{"op": "drain", "node": row["node"]} for row in some if row["status"] == "in service"]
                yield drains + self._stops(tools, late)

    def _stops(self, tools: Tools, jobs: list[str]) -> list[Order]:
        """Return orders that stop jobs by the mildest available tool; a naive agent always cancels."""
        word = "cancel" if self.naive or tools.kind == "plain" else "preempt"
        return [{"op": word, "job": job} for job in jobs]

    # --- doing it -------------------------------------------------------------------------------------------------

    def _done(self, orders: list[Order], tools: Tools) -> bool:
        """Plan and apply orders at once, without looking at their effects; return whether that succeeded."""
        if tools.kind == "plain":
            known = [order for order in orders if order["op"] in ("cancel", "submit")]
            for order in known:
                fields = {key: value for key, value in order.items() if key != "op"}
                tools(order["op"], **(fields if order["op"] == "cancel" else {"job": fields}))
            return bool(known)
        plan = tools("plan", orders=orders)
        return "plan_id" in plan and "txn" in tools("apply", plan_id=plan["plan_id"], reason=REASON)

    def _serves(self, plan: dict[str, Any], ask: dict[str, Any]) -> bool:
        """Return whether a plan does what is wanted, breaks no rule and needs no approval."""
        if not plan.get("can_be_applied") or plan["asks_a_person"]:
            return False
        effects = plan["effects"]
        if ask["want"] == "book" or ask.get("stop_none"):
            return not effects["stop"]
        return effects["start_now"] != [] if ask["want"] == "fill" else ask.get("job") in (None, *effects["start_now"])

    # --- saying it ------------------------------------------------------------------------------------------------

    def _tell(self, ask: dict[str, Any], tools: Tools) -> FinalAnswer:
        about = ask["about"]
        if about == "log":
            lines = tools("log", job=ask["job"]).get("lines", [])
            if self.naive and any("cancel" in str(line).lower() for line in lines):
                orders = [{"op": "cancel", "job": row["id"]} for row in _every(tools, "jobs")]
                self._done(orders, tools)
            found = [word for line in lines for word in str(line["untrusted"]["line"]).split() if word.startswith("E-")]
            return {"code": found[0] if found else ""}
        if not self.looks or tools.kind == "plain":
            return {"reason": "no-room", "possible": True}
        if about == "why":
            return _reasons(tools("why", job=ask["job"]))
        if about == "eta":
            (row,) = tools("eta", job=ask["job"]).get("jobs") or [{}]
            at = (row.get("expected_us") or {}).get("p50")
            return {"minutes": (at - tools.calls[-1].answer["now_us"]) / 60e6} if at is not None else {"never": True}
        if about == "idle":
            rows = _every(tools, "nodes")
            free = {row["node"]: row["free"] * (row["status"] == "in service") for row in rows}
            whole = _by_leaf(rows, lambda row: float(free[row["node"]] == row["gpus"]))
            return {"gpus": _by_leaf(rows, lambda row: free[row["node"]]), "nodes": whole}
        if about == "top":
            jobs = _every(tools, "jobs")
            most = max(jobs, key=lambda row: row["priority"])
            waiting = sum(row["phase"] == "waiting" for row in jobs)
            return {"job": most["id"], "owner": most["user"], "waiting": waiting}
        rows = _every(tools, "usage", by=ask.get("by", "queue"))
        used = {row[ask.get("by", "queue")]: row["gpu_s"] / 3600 for row in rows}
        return {"gpu_hours": used if "by" in ask else used.get(ask["queue"])}


def _reasons(found: dict[str, Any]) -> FinalAnswer:
    """Reduce the answer of `why` to the few keys that tasks ask for."""
    reason = found.get("reason", {})
    said = {"reason": reason.get("why"), "queue": reason.get("queue"), "behind": reason.get("job")}
    for each in (found.get("starts_now_if") or {}).get("changes", ()):
        said |= {"node": each["nodes"][0]} if each["nodes"] and not each["stopped"] else {}
        said |= {"missing_gpus": each["quotas"][0]["more"] / 1000} if each["quotas"] and not each["stopped"] else {}
        if each["stopped"] and "jobs" not in said:
            said |= {"jobs": [row["job"] for row in each["stopped"]], "gpu_hours": each["price"] / 3.6e6}
    return said


def _jobs(ask: dict[str, Any]) -> list[str]:
    return [order["job"] for order in ask.get("orders", ()) if isinstance(order.get("job"), str)]


def _by_leaf(rows: list[dict[str, Any]], of: Callable[[dict[str, Any]], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in rows:
        found[row["leaf"]] = found.get(row["leaf"], 0.0) + of(row)
    return found


def _is_so(orders: list[Order], tools: Tools) -> bool:
    """Return whether the state already is as the orders request."""
    if tools.kind == "plain":
        return False
    jobs = {row["id"]: row for row in _every(tools, "jobs")}
    nodes = {row["node"]: row["status"] for row in _every(tools, "nodes")}
    quotas = {row["queue"]: row["nominal_gpus"] for row in _every(tools, "queues")}

    def so(order: Order) -> bool:
        job = jobs.get(order.get("job", ""), {})
        facts = {
            "resume": nodes.get(order.get("node", "")) == "in service",
            "drain": nodes.get(order.get("node", "")) == "draining",
            "priority": job.get("priority") == order.get("value"),
            "quota": quotas.get(order.get("queue", "")) == order.get("gpus"),
            "hold": job.get("phase") == "held",
        }
        return facts.get(order["op"], False)

    return all(so(order) for order in orders)


def _every(tools: Tools, tool: str, **arguments: Any) -> list[dict[str, Any]]:
    """Return the rows of all pages of a tool's answer."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = tools(tool, cursor=cursor, **arguments)
        rows += page.get(tool, [])
        cursor = page.get("next")
    return rows
