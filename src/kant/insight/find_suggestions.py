"""Finds single changes that would end a job's wait. Each is verified on a trial before it is suggested."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from functools import partial

import msgspec

from kant.cluster.columns import J_QUEUE, J_USER
from kant.cluster.quota_tree import QuotaTree
from kant.cluster.shapes import Shape
from kant.insight.diagnosis import Diagnosis
from kant.insight.facts import known
from kant.insight.find_facts import competitors, expected_ends
from kant.insight.suggestions import (
    BackOffEnds,
    JobsEnd,
    JobStarts,
    LargerMost,
    MoreQuota,
    QueueOpens,
    ShorterRuntime,
    Suggestion,
)
from kant.insight.victims_too_large import UNLIMITED, victims_too_large
from kant.model.decision import (
    BackOff,
    BaseJobWaits,
    Behind,
    Booked,
    Closed,
    NeverFits,
    NoFit,
    NoReservation,
    OutOfBudget,
    Outranked,
    OverQuota,
    Reason,
    Reserved,
    RetriesUsed,
    TooLong,
)
from kant.model.tenant import Queue, QueueConfig, Quota
from kant.queueing.preemption.candidate import Candidate
from kant.queueing.preemption.search import choose

MOST_ENDS = 4096
"""Maximum number of running jobs whose ends are tried together. The jobs that end first are tried."""

MOST_ALONE = 64
"""Maximum number of running jobs that are tried one by one: would the end of this job alone be enough?"""

MOST_LOOKS = 4
"""Maximum number of searches that respect bookings. Each starts from the last end that the one before found."""

MOST_NAMED = 5
"""Maximum number of jobs that one suggestion names."""


def find_suggestions(diagnosis: Diagnosis, row: int, reason: Reason | None) -> tuple[Suggestion, ...]:
    """Return the changes that would end the wait for this reason. Empty if none is found or needed."""
    match reason:
        case NoFit():
            return (*ends(diagnosis, row, diagnosis.missing(row)[1]), *larger_most(diagnosis, row))
        case Booked():
            return ends(diagnosis, row, diagnosis.missing(row)[1])
        case OverQuota(ever=True):
            return more_quota(diagnosis, row, reason, _queue_shape(diagnosis, row, reason))
        case OverQuota():
            option = diagnosis.missing(row)[1]
            others = ends(diagnosis, row, option)
            return (*more_quota(diagnosis, row, reason, option), *others, *larger_most(diagnosis, row))
        case Reserved():
            return shorter(diagnosis, row)
        case Behind(job=job) | Outranked(job=job) | BaseJobWaits(job=job):
            return (JobStarts(job, diagnosis.missing(row)[0]),)
        case Closed(queue=queue, state=state) if state in ("hold", "stop"):
            return (QueueOpens(queue, diagnosis.missing(row)[0]),)
        case BackOff(until=until):
            return (BackOffEnds(until, (diagnosis.blocked_by(row) or diagnosis.missing(row)[0])),)
        case NeverFits() | RetriesUsed() | TooLong() | OutOfBudget() | Closed() | NoReservation() | None:
            return ()


def _queue_shape(diagnosis: Diagnosis, row: int, reason: OverQuota) -> Shape:
    """Return the job's shape on the GPU model of the reason."""
    options = diagnosis.admission.options(row, diagnosis.state.shape_of(row))
    return next((option for option in options if option.model == reason.model), options[0])


# --- jobs that end ---------------------------------------------------------------------------------------------


def ends(diagnosis: Diagnosis, row: int, shape: Shape) -> tuple[JobsEnd, ...]:
    """Return sets of running jobs. Once all jobs of a set have ended, the gang fits in the free capacity and its quota.

    No job can be left out of a set. The set that ends first comes first; then, if any, the first single job whose end
    is enough. Jobs ahead of the gang may still take the capacity.
    """
    state = diagnosis.state
    reach = competitors(diagnosis, shape)
    if diagnosis.uses_quotas and diagnosis.admission.shortage(row, shape) is not None:
        reach = list(state.running)
    ending = [pair for pair in expected_ends(diagnosis, reach) if pair[1] in state.running][:MOST_ENDS]
    end_of = {running: end for end, running in ending}

    def needed_of(some: list[int]) -> list[Candidate]:
        needed = _first_to_end(diagnosis, row, shape, some, diagnosis.now)
        for _ in range(MOST_LOOKS):
            at = known(max((end_of[who.row] for who in needed), default=-1))
            if not state.books or at < 0:
                return needed
            then = _first_to_end(diagnosis, row, shape, some, at)
            if [who.row for who in then] == [who.row for who in needed]:
                return needed
            needed = then
        return []

    running = [row for _, row in ending]
    needed = needed_of(running)
    if not needed:
        return ()
    found = _jobs_end(diagnosis, needed, end_of)
    several = running[:MOST_ALONE] if needed[-1].row != running[0] else []
    alone = next((one for who in several if (one := needed_of([who]))), None)
    if alone is None or [who.row for who in needed] == [alone[0].row]:
        return (found,)
    return found, _jobs_end(diagnosis, alone, end_of)


def _first_to_end(diagnosis: Diagnosis, row: int, shape: Shape, running: list[int], at: int) -> list[Candidate]:
    """Return the jobs of `running` whose ends give the gang its quota, and from `at` on a place that is not booked.
    `running` is in order of expected ends. Empty if even all of these jobs are not enough.
    """
    held = {other: diagnosis.state.running[other] for other in running}
    with ExitStack() as trial:
        trial.enter_context(diagnosis.rolled_back())
        if diagnosis.state.books:
            from kant.insight.beside_bookings import at_time, open_part  # most clusters have no bookings

            trial.enter_context(at_time(diagnosis, row, at))
            held = {other: open_part(diagnosis, row, each) for other, each in held.items()}
        # Jobs that end later rank behind, so the search finds the set with the earliest end. Of sets with the same end,
        # it finds the one with the fewest jobs.
        candidates = [Candidate(other, each, 0, 0, (i,)) for i, (other, each) in enumerate(held.items())]
        admitted = partial(admits, diagnosis, row, shape)
        chosen = choose(diagnosis.placer, shape, row, candidates, UNLIMITED, admitted)
    return chosen[0] if chosen is not None else []


def _jobs_end(diagnosis: Diagnosis, ending: list[Candidate], end_of: dict[int, int]) -> JobsEnd:
    names = tuple(diagnosis.state.ids[who.row] for who in ending[-MOST_NAMED:][::-1])
    return JobsEnd(names, known(max(end_of[who.row] for who in ending)), len(ending) - len(names))


def admits(diagnosis: Diagnosis, row: int, shape: Shape, gone: Collection[Candidate]) -> bool:
    """Return whether the quota lets the job start after these running jobs have ended."""
    quota_usage = diagnosis.state.quota_usage
    if not diagnosis.uses_quotas or quota_usage.tree is None:
        return True
    tree = diagnosis.admission.quota_tree.copy()
    for who in gone:
        queue, user, _, amounts = quota_usage.charged[who.row]
        if quota_usage.node_of[queue] >= 0:
            tree.refund(quota_usage.node_of[queue], user, amounts)
    queue, user = diagnosis.state.jobs[row, [J_QUEUE, J_USER]].tolist()
    node = quota_usage.node_of[queue]
    return node < 0 or tree.shortage(node, user, quota_usage.amounts(shape)) is None


# --- more quota, less time -------------------------------------------------------------------------------------


def more_quota(diagnosis: Diagnosis, row: int, reason: OverQuota, shape: Shape) -> tuple[MoreQuota, ...]:
    """Return how much one quota would have to grow to admit the job, if that alone is enough."""
    state, quota_usage = diagnosis.state, diagnosis.state.quota_usage
    queue, user = state.jobs[row, [J_QUEUE, J_USER]].tolist()
    own = diagnosis.admission.quota_tree.queues[quota_usage.node_of[queue]].name
    grows, more = reason.queue if reason.limit == "user" else own, reason.asked - reason.available
    queues = tuple(
        grown(queue, reason, more) if queue.name == grows else queue for queue in quota_usage.queue_config.queues
    )
    tree = QuotaTree(QueueConfig(queues, quota_usage.queue_config.prices))
    if not reason.ever:
        for charged, who, _, amounts in quota_usage.charged.values():
            if quota_usage.node_of[charged] >= 0:
                tree.charge(quota_usage.node_of[charged], who, amounts)
    if tree.shortage(quota_usage.node_of[queue], user, quota_usage.amounts(shape)) is not None:
        return ()
    then: Reason | None = diagnosis.missing_place(row, shape)
    return (MoreQuota(grows, reason.model, reason.resource, more, reason.limit, then),)


def grown(queue: Queue, reason: OverQuota, more: int) -> Queue:
    """Return the queue with a quota larger by `more`: its nominal amount, or the limit of one user."""
    quotas = list(queue.quotas)
    at = next((i for i, q in enumerate(quotas) if (q.model, q.resource) == (reason.model, reason.resource)), -1)
    if at < 0:
        quotas.append(Quota(reason.resource, reason.model, more))  # type: ignore[arg-type]
    elif reason.limit == "user":
        quotas[at] = msgspec.structs.replace(quotas[at], user_limit=quotas[at].user_limit + more)
    else:
        quotas[at] = msgspec.structs.replace(quotas[at], nominal=quotas[at].nominal + more)
    return msgspec.structs.replace(queue, quotas=tuple(quotas))


def larger_most(diagnosis: Diagnosis, row: int) -> tuple[LargerMost, ...]:
    """Return the smallest `most` with which the job may preempt enough jobs, if the profile's `most` is too small."""
    large = victims_too_large(diagnosis, row)
    if large is None or not large.asked:  # no `most` helps a job that asks for no GPU
        return ()
    most = -(-large.held // large.asked)
    return (LargerMost(most, diagnosis.state.ids[large.rows[0]], len(large.rows), large.at),)


def shorter(diagnosis: Diagnosis, row: int) -> tuple[ShorterRuntime, ...]:
    """Return the longest run time with which the job ends before the blocking reservation needs its resources."""
    state, cycle = diagnosis.state, diagnosis.cycle
    shape = diagnosis.missing(row)[1]
    best = 0
    with diagnosis.without_reservation_of(row):
        for start in sorted({p.start for r, p in state.reserved.items() if r != row and p.start > diagnosis.now}):
            with diagnosis.rolled_back():
                if isinstance(cycle.place_beside(row, shape, start), NoFit):
                    break
            best = start - diagnosis.now
    return (ShorterRuntime(best),) if best else ()
