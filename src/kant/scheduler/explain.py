"""Why is this job waiting? One dominant reason, the numbers behind it, and what would free it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.cluster.columns import J_MILLI, J_PODS, J_PRIORITY, J_QUEUE, J_SINCE
from kant.model.decision import NeverFits, OverQuota, Reason, RetriesUsed
from kant.placement.wait_or_place import Choice
from kant.scheduler.answers import Learned, expecting
from kant.scheduler.calibration import Earlier
from kant.scheduler.choice import choosing
from kant.scheduler.cycle import Scheduler
from kant.scheduler.eta import Expected
from kant.scheduler.evidence import Fact, Remedy
from kant.scheduler.facts import facts_behind
from kant.scheduler.inquiry import Inquiry
from kant.scheduler.remedies import remedies_for
from kant.scheduler.steps import Steps, at_once


@dataclass(frozen=True, slots=True)
class Place:
    """The `rank` of a job, from 1, among the `of` waiting jobs that it is compared with."""

    rank: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is known at `now` of why `job` waits since `since` (microseconds on the run's clock).

    `reason` is None where nothing keeps the next cycle from starting it. Ranks follow the profile's order:
    `among_rivals` counts the waiting jobs that compete for some of the same pools, `in_queue` those of its own queue.
    `expected` has its expected start (scheduler/eta.py). `choice` is whether a gang does better to wait for one domain
    of the fabric (scheduler/choice.py); None where it has no choice. `earlier` tells
    how good such answers were, where that is known (scheduler/answers.py).
    """

    job: str
    now: int
    since: int
    queue: str
    priority: int
    pods: int
    gpus: int  # milli-GPUs, all pods together
    reason: Reason | None
    facts: tuple[Fact, ...]
    remedies: tuple[Remedy, ...]
    among_rivals: Place
    in_queue: Place
    expected: Expected
    choice: Choice | None
    earlier: Earlier | None = None


def why(scheduler: Scheduler, job: str, now: int | None = None) -> Reason | None:
    """The one reason for which `job` waits; None where nothing keeps the next cycle from starting it.

    Asking changes nothing. Raises Violation for a job that does not wait.
    """
    inquiry = Inquiry(scheduler, now)
    return inquiry.why(inquiry.row(job))


def is_final(reason: Reason | None) -> bool:
    """Whether no time will cure it: the job can never start, as the cluster and its queues are."""
    return isinstance(reason, NeverFits | RetriesUsed) or (isinstance(reason, OverQuota) and reason.ever)


def explanation(scheduler: Scheduler, job: str, now: int | None = None, learned: Learned = None) -> Explanation:
    """All that can be said at `now` (by default the time of the last event) about why `job` waits.

    With what was `learned` the expected start heeds what became of earlier ones. Asking changes nothing. Raises
    Violation for a job that does not wait.
    """
    return at_once(explaining(scheduler, job, now, learned))


def explaining(scheduler: Scheduler, job: str, now: int | None = None, learned: Learned = None) -> Steps[Explanation]:
    """The same, in steps. Raises Violation for a job that does not wait any more, too."""
    Inquiry(scheduler, now).row(job)
    expected = yield from expecting(scheduler, learned, now, only=job)
    choices = yield from choosing(scheduler, now, only=job)
    inquiry = Inquiry(scheduler, now)
    row, state = inquiry.row(job), inquiry.state
    reason = inquiry.why(row)
    rivals, own = _places(inquiry, row)
    jobs = state.jobs
    return Explanation(
        job=job,
        now=inquiry.now,
        since=int(jobs[row, J_SINCE]),
        queue=state.live[row].queue,
        priority=int(jobs[row, J_PRIORITY]),
        pods=int(jobs[row, J_PODS]),
        gpus=int(jobs[row, J_MILLI]),
        reason=reason,
        facts=facts_behind(inquiry, row, reason),
        remedies=remedies_for(inquiry, row, reason),
        among_rivals=rivals,
        in_queue=own,
        expected=(expected[job].p50, expected[job].p90),
        earlier=expected[job].earlier,
        choice=choices.get(job),
    )


def _places(inquiry: Inquiry, row: int) -> tuple[Place, Place]:
    """The job's rank among its rivals for the same pools, and in its own queue."""
    state, turn = inquiry.state, inquiry.turn
    rows = turn.pending()
    ranked = rows[turn.ranking(rows)]
    bits = state.shape_of(row).pool_bits
    rivals = np.array([bool(state.shape_of(other).pool_bits & bits) or other == row for other in ranked.tolist()])
    found = []
    for group in (ranked[rivals], ranked[state.jobs[ranked, J_QUEUE] == state.jobs[row, J_QUEUE]]):
        found.append(Place(int(np.flatnonzero(group == row)[0]) + 1, len(group)))
    return found[0], found[1]
