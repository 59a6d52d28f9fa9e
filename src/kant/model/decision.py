"""The decisions of the scheduler. The Plan of a cycle is a list of decisions, which drivers carry out or refuse."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from kant.model.units import clock, show_duration

# --- Reasons: why a job waits or leaves, with the numbers behind it. -----------------------------------------


class _Reason(Struct, frozen=True, omit_defaults=True, tag_field="why"):
    pass


class NoFit(_Reason, frozen=True, tag="no-fit"):
    """Only `fits` of the `pods` that group `group` needs could be placed now.

    With a `level` the job requires one domain of that level of the fabric, and `fits` is for the best domain. With a
    `segment` the pods form segments of `segment` pods, each in one domain of the level `each`, and divided further as
    `inner` says. With `apart` each pod needs a domain of that level for itself.
    """

    group: int
    pods: int
    fits: int
    level: str = ""
    segment: int = 0
    each: str = ""
    apart: str = ""
    inner: tuple[tuple[str, int], ...] = ()


class NeverFits(_Reason, frozen=True, tag="never-fits"):
    """Even the empty cluster takes only `fits` of the `pods` that group `group` needs. Other fields: see `NoFit`."""

    group: int
    pods: int
    fits: int
    level: str = ""
    segment: int = 0
    each: str = ""
    apart: str = ""
    inner: tuple[tuple[str, int], ...] = ()


class Behind(_Reason, frozen=True, tag="behind"):
    """`job` is ahead of this job, and the discipline does not let this job pass it; `same`: both request the same."""

    job: str
    same: bool = False


class Outranked(_Reason, frozen=True, tag="outranked"):
    """`job` of higher priority waits for what this job would take. This job may pass `job` from `until` (µs) on."""

    job: str
    until: int


class OverQuota(_Reason, frozen=True, tag="over-quota"):
    """The job asks for `asked` of a resource of a GPU model; `queue` (its own or one above) has only `available` left.

    `limit` says what binds: `quota` (all of the queue's quota is in use), `borrowing` or `user`. Amounts are
    milli-GPUs, milli-cores or MiB. With `ever` it would not fit even if no quota were used: the job can never run.
    """

    queue: str
    model: str
    resource: str
    asked: int
    available: int
    limit: str
    ever: bool = False


class Reserved(_Reason, frozen=True, tag="reserved"):
    """The job would fit now, but not end before `start`, from when on capacity that it takes is reserved for `job`."""

    job: str
    start: int


class Closed(_Reason, frozen=True, tag="closed"):
    """`queue` does not start the job: `state` is hold, stop or drain, or unknown if the tree has no such queue."""

    queue: str
    state: str


class OutOfBudget(_Reason, frozen=True, tag="budget"):
    """`queue` (the job's own or one above it), or `user` in it, has used up a budget of the month that ends at `until`.

    `used` and `budget` are thousandths of GPU-hours; `user` is "" for the queue as a whole.
    """

    queue: str
    used: int
    budget: int
    until: int
    user: str = ""


class TooLong(_Reason, frozen=True, tag="too-long"):
    """The job's time limit is `limit` microseconds, and queue `queue` allows at most `most`."""

    queue: str
    limit: int
    most: int


class BackOff(_Reason, frozen=True, tag="back-off"):
    """The job returned to the queue `returns` times in a row and is not tried again before `until`."""

    returns: int
    until: int


class BaseJobWaits(_Reason, frozen=True, tag="core-waits"):
    """The job is a burst replica of `job`, which does not run."""

    job: str


class RetriesUsed(_Reason, frozen=True, tag="retries-used"):
    """The job has failed `failures` times, more often than its retries allow."""

    failures: int


class Booked(_Reason, frozen=True, tag="booked"):
    """GPUs that the job needs are booked from `start` on; with `own`, by its own reservation, which has not begun."""

    reservation: str
    start: int
    own: bool = False


class NoReservation(_Reason, frozen=True, tag="no-reservation"):
    """The reservation that the job names does not exist, or has ended."""

    reservation: str


Reason = (
    NoFit
    | NeverFits
    | Behind
    | Outranked
    | OverQuota
    | Reserved
    | Closed
    | OutOfBudget
    | TooLong
    | BackOff
    | BaseJobWaits
    | RetriesUsed
    | Booked
    | NoReservation
)


def amount(value: int, resource: str) -> str:
    """Format an amount of a resource for users."""
    if resource == "memory":
        return f"{value / 1024:g} GiB"
    return f"{value / 1000:g} {'GPU' if resource == 'gpu' else 'core'}{'s' * (value != 1000)}"


def _over_quota(reason: OverQuota) -> str:
    what = f"{amount(reason.asked, reason.resource)}{f' of {reason.model}' if reason.model else ''}"
    left = amount(reason.available, reason.resource)
    has = f"may use at most {left}" if reason.ever else f"has {left} left"
    who = f"its user {has} in queue {reason.queue}" if reason.limit == "user" else f"queue {reason.queue} {has}"
    tail = " before its borrowing limit" if reason.limit == "borrowing" and not reason.ever else ""
    return f"{'more than any quota' if reason.ever else 'over quota'}: it asks for {what}, and {who}{tail}"


def _each_where(reason: NoFit | NeverFits) -> str:
    if reason.apart:
        return f", each in one {reason.apart} without others of its group"
    cuts = ((reason.each, reason.segment), *reason.inner) if reason.segment else ()
    return ", ".join(["", *(f"in segments of {segment} that each lie in one {each}" for each, segment in cuts)])


def sentence(reason: Reason) -> str:
    """Return `reason` as a sentence for users."""
    match reason:
        case OverQuota():
            return _over_quota(reason)
        case Reserved(job=job, start=start):
            return f"capacity that it needs is reserved for job {job} from {clock(start)} on"
        case Closed(queue=queue, state="unknown"):
            return f"queue {queue} does not exist"
        case Closed(queue=queue, state=state):
            what = {"hold": "is on hold: it starts no jobs", "drain": "drains: it takes no new jobs"}
            return f"queue {queue} {what.get(state, 'is stopped')}"
        case OutOfBudget(queue=queue, used=used, budget=budget, until=until, user=user):
            whose = f"user {user} of queue {queue}" if user else f"queue {queue}"
            spent = f"has used {used / 1000:,g} of {budget / 1000:,g} GPU-hours this month"
            return f"{whose} {spent}, and starts no job before {clock(until)}"
        case TooLong(queue=queue, limit=limit, most=most):
            return f"its time limit is {show_duration(limit)}, and queue {queue} allows at most {show_duration(most)}"
        case BackOff(returns=returns, until=until):
            times = "once" if returns == 1 else f"{returns} times in a row"
            return f"it returned to the queue {times} and is tried again at {clock(until)}"
        case BaseJobWaits(job=job):
            return f"it is a burst replica of job {job}, which is not running"
        case Booked(reservation=name, start=start, own=True):
            return f"its reservation {name} begins at {clock(start)}"
        case Booked(reservation=name, start=start):
            return f"the free GPUs are booked by reservation {name} from {clock(start)} on"
        case NoReservation(reservation=name):
            return f"reservation {name} does not exist, or has ended"
        case RetriesUsed(failures=failures):
            return f"it has failed {failures:,} time{'s' * (failures != 1)} and has no retries left"
        case NoFit(pods=pods, fits=fits, level=level) if level:
            return f"fits in no {level}: the best one has room for {fits} of {pods} pods{_each_where(reason)}"
        case NoFit(pods=pods, fits=fits):
            return f"not enough free capacity: {fits} of {pods} pods fit now{_each_where(reason)}"
        case NeverFits(pods=pods, fits=fits, level=level) if level:
            best = f"the best one has room for {fits} of {pods} pods when empty"
            return f"it can never fit in one {level}: {best}{_each_where(reason)}"
        case NeverFits(pods=pods, fits=fits):
            return f"it can never fit: the empty cluster has room for {fits} of {pods} pods{_each_where(reason)}"
        case Behind(job=job, same=same):
            tail = "and asks for the same" if same else "and may not be passed in its queue"
            return f"job {job} is ahead of it {tail}"
        case Outranked(job=job, until=until):
            return f"job {job} of higher priority waits for the same capacity, and goes first until {clock(until)}"


# --- Decisions ------------------------------------------------------------------------------------------------


class _Decision(Struct, frozen=True, omit_defaults=True, tag_field="do"):
    job: str


class Start(_Decision, frozen=True, tag="start"):
    """Bind the whole gang to `allocation` (columns of `model.placement`).

    `kept` of its pods stay where they were before the gang lost a node; the others replace the lost ones.
    """

    allocation: np.ndarray
    kept: int = 0


class Preempt(_Decision, frozen=True, tag="preempt"):
    """Stop a running job; `moved` if the same plan starts it again elsewhere.

    `by` names the job that gets its devices, and `why` is the reason: `priority`, `reclaim`, `backfill`, `core` (its
    base job stops), `queue` (its queue was stopped), `drain` (one of its nodes drains), `reservation` (GPUs that it
    holds are booked from now on), `fallback` or `defragment` (it moves as a solver has proposed).
    """

    moved: bool = False
    by: str = ""
    why: str = ""


class Shrink(_Decision, frozen=True, tag="shrink"):
    """Take `allocation` back from an elastic gang, which runs on with the rest. `by` and `why` as for `Preempt`."""

    allocation: np.ndarray
    by: str = ""
    why: str = ""


class Grow(_Decision, frozen=True, tag="grow"):
    """Give `allocation` to a running elastic gang, in addition to what it holds."""

    allocation: np.ndarray


class Reject(_Decision, frozen=True, tag="reject"):
    """Reject the job: it leaves the queue."""

    reason: Reason


class Hold(_Decision, frozen=True, tag="hold"):
    """The job was tried and keeps waiting. Recorded once for each wait, not in every cycle."""

    reason: Reason


class Reserve(_Decision, frozen=True, tag="reserve"):
    """Reserve `allocation` for the waiting job from `start` to `end`, in place of its former reservation."""

    start: int
    end: int
    allocation: np.ndarray


class Release(_Decision, frozen=True, tag="release"):
    """Withdraw the reservation of the waiting job."""


class Expire(_Decision, frozen=True, tag="expire"):
    """Stop a running job that has reached its time limit, which counts as a failure."""


class Demote(_Decision, frozen=True, tag="demote"):
    """Move the job to a lower level of its multi-level queue."""

    level: int


class Reorder(Struct, frozen=True, tag="reorder", tag_field="do"):
    """All live jobs in their new order, for queue orders that depend on the previous order."""

    jobs: tuple[str, ...]


class Route(Struct, frozen=True, tag="route", tag_field="do"):
    """Switch back to `policy`, the default (`floor`) of the router, from the next cycle on; `why` is one sentence."""

    policy: str
    why: str


Decision = Start | Preempt | Shrink | Grow | Reject | Hold | Reserve | Release | Expire | Demote | Reorder | Route


class Plan(Struct, tag="planned", tag_field="event", omit_defaults=True):
    """The result of one cycle: decisions in the order of execution.

    `review_at` is the time at which another cycle is due even without an event (-1: none). A plan with `mending`
    concerns only partially bound gangs (`scheduler/partial_gangs.py`), with `proposed` only the last proposal of a
    solver (`scheduler/proposals.py`).
    """

    time: int
    decisions: list[Decision]
    review_at: int = -1
    mending: bool = False
    proposed: bool = False
