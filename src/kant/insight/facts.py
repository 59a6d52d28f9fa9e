"""Typed facts behind a reason, each with its numbers and a sentence.

Amounts are in milli-GPUs, milli-cores or MiB; times are in microseconds on the run's clock.
"""

from __future__ import annotations

from msgspec import Struct

from kant.model.decision import Reason, amount, sentence
from kant.model.units import FOREVER, GPU, clock, show_duration


class _Fact(Struct, frozen=True, tag_field="about"):
    pass


class Free(_Fact, frozen=True, tag="free"):
    """`free` of `capacity` milli-GPUs in service are free in the pools that admit the job, on `on` of `nodes` nodes."""

    free: int
    capacity: int
    on: int
    nodes: int


class Fitting(_Fact, frozen=True, tag="fitting"):
    """`now` of `nodes` nodes have room for a pod of the group, which needs `gpus` devices, `milli` thousandths of each.

    Together these nodes have room for `takes` of the group's `pods`. On `devices_only` more nodes, only CPU or memory
    is missing. `needed` is the minimum number of empty nodes that hold the group. With `island`, the devices of a pod
    must be in one NVLink island. With `mig`, the pod requests a MIG instance of that profile.
    """

    group: int
    gpus: int
    milli: int
    pods: int
    takes: int
    now: int
    nodes: int
    needed: int
    devices_only: int
    island: bool = False
    mig: str = ""


class ClosedByRule(_Fact, frozen=True, tag="rule"):
    """`nodes` nodes have room for a pod of the group, but `rule` (such as anti-affinity with a class) excludes them."""

    group: int
    rule: str
    nodes: int


class HoldingQueue(_Fact, frozen=True, tag="holder"):
    """The running `jobs` of `queue` hold `held` milli-GPUs of the pools that admit the job."""

    queue: str
    held: int
    jobs: int


class Ending(_Fact, frozen=True, tag="ending"):
    """`job` is one of the next jobs to end: expected at `at` (-1: unknown). It then frees `held` milli-GPUs."""

    job: str
    held: int
    at: int


class QuotaUse(_Fact, frozen=True, tag="quota"):
    """`queue` uses `used` of its quota `nominal`, which includes what the queues below it may lend.

    `borrowed` is what the queue uses beyond its quota; `lent` is how much of its unused quota other queues use now.
    """

    queue: str
    model: str
    resource: str
    nominal: int
    used: int
    borrowed: int
    lent: int


class UserUse(_Fact, frozen=True, tag="user"):
    """`user` holds `held` of a resource in `queue` and the queues below it, out of at most `limit`."""

    user: str
    queue: str
    resource: str
    held: int
    limit: int


class Borrower(_Fact, frozen=True, tag="borrower"):
    """`queue` uses `borrowed` more of a resource than its own quota."""

    queue: str
    resource: str
    borrowed: int


class HeldReservation(_Fact, frozen=True, tag="promise"):
    """`job` has held a reservation since `since`: `gpus` milli-GPUs on `nodes` nodes from `start` to `end`.

    `own`: the reservation is that of the waiting job itself.
    """

    job: str
    since: int
    start: int
    end: int
    gpus: int
    nodes: int
    own: bool = False


class Blocker(_Fact, frozen=True, tag="blocker"):
    """`job` must start first. It has waited since `since` because of `reason` (None: it can start).

    `same`: it has the same requests as the waiting job, so as long as it does not fit, neither does the waiting job.
    """

    job: str
    since: int
    reason: Reason | None
    same: bool = False


class NotReservable(_Fact, frozen=True, tag="not-reservable"):
    """The profile plans starts ahead but makes no reservation for this job, since the plan does not support the job's
    rules over several nodes, its segments or its required anti-affinity.
    """


class ProtectedVictims(_Fact, frozen=True, tag="protected"):
    """From `at` on, enough running jobs (`jobs` of them) may be preempted for the waiting job.

    Each is protected for its minimum run time. The last job to reach it is in `queue` and has run `min_run` by `at`.
    """

    queue: str
    jobs: int
    min_run: int
    at: int


class AwaitsNode(_Fact, frozen=True, tag="awaits-node"):
    """The job waits `wait` µs for an autoscaler's node (set by `queue`; "": by the job); may preempt from `at` on."""

    queue: str
    wait: int
    at: int


class VictimsTooLarge(_Fact, frozen=True, tag="too-large"):
    """`jobs` running jobs, one of them `job`, would free enough, but the profile's `most` forbids preempting them.

    They hold `held` milli-GPUs, the smallest amount that suffices. The waiting job requests `asked` milli-GPUs. Jobs
    that hold up to `most` times that amount may be preempted for it.
    """

    job: str
    jobs: int
    held: int
    asked: int
    most: float


Fact = (
    Free
    | Fitting
    | ClosedByRule
    | HoldingQueue
    | Ending
    | QuotaUse
    | UserUse
    | Borrower
    | HeldReservation
    | NotReservable
    | Blocker
    | ProtectedVictims
    | AwaitsNode
    | VictimsTooLarge
)


def fact_sentence(found: Fact) -> str:
    """Return a fact as a sentence for people."""
    match found:
        case Free(free=free, capacity=capacity, on=on, nodes=nodes):
            return f"{free / GPU:g} of {count_gpus(capacity)} are free in all, on {on:,} of {count(nodes, 'node')}"
        case Fitting():
            return _fitting(found)
        case ClosedByRule(rule=rule, nodes=nodes):
            return f"{count(nodes, 'node')} with room: {rule}"
        case HoldingQueue(queue=queue, held=held, jobs=jobs):
            who = f"queue {queue}" if queue else "jobs without a queue"
            return f"{who} holds {count_gpus(held)} ({count(jobs, 'job')})"
        case Ending(job=job, held=held, at=at):
            when = f"is expected to end at {clock(at)}" if at >= 0 else "ends at an unknown time"
            return f"job {job} {when} and holds {count_gpus(held)}"
        case QuotaUse(queue=queue, model=model, resource=resource, nominal=nominal, used=used):
            quota = f"{amount(nominal, resource)}{of_model(model)}"
            text = f"queue {queue} uses {amount(used, resource)} of its quota of {quota}"
            if found.borrowed:
                return f"{text}: it borrows {amount(found.borrowed, resource)}"
            return f"{text}: {amount(found.lent, resource)} of the rest are in use by others" if found.lent else text
        case UserUse(user=user, queue=queue, resource=resource, held=held, limit=limit):
            return f"user {user} holds {amount(held, resource)} of at most {amount(limit, resource)} in queue {queue}"
        case Borrower(queue=queue, resource=resource, borrowed=borrowed):
            return f"queue {queue} uses {amount(borrowed, resource)} more than its own quota"
        case HeldReservation(job=job, since=since, start=start, end=end, gpus=gpus, nodes=nodes, own=own):
            until = f" to {clock(end)}" if end < FOREVER else " on"
            return (
                f"{'it' if own else f'job {job}'} has a reservation of {count_gpus(gpus)} on {count(nodes, 'node')} "
                f"from {clock(start)}{until} (since {clock(since)})"
            )
        case NotReservable():
            return "no start is reserved for it: reservations do not support its rules over several nodes"
        case ProtectedVictims(queue=queue, jobs=jobs, min_run=min_run, at=at):
            whose = f"of queue {queue} " if queue else ""
            who = f"a running job {whose}" if jobs == 1 else f"the last of {jobs:,} running jobs, {whose}"
            least = f"it runs for {show_duration(min_run)} before that (min_run)"
            return f"{who.strip()} may be stopped for it at {clock(at)}: {least}"
        case AwaitsNode(queue=queue, wait=wait, at=at):
            least = f"{show_duration(wait)} " + (f"in queue {queue} (node_wait)" if queue else "as the job requests")
            return f"it waits for a node until {clock(at)}, and preempts no job before that: {least}"
        case VictimsTooLarge(job=job, jobs=jobs, held=held, asked=asked, most=most):
            who = f"job {job}" if jobs == 1 else f"job {job} and {count(jobs - 1, 'other')}"
            allowed = f"{count_gpus(int(most * asked))} for this one of {count_gpus(asked)}"
            return (
                f"{who} could make room, but hold{'s' * (jobs == 1)} {count_gpus(held)}: "
                f"[preemption] most = {most:g} allows {allowed}"
            )
        case Blocker(job=job, since=since, reason=reason, same=same):
            what = sentence(reason) if reason is not None else "nothing keeps it from starting"
            who = f"job {job}, with the same request," if same else f"job {job}"
            return f"{who} has waited since {clock(since)}: {what}"


def _fitting(found: Fitting) -> str:
    if found.mig:
        what = f"a place for a MIG instance {found.mig}"
    elif found.gpus == 0:
        what = "the CPU and memory of a pod free"
    elif found.milli < GPU:
        what = f"{count(found.gpus, 'device')} with {found.milli / GPU:g} of a GPU free"
    else:
        what = f"{count(found.gpus, 'whole GPU')} free"
    if found.island:
        what += " in one NVLink island"
    text = f"{found.now:,} of {count(found.nodes, 'node')} have {what}"
    if found.gpus and found.devices_only:
        text += f" and the CPU and memory of a pod ({found.devices_only:,} more have only the GPUs)"
    short = found.pods - found.takes
    lacking = f"{count(short, 'pod')} do{'es' * (short == 1)} not fit" if short > 0 else "each pod fits on its own"
    return f"{text}; the gang needs {found.needed:,} or more: {lacking}"


def of_model(model: str) -> str:
    return f" of {model}" if model else ""


def count_gpus(milli: int) -> str:
    return "1 GPU" if milli == GPU else f"{milli / GPU:g} GPUs"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def known(time: int) -> int:
    """Return `time`, or -1 if it is FOREVER, which means that the time is unknown."""
    return time if time < FOREVER else -1
