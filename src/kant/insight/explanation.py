"""Why is this job waiting? One dominant reason, the numbers behind it, and what would free it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.cluster.columns import J_MILLI, J_PODS, J_PRIORITY, J_QUEUE, J_SINCE
from kant.insight.diagnosis import Diagnosis
from kant.insight.expected_start import ExpectedStart, WaitingJob, WaitOrPlace
from kant.insight.facts import Fact
from kant.insight.find_facts import find_facts
from kant.insight.find_suggestions import find_suggestions
from kant.insight.more_nodes import MoreNodes, more_nodes
from kant.insight.protected_victims import protected_victims
from kant.insight.starts_now import NoChange, StartsNow, starts_now
from kant.insight.suggestions import Suggestion
from kant.model.decision import Reason
from kant.scheduler.cycle import Scheduler


@dataclass(frozen=True, slots=True)
class QueueRank:
    """The rank of a job among `of` waiting jobs. The first job has rank 1."""

    rank: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is known at `now` about why `job` has waited since `since` (microseconds on the run's clock).

    `reason` is None if nothing keeps the next cycle from starting the job. Ranks follow the profile's order:
    `among_competitors` is the rank among the jobs that compete for one of its pools, `in_queue` that in its own queue.
    `expected` is its expected start, from a forecast made at `as_of` (microseconds; -1: no forecast). `choice` says
    whether a gang should wait for one topology domain; None if it has no choice. `starts_now` has the changes that
    start it at once, `more_nodes` the additional nodes with which it would start.
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
    suggestions: tuple[Suggestion, ...]
    among_competitors: QueueRank
    in_queue: QueueRank
    expected: ExpectedStart
    choice: WaitOrPlace | None
    as_of: int = -1
    starts_now: tuple[StartsNow, ...] | NoChange = ()
    more_nodes: tuple[MoreNodes, ...] = ()


def why(scheduler: Scheduler, job: str, now: int | None = None) -> Reason | None:
    """Return the one reason why `job` waits. None if nothing keeps the next cycle from starting it.

    The scheduler is not affected. Raises StateError for a job that does not wait.
    """
    diagnosis = Diagnosis(scheduler, now)
    return diagnosis.why(diagnosis.row(job))


def explain(
    scheduler: Scheduler, job: str, now: int | None = None, forecast: WaitingJob | None = None, as_of: int = -1
) -> Explanation:
    """Return all that is known at `now` (by default the time of the last event) about why `job` waits.

    `forecast` is what a forecast made at `as_of` says about the job. The scheduler is not affected. Raises StateError
    for a job that does not wait.
    """
    diagnosis = Diagnosis(scheduler, now)
    row, state = diagnosis.row(job), diagnosis.state
    reason = diagnosis.why(row)
    competitors, own = _ranks(diagnosis, row)
    jobs = state.jobs
    return Explanation(
        job=job,
        now=diagnosis.now,
        since=int(jobs[row, J_SINCE]),
        queue=state.live[row].queue,
        priority=int(jobs[row, J_PRIORITY]),
        pods=int(jobs[row, J_PODS]),
        gpus=int(jobs[row, J_MILLI]),
        reason=reason,
        facts=(*find_facts(diagnosis, row, reason), *protected_victims(diagnosis, row, reason)),
        suggestions=find_suggestions(diagnosis, row, reason),
        among_competitors=competitors,
        in_queue=own,
        expected=forecast.start if forecast is not None else ExpectedStart(),
        choice=forecast.choice if forecast is not None else None,
        as_of=as_of,
        starts_now=starts_now(diagnosis, row),
        more_nodes=more_nodes(diagnosis, row),
    )


def _ranks(diagnosis: Diagnosis, row: int) -> tuple[QueueRank, QueueRank]:
    """Return the job's rank among the waiting jobs that compete for one of its pools, and in its own queue."""
    state, cycle = diagnosis.state, diagnosis.cycle
    rows = cycle.waiting_rows()
    ranked = rows[cycle.ranking(rows)]
    bits = state.shape_of(row).pool_bits
    competitors = np.array([bool(state.shape_of(other).pool_bits & bits) or other == row for other in ranked.tolist()])
    found = []
    for group in (ranked[competitors], ranked[state.jobs[ranked, J_QUEUE] == state.jobs[row, J_QUEUE]]):
        found.append(QueueRank(int(np.flatnonzero(group == row)[0]) + 1, len(group)))
    return found[0], found[1]
