"""Conditions: the words in which a task states what must hold in the final state, or some time later."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from kant.live.sentences import public_id
from kant.model.errors import InputError
from kant.model.event import Event, JobEvicted, JobFinished, JobPreempted, JobStarted
from kant.model.units import parse_duration
from kant.ops.simulated import SimulatedWorld
from kant.ops.view import WorldView

Goal = tuple[dict[str, Any], ...]
DURATIONS = ("after", "within", "by", "since", "time")


def check_goal(goal: Goal, where: str) -> None:
    """Raise InputError for an unknown condition, or for fields that do not fit it."""
    for number, each in enumerate(goal, start=1):
        at = f"{where}, goal {number}"
        known = CONDITIONS.get(each.get("is", ""))
        if known is None:
            raise InputError(f"{at}, is", f"one of {', '.join(CONDITIONS)}", each.get("is"))
        try:
            inspect.signature(known).bind(None, None, **_fields(each))
        except TypeError as error:
            raise InputError(at, f"the fields of {each['is']} ({error})") from None
        for name in set(DURATIONS) & each.keys():
            parse_duration(each[name], f"{at}, {name}")


def _fields(condition: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in condition.items() if key not in ("is", "after")}


def missed(goal: Goal, world: SimulatedWorld, before: WorldView) -> list[str]:
    """Return the conditions that do not hold now or, if they have a time `after`, that much later. Time may advance."""
    now, found = world.now(), []
    for each in sorted(goal, key=lambda one: parse_duration(one.get("after", "0s"), "after")):
        world.step(now + parse_duration(each.get("after", "0s"), "after"))
        if not CONDITIONS[each["is"]](world, before, **_fields(each)):
            found.append(f"condition not met: {' '.join(f'{key}={value}' for key, value in each.items())}")
    return found


def quota_of(view: WorldView, queue: str) -> float:
    """The nominal GPUs of a queue; 0 if it has no quota."""
    return next(
        (each.nominal_gpus for each in view.queues if each.queue == queue and each.nominal_gpus is not None), 0.0
    )


def _phase(world: SimulatedWorld, before: WorldView, job: str, phase: str) -> bool:
    found = world.view().jobs.get(job)
    return found is not None and found.phase == phase


def _started(world: SimulatedWorld, before: WorldView, job: str, within: str) -> bool:
    """Return whether the job first started at most `within` after the task's beginning."""
    starts = [
        event.time for event in world.events_so_far if isinstance(event, JobStarted) and public_id(event.job) == job
    ]
    return bool(starts) and starts[0] <= before.now_us + parse_duration(within, "within")


def _finished(world: SimulatedWorld, before: WorldView, job: str) -> bool:
    """Return whether the job has finished."""
    return any(isinstance(event, JobFinished) and public_id(event.job) == job for event in world.events_so_far)


def _node(world: SimulatedWorld, before: WorldView, node: str, status: str = "", empty: bool = False) -> bool:
    """Return whether the node has this status ("": any); with `empty`, also whether no job runs on the node."""
    view = world.view()
    found = next(each for each in view.nodes if each.node == node)
    return status in ("", found.status) and not (empty and view.on_node(node))


def _quota_is(world: SimulatedWorld, before: WorldView, queue: str, gpus: float) -> bool:
    return quota_of(world.view(), queue) == gpus


def _priority_is(world: SimulatedWorld, before: WorldView, job: str, value: int) -> bool:
    found = world.view().jobs.get(job)
    return found is not None and found.priority == value


def _booked(
    world: SimulatedWorld,
    before: WorldView,
    gpus: int,
    time: str,
    by: str,
    since: str = "0s",
    name: str = "*",
    leaves: int = 99,
) -> bool:
    """Return whether the only new reservation has this size and duration and starts `since` to `by` from now."""
    view = world.view()
    leaf = {node.node: node.leaf for node in view.nodes}
    known = {each.name for each in before.booked}
    new = [each for each in view.booked if each.name not in known]
    return len(new) == 1 and all(
        each.gpus == gpus
        and each.end_us - each.start_us == parse_duration(time, "time")
        and parse_duration(since, "since") <= each.start_us - before.now_us <= parse_duration(by, "by")
        and fnmatchcase(each.name, name)
        and len({leaf[node] for node in each.nodes}) <= leaves
        for each in new
    )


def _unbooked(world: SimulatedWorld, before: WorldView, name: str) -> bool:
    return all(each.name != name for each in world.view().booked)


def _gone(world: SimulatedWorld, before: WorldView, job: str) -> bool:
    return job not in world.view().jobs


def _submitted(world: SimulatedWorld, before: WorldView, phase: str, **fields: Any) -> bool:
    """Return whether there is exactly one new job, and it has this phase and these fields (of `JobView`)."""
    new = [job for name, job in world.view().jobs.items() if name not in before.jobs]
    fits = [all(getattr(job, key) == value for key, value in fields.items()) and job.phase == phase for job in new]
    return fits == [True]


def _undisturbed(world: SimulatedWorld, before: WorldView) -> bool:
    """Return whether no job has been preempted or evicted since the task's beginning."""
    return not any(isinstance(event, JobPreempted | JobEvicted) for event in _since(world, before))


def _since(world: SimulatedWorld, before: WorldView) -> list[Event]:
    return [event for event in world.events_so_far if event.time >= before.now_us]


def _spare(world: SimulatedWorld, before: WorldView) -> bool:
    """Return whether exactly one node is out of service, and no job runs on it."""
    view = world.view()
    out = [node for node in view.nodes if node.status != "in service"]
    return len(out) == 1 and not view.on_node(out[0].node)


CONDITIONS: dict[str, Callable[..., bool]] = {
    "phase": _phase, "started": _started, "finished": _finished, "node": _node,
    "quota": _quota_is, "priority": _priority_is, "booked": _booked, "unbooked": _unbooked, "gone": _gone,
    "submitted": _submitted, "undisturbed": _undisturbed, "spare": _spare,
}  # fmt: skip
"""The functions that check the conditions, by name. Their parameters are the fields of a condition."""
