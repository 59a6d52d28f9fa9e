"""Tasks of operators on small clusters, each with what should be done about it, for `benchmarks.studies.memory`.

`should` says it of a view, and `expert` does it by tools: it sees nothing but answers, as a model does. Whoever applies
something else than what should be done at that moment has done wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kant.model.errors import InputError
from kant.ops.audit import Audit
from kant.ops.desk import Desk
from kant.ops.memory.replay import RunbookRun
from kant.ops.memory.traces import DONE, Answer, DeskTools, TaskTrace, TraceCall
from kant.ops.orders import Hold, parse_orders, to_json
from kant.ops.scenario import parse_scenario
from kant.ops.simulated import SimulatedWorld
from kant.ops.view import JobView, WorldView
from kant.service.roles import Caller, Role

WHO, OTHER = Caller("olga", Role.OPERATOR), Caller("otto", Role.OPERATOR)
QUEUES = ("train", "infer", "batch", "eval")
USERS = ("ana", "bob", "cat", "dan")
Orders = list[dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """A task, and what its words name."""

    kind: str
    text: str
    names: dict[str, Any] = field(default_factory=dict)


def world_of(seed: int) -> SimulatedWorld:
    """A cluster of six nodes with some jobs: most run, some wait, a few are held or may not be stopped."""
    rng = random.Random(f"world {seed}")
    first, second = rng.sample(QUEUES, 2)
    job: list[dict[str, Any]] = []
    for _ in range(rng.randint(5, 10)):
        job.append({
            "id": f"j-{rng.randint(100, 999)}-{len(job)}", "gpus": rng.choice((2, 4, 8, 8)),
            "time": f"{rng.randint(2, 9)}h",
            "at": f"{rng.randint(0, 50)}m", "queue": rng.choice((first, second)), "user": rng.choice(USERS),
            "priority": rng.randint(0, 9), "preemptible": rng.random() < 0.8,
        })  # fmt: skip
    queue = [{"name": first, "gpus": rng.choice((16, 24))}, {"name": second, "gpus": rng.choice((8, 16))}]
    drained = [f"node-{rng.randrange(6):05}"] if rng.random() < 0.4 else []
    world = parse_scenario({"cluster": "6x8", "now": "1h", "queue": queue, "job": job, "drained": drained}).world()
    for each in [each for each in world.view().jobs.values() if each.phase == "waiting"]:
        if rng.random() < 0.35:
            world.carry_out(Hold(each.id), OTHER)
    world.settle()
    return world


def task_of(kind: str, seed: int, view: WorldView, power: bool = False) -> Task:
    """A task of a kind, about what is in a view; with `power` the first nodes are named far more often."""
    rng = random.Random(f"task {seed}")
    waiting = [job.id for job in view.jobs.values() if not job.runs]
    job = rng.choice(waiting if waiting and kind in ("why", "priority") else sorted(view.jobs))
    (node,) = rng.choices(range(6), [1 / (n + 1) if power else 1 for n in range(6)])
    names: dict[str, Any] = {
        "node": f"node-{node:05}", "job": job, "queue": rng.choice([each.queue for each in view.queues]),
        "user": view.jobs[job].user, "number": rng.choice((2, 4, 8)), "name": f"course-{rng.randint(10, 99)}",
        "time": f"{rng.randint(1, 4)}h", "priority": rng.randint(10, 90),
    }  # fmt: skip
    return Task(kind, KINDS[kind].format(**names), names)


KINDS = {
    "drain": "drain {node} for repair",
    "resume": "put {node} back into service",
    "stop": "stop {job} and let it wait",
    "priority": "give {job} priority {priority}",
    "quota": "give queue {queue} {number} more GPUs",
    "release": "release all held jobs of queue {queue}",
    "reserve": "book {number} GPUs as {name} for {time}",
    "hold": "hold every waiting job of {user}",
    "why": "why does {job} wait",
    "cancel": "cancel the waiting job of queue {queue} that has the lowest priority",
}
"""`cancel` wants a choice that no slot explains: there a model is needed every time."""


def should(task: Task, view: WorldView) -> Orders:
    """What is to be ordered as things stand; nothing where it is so already, cannot be, or is only a question."""
    names = task.names
    job: JobView | None = view.jobs.get(names["job"])
    node = next(each for each in view.nodes if each.node == names["node"])
    waiting = [each for each in view.jobs.values() if each.phase == "waiting"]
    if task.kind == "drain" and node.status == "in service":
        there = view.on_node(node.node)
        evict = bool(there) and all(each.preemptible for each in there)
        return [{"op": "drain", "node": node.node, "evict": evict}]
    if task.kind == "resume" and node.status != "in service":
        return [{"op": "resume", "node": node.node}]
    if task.kind == "stop" and job is not None and (job.phase == "waiting" or (job.runs and job.preemptible)):
        return [{"op": "preempt" if job.runs else "hold", "job": job.id}]
    if task.kind == "priority" and job is not None and not job.runs:
        return [{"op": "priority", "job": job.id, "value": names["priority"]}]
    if task.kind == "quota":
        (row,) = (each for each in view.queues if each.queue == names["queue"])
        return [{"op": "quota", "queue": row.queue, "gpus": (row.nominal_gpus or 0) + names["number"]}]
    if task.kind == "release":
        held = [each for each in view.jobs.values() if each.phase == "held" and each.queue == names["queue"]]
        return [{"op": "release", "job": each.id} for each in held]
    if task.kind == "reserve":
        return [{"op": "reserve", "name": names["name"], "gpus": names["number"], "time": names["time"]}]
    if task.kind == "hold":
        return [{"op": "hold", "job": each.id} for each in waiting if each.user == names["user"]]
    if task.kind == "cancel" and (rows := [each for each in waiting if each.queue == names["queue"]]):
        return [{"op": "cancel", "job": min(rows, key=lambda each: (each.priority, each.id)).id}]
    return []


# --- the expert -------------------------------------------------------------------------------------------------------


def expert(task: Task) -> Callable[[TaskTrace], TraceCall]:
    """Chooses the next call by the answers so far alone; it looks again after whatever was refused."""

    def chosen(trace: TaskTrace) -> TraceCall:
        steps = trace.steps
        last = steps[-1] if steps else None
        if last is not None and last.call.tool == "plan":
            answer = last.answer or {}
            if not answer.get("can_be_applied"):
                return TraceCall(DONE, {"answer": "impossible"})
            return TraceCall("apply", {"plan_id": answer["plan_id"], "reason": f"asked for: {task.text}"})
        if last is not None and last.call.tool == "apply" and not (last.answer or {}).get("refused"):
            return TraceCall(DONE, {"answer": "done"})
        begin = max((n for n, each in enumerate(steps, 1) if (each.answer or {}).get("refused")), default=0)
        return look(task, [each.answer or {} for each in steps[begin:]])

    return chosen


def look(task: Task, answers: list[Answer]) -> TraceCall:
    """The next look at it, or what follows from them."""
    names, kind = task.names, task.kind
    queue, user, job, node = names["queue"], names["user"], names["job"], names["node"]
    looks = {
        "drain": (TraceCall("nodes"), TraceCall("jobs", {"phase": "running"})), "resume": (TraceCall("nodes"),),
        "stop": (TraceCall("job", {"job": job}),), "priority": (TraceCall("job", {"job": job}),),
        "quota": (TraceCall("queues"),),
        "release": (TraceCall("jobs", {"phase": "held", "queue": queue}),), "reserve": (TraceCall("whoami"),),
        "hold": (TraceCall("jobs", {"phase": "waiting", "user": user}),), "why": (TraceCall("why", {"job": job}),),
        "cancel": (TraceCall("jobs", {"phase": "waiting", "queue": queue}),),
    }  # fmt: skip
    if len(answers) < len(looks[kind]):
        return looks[kind][len(answers)]
    found = answers[0]
    nothing = TraceCall(DONE, {"answer": "nothing"})
    if kind == "why":
        return TraceCall(DONE, {"answer": found["reason"]["why"]}) if isinstance(found.get("reason"), dict) else nothing
    orders: Orders = []
    if kind in ("drain", "resume"):
        (row,) = (each for each in found["nodes"] if each["node"] == node)
        if (row["status"] == "in service") == (kind == "resume"):
            return nothing
        if kind == "drain":
            there = [each for each in answers[1]["jobs"] if node in each["nodes"]]
            evict = bool(there) and all(each["preemptible"] for each in there)
            orders = [{"op": "drain", "node": node, "evict": evict}]
        else:
            orders = [{"op": "resume", "node": node}]
    elif kind == "stop":
        phase, stoppable = found.get("phase"), found.get("preemptible")
        if phase == "waiting" or (phase == "running" and stoppable):
            orders = [{"op": "hold" if phase == "waiting" else "preempt", "job": job}]
        elif phase == "running":
            return TraceCall(DONE, {"answer": "impossible"})
    elif kind == "priority" and found.get("phase") in ("waiting", "held"):
        orders = [{"op": "priority", "job": job, "value": names["priority"]}]
    elif kind == "quota":
        (row,) = (each for each in found["queues"] if each["queue"] == queue)
        orders = [{"op": "quota", "queue": queue, "gpus": row["nominal_gpus"] + names["number"]}]
    elif kind == "reserve":
        orders = [{"op": "reserve", "name": names["name"], "gpus": names["number"], "time": names["time"]}]
    elif kind in ("release", "hold"):
        orders = [{"op": kind, "job": each["id"]} for each in found["jobs"]]
    elif kind == "cancel" and found["jobs"]:
        orders = [{"op": "cancel", "job": min(found["jobs"], key=lambda each: (each["priority"], each["id"]))["id"]}]
    return TraceCall("plan", {"orders": orders}) if orders else nothing


# --- the world changes under it, and whether what is applied is right ------------------------------------------------


class Watched(DeskTools):
    """The tools of a task. Before each call somebody else changes what it is about, so often as `drift` says.

    `wrong` has the plans that were applied and should not have been as things stood then, `right` those that should.
    """

    def __init__(self, task: Task, world: SimulatedWorld, drift: float, rng: random.Random) -> None:
        super().__init__(Desk(world, WHO))
        self.task, self.drift, self.rng = task, drift, rng
        self.wrong: list[str] = []
        self.right: list[str] = []
        self.changes = 0

    def call(self, call: TraceCall) -> Answer:
        if self.rng.random() < self.drift:
            self.changes += change(self.task, self.world, self.rng)
        wanted = should(self.task, self.view())
        known = len(self.desk.audit.txns)
        answer = super().call(call)
        if call.tool == "apply" and len(self.desk.audit.txns) > known:
            orders = to_json(self.desk.audit.plans[call.args["plan_id"]].orders)
            (self.right if same(orders, wanted) else self.wrong).append(call.args["plan_id"])
        return answer

    @property
    def world(self) -> SimulatedWorld:
        world = self.desk.world
        assert isinstance(world, SimulatedWorld)
        return world

    def wrong_by_runbook(self, run: RunbookRun) -> list[str]:
        """Of what was wrong, the plans that no model has chosen."""
        steps = [*run.before, *run.trace.steps]
        chosen = {(each.answer or {}).get("plan_id") for each in steps if each.by == "model"}
        return [plan for plan in self.wrong if plan not in chosen]

    def good(self, trace: TaskTrace) -> bool:
        """Whether the task came to a good end: the one right thing was done, or nothing is to be done or can be."""
        if self.wrong or not trace.ended:
            return False
        answer = trace.steps[-1].call.args["answer"]
        wanted = should(self.task, self.view())
        if answer == "done":
            return len(self.right) == 1
        if self.right:
            return False
        if answer == "impossible":
            return (
                self.task.kind == "stop"
                or not wanted
                or not Desk(self.world, WHO, Audit()).plan(wanted)["can_be_applied"]
            )
        if self.task.kind == "why":
            job = self.view().jobs.get(self.task.names["job"])
            found = self.world.why(job.id).get("reason") if job is not None and not job.runs else None
            return bool(answer == (found["why"] if isinstance(found, dict) else "nothing"))
        return not wanted


def same(orders: Orders, wanted: Orders) -> bool:
    """Whether they are the same orders, in whatever order."""
    return sorted(map(repr, to_json(parse_orders(wanted)) if wanted else [])) == sorted(map(repr, orders))


def change(task: Task, world: SimulatedWorld, rng: random.Random) -> bool:
    """Somebody else changes something that the task is about, or another thing. Returns whether it could be done."""
    names, view = task.names, world.view()
    job = view.jobs.get(names["job"])
    node = next(each for each in view.nodes if each.node == names["node"])
    there = [each.id for each in view.on_node(node.node)]
    others = sorted(view.jobs)
    orders: list[dict[str, Any]] = [
        {"op": "resume" if node.status != "in service" else "drain", "node": node.node},
        {"op": "quota", "queue": names["queue"], "gpus": rng.choice((8, 12, 16))},
        {"op": "submit", "gpus": rng.choice((1, 4, 8)), "time": "2h", "queue": names["queue"], "preemptible": False},
        *({"op": "cancel", "job": each} for each in rng.sample(others, min(2, len(others)))),
        *({"op": "cancel", "job": each} for each in there[:1]),
    ]
    if job is not None:
        orders += [{"op": {"running": "preempt", "held": "release"}.get(job.phase, "hold"), "job": job.id}] * 2
        orders += [{"op": "cancel", "job": job.id}]
    (order,) = parse_orders([rng.choice(orders)])
    try:
        world.carry_out(order, OTHER)
        world.settle()
    except InputError:
        return False
    return True
