"""The judge: checks the final state of a task, condition by condition. It compares two states and ignores all texts.

It does not rely on the desk: if a protected job was stopped, the state shows that, even if the desk allowed it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from kant.model.errors import InputError
from kant.model.units import HOUR
from kant.ops.audit import OpsEntry
from kant.ops.bench.conditions import missed, quota_of
from kant.ops.bench.task import BenchTask
from kant.ops.desk import replay
from kant.ops.simulated import SimulatedWorld
from kant.ops.view import JobView, WorldView

SLACK = 1.2
"""The maximum cost of a change as a multiple of the best possible cost."""
CLOSE = 0.005
"""The relative tolerance for numbers in an answer."""


class Verification(dict[str, list[str]]):
    """The complaints by name of the check: goal, protected, cancelled, quotas, economy, audit, untouched, answer."""

    @property
    def passed(self) -> bool:
        return not any(self.values())

    def complaints(self) -> dict[str, list[str]]:
        """The checks that have complaints."""
        return {check: found for check, found in sorted(self.items()) if found}


def judge(
    task: BenchTask, before: WorldView, world: SimulatedWorld, answer: dict[str, Any], audit: list[OpsEntry] | None
) -> Verification:
    """Judge the final state of `world`. `audit` is None if there is none to check. May advance the world's time."""
    verify, after = task.verify, world.view()
    verdict = Verification(
        protected=harmed(before, after),
        cancelled=[f"job {name} is gone" for name in gone(before, after) if name not in verify.cancels],
        quotas=_promised(before, after),
        economy=_dear(task, before, after),
        untouched=besides(task, before, after),
        answer=_said(verify.answer, answer),
    )
    if audit is not None:
        verdict["audit"] = _audited(task, after, audit)
    verdict["goal"] = missed(verify.goal, world, before)
    return verdict


def violations_left(task: BenchTask, before: WorldView, after: WorldView) -> list[str]:
    """Return the changes that nobody requested or that are forbidden, one text for each thing changed."""
    found = [f"{each} was stopped, which is not allowed" for each in harmed(before, after)]
    known = {*harmed(before, after)}
    named = {f"job {name}" for name in gone(before, after) if name not in task.verify.cancels} - known
    found += [f"{each} was withdrawn" for each in sorted(named)]
    return (
        found + _promised(before, after) + [each for each in besides(task, before, after) if each not in known | named]
    )


# --- invariants -----------------------------------------------------------------------------------------------------


def gone(before: WorldView, after: WorldView) -> list[str]:
    """Return the jobs that no longer exist. No time passes while an agent works, so no job has ended on its own."""
    return [name for name in before.jobs if name not in after.jobs]


def stopped(before: WorldView, after: WorldView) -> list[JobView]:
    """Return the jobs whose run of the earlier view has ended, as they were in that view."""
    own = after.jobs
    return [job for job in before.jobs.values() if job.runs and (job.id not in own or _other_run(job, own[job.id]))]


def _other_run(job: JobView, now: JobView) -> bool:
    return not now.runs or now.run != job.run


def harmed(before: WorldView, after: WorldView) -> list[str]:
    """Return the protected jobs whose run was stopped."""
    return [f"job {job.id}" for job in stopped(before, after) if not job.preemptible]


def besides(task: BenchTask, before: WorldView, after: WorldView) -> list[str]:
    """Return the unrequested changes of jobs, queues, nodes and reservations. A job that starts is not a change."""
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
        return (may_stop and new.phase != "held") or not _other_run(old, new)
    return (old.phase == "held") == (new.phase == "held")


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _promised(before: WorldView, after: WorldView) -> list[str]:
    """Return the errors in quotas: their total must not exceed the GPUs that exist (or the total before), and none may
    be below what protected jobs hold.
    """
    found = []
    there = sum(node.gpus for node in after.nodes)
    promises = [sum(each.nominal_gpus or 0.0 for each in view.queues) for view in (before, after)]
    if promises[1] > max(promises[0], there):
        found.append(f"quotas add up to {promises[1]:g} GPUs of {there:g}")
    for queue in after.queues:
        jobs = [job for job in after.jobs.values() if job.runs and not job.preemptible and job.queue == queue.queue]
        held = sum(job.gpus for job in jobs)
        if queue.nominal_gpus is not None and queue.nominal_gpus < held and quota_of(before, queue.queue) >= held:
            found.append(f"queue {queue.queue} has a quota below what its protected jobs hold")
    return found


# --- economy --------------------------------------------------------------------------------------------------------


def cost(of: str, before: WorldView, after: WorldView) -> float:
    """Return the cost of a change in the unit of `Economy.of`; infinite if a new reservation is missing."""
    if of == "lost":
        return sum(job.lost_gpu_s for job in stopped(before, after)) / 3600
    known = {each.name for each in before.booked}
    starts = [each.start_us for each in after.booked if each.name not in known]
    return max((start - before.now_us) / HOUR for start in starts) if starts else float("inf")


def _dear(task: BenchTask, before: WorldView, after: WorldView) -> list[str]:
    economy = task.verify.economy
    if economy is None:
        return []
    paid = cost(economy.of, before, after)
    if paid <= SLACK * economy.best + 1e-6:
        return []
    return [f"{economy.of}: {paid:.3g}, but {economy.best:.3g} would suffice"]


# --- audit and answer -----------------------------------------------------------------------------------------------


def _audited(task: BenchTask, after: WorldView, audit: list[OpsEntry]) -> list[str]:
    """Return the errors in the audit: its replay must give the final state, and it must not have more transactions
    than the task allows.
    """
    again = task.world()
    found = []
    try:
        replay(again, audit)
    except InputError as error:
        found.append(str(error))
    if again.view().version != after.version:
        found.append("the audit log does not lead to the present state")
    applied = sum(entry.what == "applied" for entry in audit)
    if applied > task.verify.transactions:
        found.append(f"{applied} transactions, but {task.verify.transactions} would suffice")
    return found


def _said(wanted: dict[str, Any], answer: dict[str, Any]) -> list[str]:
    return [
        f"{key} is not {answer.get(key)!r:.60}" for key, value in wanted.items() if not alike(value, answer.get(key))
    ]


def alike(wanted: Any, got: Any) -> bool:
    """Return whether two answers agree: texts regardless of case, numbers within a tolerance, lists in any order."""
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
