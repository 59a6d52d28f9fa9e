"""Why is this job waiting? One dominant reason, the numbers behind it, and what would free it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kant.cluster.columns import J_MILLI, J_PODS, J_PRIORITY, J_QUEUE, J_SINCE
from kant.insight.calibration import TrackRecord
from kant.insight.cooperative import Task, cooperative
from kant.insight.diagnosis import Diagnosis
from kant.insight.domain_choice import domain_choices
from kant.insight.eta import StartTimes
from kant.insight.eta_calibrator import Learned, calibrated_starts
from kant.insight.facts import Fact
from kant.insight.find_facts import find_facts
from kant.insight.find_suggestions import find_suggestions
from kant.insight.protected_victims import protected_victims
from kant.insight.suggestions import Suggestion
from kant.model.decision import NeverFits, OverQuota, Reason, RetriesUsed
from kant.placement.cost.wait_or_place import Choice
from kant.scheduler.cycle import Scheduler


@dataclass(frozen=True, slots=True)
class Rank:
    """The `rank` of a job, from 1, among the `of` waiting jobs that it is compared with."""

    rank: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that is known at `now` of why `job` waits since `since` (microseconds on the run's clock).

    `reason` is None where nothing keeps the next cycle from starting it. Ranks follow the profile's order:
    `among_competitors` counts the waiting jobs that compete for a pool of the job, `in_queue` those of its own queue.
    `expected` is its expected start (`eta.py`). `choice` says whether a gang does better to wait for one topology
    domain (`domain_choice.py`); None where it has no choice. `earlier` is the track record of such answers, where it is
    known (`eta_calibrator.py`).
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
    among_competitors: Rank
    in_queue: Rank
    expected: StartTimes
    choice: Choice | None
    earlier: TrackRecord | None = None


def why(scheduler: Scheduler, job: str, now: int | None = None) -> Reason | None:
    """The one reason for which `job` waits; None where nothing keeps the next cycle from starting it.

    Asking changes nothing. Raises StateError for a job that does not wait.
    """
    diagnosis = Diagnosis(scheduler, now)
    return diagnosis.why(diagnosis.row(job))


def is_final(reason: Reason | None) -> bool:
    """Whether the job can never start, as the cluster and its queues are."""
    return isinstance(reason, NeverFits | RetriesUsed) or (isinstance(reason, OverQuota) and reason.ever)


@cooperative
def explain(scheduler: Scheduler, job: str, now: int | None = None, learned: Learned = None) -> Task[Explanation]:
    """All that is known at `now` (by default the time of the last event) about why `job` waits.

    With `learned` the expected start is calibrated by earlier ones. Asking changes nothing. Raises StateError for a job
    that does not wait.
    """
    Diagnosis(scheduler, now).row(job)
    expected = yield from calibrated_starts.task(scheduler, learned, now, only=job)
    choices = yield from domain_choices.task(scheduler, now, only=job)
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
        expected=(expected[job].p50, expected[job].p90),
        earlier=expected[job].earlier,
        choice=choices.get(job),
    )


def _ranks(diagnosis: Diagnosis, row: int) -> tuple[Rank, Rank]:
    """The job's rank among the waiting jobs that compete for one of its pools, and in its own queue."""
    state, cycle = diagnosis.state, diagnosis.cycle
    rows = cycle.waiting_rows()
    ranked = rows[cycle.ranking(rows)]
    bits = state.shape_of(row).pool_bits
    competitors = np.array([bool(state.shape_of(other).pool_bits & bits) or other == row for other in ranked.tolist()])
    found = []
    for group in (ranked[competitors], ranked[state.jobs[ranked, J_QUEUE] == state.jobs[row, J_QUEUE]]):
        found.append(Rank(int(np.flatnonzero(group == row)[0]) + 1, len(group)))
    return found[0], found[1]
