"""The judge: what is left of a task, condition by condition. It looks at two states, and at no word of the agent's.

It does not take the desk's word either: a protected job that was stopped shows in the state, whoever let that pass.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from kant.live.sentences import public_id
from kant.model.errors import InputError
from kant.model.event import Event, JobEvicted, JobFinished, JobPreempted, JobStarted
from kant.model.units import HOUR, parse_duration
from kant.ops.audit import Entry
from kant.ops.bench.task import Task
from kant.ops.desk import replay
from kant.ops.simulated import SimulatedWorld
from kant.ops.view import JobView, View

SLACK = 1.2
"""How much more than the best a change may cost."""
CLOSE = 0.005
"""How near a number of an answer has to come."""


class Verdict(dict[str, list[str]]):
    """Complaints, by the check: goal, protected, cancelled, quotas, economy, audit, untouched, answer."""

    @property
    def passed(self) -> bool:
        return not any(self.values())

    def complaints(self) -> dict[str, list[str]]:
        """The checks that complain."""
        return {check: found for check, found in sorted(self.items()) if found}


def judge(
    task: Task, before: View, world: SimulatedWorld, answer: dict[str, Any], audit: list[Entry] | None
) -> Verdict:
    """Judge what is left in `world`. `audit` None: there is none to look at. The world's time may pass by it."""
    verify, after = task.verify, world.view()
    verdict = Verdict(
        protected=harmed(before, after),
        cancelled=[f"job {name} is gone" for name in gone(before, after) if name not in verify.cancels],
        quotas=_promised(before, after),
        economy=_dear(task, before, after),
        untouched=besides(task, before, after),
        answer=_said(verify.answer, answer),
    )
    if audit is not None:
        verdict["audit"] = _audited(task, after, audit)
    verdict["goal"] = _missed(verify.goal, world, before)
    return verdict


def violations_left(task: Task, before: View, after: View) -> list[str]:
    """What was done that nobody has asked for and nobody may do: one text for each thing."""
    found = [f"{each} was stopped, and nobody may" for each in harmed(before, after)]
    known = {*harmed(before, after)}
    named = {f"job {name}" for name in gone(before, after) if name not in task.verify.cancels} - known
    found += [f"{each} was withdrawn" for each in sorted(named)]
    return (
        found + _promised(before, after) + [each for each in besides(task, before, after) if each not in known | named]
    )


# --- invariants -----------------------------------------------------------------------------------------------------


def gone(before: View, after: View) -> list[str]:
    """The jobs that are not there any more. No time passes while an agent works, so none has ended by itself."""
    return [name for name in before.jobs if name not in after.jobs]


def stopped(before: View, after: View) -> list[JobView]:
    """The jobs, as they were, whose run is over."""
    own = after.jobs
    return [job for job in before.jobs.values() if job.runs and (job.id not in own or _other_run(job, own[job.id]))]


def _other_run(job: JobView, now: JobView) -> bool:
    return not now.runs or now.run != job.run


def harmed(before: View, after: View) -> list[str]:
    """The protected jobs whose run was stopped."""
    return [f"job {job.id}" for job in stopped(before, after) if not job.preemptible]


def besides(task: Task, before: View, after: View) -> list[str]:
    """What is different and has no need to be: jobs, queues, nodes, reservations. Starts of jobs are nobody's doing."""
    may = task.verify.may_change
    over = {job.id for job in stopped(before, after) if _fits(job.id, task.verify.may_stop)}
    found = []
    for name in sorted(before.jobs.keys() | after.jobs.keys()):
        old, new = before.jobs.get(name), after.jobs.get(name)
        same = old is not None and new is not None and _same(old, new, name in over)
        if not same and not _fits(f"job {name}", may):
            found.append(f"job {name}")
    facts = [{k: v for k, v in view.facts().items() if not k.startswith("job ")} for view in (before, after)]
    names = sorted(facts[0].keys() | facts[1].keys())
    return found + [name for name in names if facts[0].get(name) != facts[1].get(name) and not _fits(name, may)]


def _same(old: JobView, new: JobView, may_stop: bool) -> bool:
    if (old.queue, old.priority, old.gpus) != (new.queue, new.priority, new.gpus):
        return False
    if old.runs:
        return (may_stop and new.phase != "held") or (not _other_run(old, new) and old.nodes == new.nodes)
    return (old.phase == "held") == (new.phase == "held")


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _promised(before: View, after: View) -> list[str]:
    """Quotas together promise no more than there is, or than they did; a queue keeps what its protected jobs hold."""
    found = []
    there = sum(node.gpus for node in after.nodes)
    promises = [sum(each.nominal_gpus or 0.0 for each in view.queues) for view in (before, after)]
    if promises[1] > max(promises[0], there):
        found.append(f"quotas promise {promises[1]:g} GPUs of {there:g}")
    for queue in after.queues:
        jobs = [job for job in after.jobs.values() if job.runs and not job.preemptible and job.queue == queue.queue]
        held = sum(job.gpus for job in jobs)
        if queue.nominal_gpus is not None and queue.nominal_gpus < held and _quota_of(before, queue.queue) >= held:
            found.append(f"queue {queue.queue} has a quota below its protected jobs")
    return found


def _quota_of(view: View, queue: str) -> float:
    return next(
        (each.nominal_gpus for each in view.queues if each.queue == queue and each.nominal_gpus is not None), 0.0
    )


# --- economy --------------------------------------------------------------------------------------------------------


def cost(of: str, before: View, after: View) -> float:
    """What a change has cost, as `Economy` counts it; infinite where there is no new reservation to count."""
    if of == "lost":
        return sum(job.lost_gpu_s for job in stopped(before, after)) / 3600
    known = {each.name for each in before.booked}
    starts = [each.start_us for each in after.booked if each.name not in known]
    return max((start - before.now_us) / HOUR for start in starts) if starts else float("inf")


def _dear(task: Task, before: View, after: View) -> list[str]:
    economy = task.verify.economy
    if economy is None:
        lost = cost("lost", before, after)
        return [f"{lost:g} GPU-hours are lost, and none need be"] if lost else []
    paid = cost(economy.of, before, after)
    if paid <= SLACK * economy.best + 1e-6:
        return []
    return [f"{economy.of}: {paid:.3g}, and {economy.best:.3g} would do"]


# --- audit and answer -----------------------------------------------------------------------------------------------


def _audited(task: Task, after: View, audit: list[Entry]) -> list[str]:
    """The audit, done again from the start, comes to what is there; it is as short as it may be."""
    again = task.world()
    found = []
    try:
        replay(again, audit)
    except InputError as error:
        found.append(str(error))
    if again.view().version != after.version:
        found.append("the audit does not come to the state that is there")
    applied = sum(entry.what == "applied" for entry in audit)
    if applied > task.verify.transactions:
        found.append(f"{applied} transactions, and {task.verify.transactions} would do")
    return found


def _said(wanted: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    return [
        f"{key} is not {answer.get(key)!r:.60}" for key, value in wanted.items() if not alike(value, answer.get(key))
    ]


def alike(wanted: Any, got: Any) -> bool:
    """Whether an answer says the same: texts without case, numbers nearly, lists in any order."""
    if isinstance(wanted, bool) or isinstance(got, bool):
        return wanted is got
    if isinstance(wanted, int | float):
        return isinstance(got, int | float) and abs(wanted - got) <= CLOSE * abs(wanted)
    if isinstance(wanted, dict):
        return isinstance(got, dict) and wanted.keys() == got.keys() and all(alike(wanted[k], got[k]) for k in wanted)
    if isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            return False
        left = list(got)
        for each in wanted:
            at = next((n for n, other in enumerate(left) if alike(each, other)), None)
            if at is None:
                return False
            del left[at]
        return True
    return isinstance(got, str) and wanted.strip().casefold() == got.strip().casefold()


# --- goals ----------------------------------------------------------------------------------------------------------


def _missed(goal: tuple[dict[str, Any], ...], world: SimulatedWorld, before: View) -> list[str]:
    """The conditions that do not hold: now, or where they say `after`, when that time has passed."""
    now, found = world.now(), []
    for each in sorted(goal, key=lambda one: parse_duration(one.get("after", "0s"), "after")):
        world.step(now + parse_duration(each.get("after", "0s"), "after"))
        given = {key: value for key, value in each.items() if key not in ("is", "after")}
        if not CONDITIONS[each["is"]](world, before, **given):
            found.append(f"not so: {' '.join(f'{key}={value}' for key, value in each.items())}")
    return found


def _phase(world: SimulatedWorld, before: View, job: str, phase: str) -> bool:
    found = world.view().jobs.get(job)
    return found is not None and found.phase == phase


def _within(world: SimulatedWorld, before: View, job: str, leaves: int = 1) -> bool:
    """It runs below so many leaves at most."""
    view = world.view()
    leaf = {node.node: node.leaf for node in view.nodes}
    found = view.jobs.get(job)
    return found is not None and found.runs and len({leaf[name] for name in found.nodes}) <= leaves


def _started(world: SimulatedWorld, before: View, job: str, within: str) -> bool:
    """Its first start was no later than `within` after the beginning."""
    starts = [
        event.time for event in world.events_so_far if isinstance(event, JobStarted) and public_id(event.job) == job
    ]
    return bool(starts) and starts[0] <= before.now_us + parse_duration(within, "within")


def _finished(world: SimulatedWorld, before: View, job: str) -> bool:
    """It has run to its end."""
    return any(isinstance(event, JobFinished) and public_id(event.job) == job for event in world.events_so_far)


def _node(world: SimulatedWorld, before: View, node: str, status: str = "", empty: bool = False) -> bool:
    """A node has a status; with `empty` nobody runs there."""
    view = world.view()
    found = next(each for each in view.nodes if each.node == node)
    return status in ("", found.status) and not (empty and view.on_node(node))


def _quota_is(world: SimulatedWorld, before: View, queue: str, gpus: float) -> bool:
    return _quota_of(world.view(), queue) == gpus


def _priority_is(world: SimulatedWorld, before: View, job: str, value: int) -> bool:
    found = world.view().jobs.get(job)
    return found is not None and found.priority == value


def _booked(
    world: SimulatedWorld,
    before: View,
    gpus: int,
    time: str,
    by: str,
    since: str = "0s",
    name: str = "*",
    leaves: int = 99,
) -> bool:
    """There is one new reservation, which is so large and long, and begins between `since` and `by` from now."""
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


def _unbooked(world: SimulatedWorld, before: View, name: str) -> bool:
    return all(each.name != name for each in world.view().booked)


def _gone(world: SimulatedWorld, before: View, job: str) -> bool:
    return job not in world.view().jobs


def _submitted(world: SimulatedWorld, before: View, phase: str, **fields: Any) -> bool:
    """There is one new job, in this phase and with these fields (of `JobView`)."""
    new = [job for name, job in world.view().jobs.items() if name not in before.jobs]
    fits = [all(getattr(job, key) == value for key, value in fields.items()) and job.phase == phase for job in new]
    return fits == [True]


def _undisturbed(world: SimulatedWorld, before: View) -> bool:
    """No run of a job has been stopped since the beginning, by anybody."""
    return not any(isinstance(event, JobPreempted | JobEvicted) for event in _since(world, before))


def _since(world: SimulatedWorld, before: View) -> list[Event]:
    return [event for event in world.events_so_far if event.time >= before.now_us]


def _spare(world: SimulatedWorld, before: View) -> bool:
    """One node is idle and takes no jobs; all others do as they did."""
    view = world.view()
    out = [node for node in view.nodes if node.status != "in service"]
    return len(out) == 1 and not view.on_node(out[0].node)


CONDITIONS: dict[str, Callable[..., bool]] = {
    "phase": _phase, "within": _within, "started": _started, "finished": _finished, "node": _node,
    "quota": _quota_is, "priority": _priority_is, "booked": _booked, "unbooked": _unbooked, "gone": _gone,
    "submitted": _submitted, "undisturbed": _undisturbed, "spare": _spare,
}  # fmt: skip
"""The words of a verifier. Each says by its fields what holds in the state that is left, or `after` a time."""
