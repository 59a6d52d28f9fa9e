"""Rounds: all jobs stop together, and a policy chooses the jobs that run until the next stop.

The rules are those of Shockwave's simulator, which is Gavel's with changing batch sizes. A round ends when the last of
its jobs has made its steps. A job that did not run in the previous round loses PREEMPTION seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kant.model.adaptive import AdaptiveJob
from kant.model.errors import InputError
from kant.optimize.share.outcome import SharingOutcome, outcome
from kant.optimize.share.policy import RoundPolicy
from kant.optimize.share.training import TrainingProgress, speeds_of

ROUND = 120.0
PREEMPTION = 20.0
"""Seconds to save a job and to load it again, as published."""
SHORT = 5.0
"""A job that needs at least this much less than a whole round (seconds) is in its last round, and loses no time."""
LATEST = 1e10
"""Seconds after which a run is abandoned."""


@dataclass(frozen=True, slots=True)
class ShareRound:
    """The start and the end of a round, and the jobs that ran, with the seconds of each."""

    start: float
    end: float
    jobs: tuple[tuple[TrainingProgress, float], ...]


def simulate(
    jobs: Sequence[AdaptiveJob],
    gpus: int,
    policy: RoundPolicy,
    *,
    round_s: float = ROUND,
    preemption_s: float = PREEMPTION,
    weights: Mapping[str, float] | None = None,
    watch: Callable[[ShareRound], None] | None = None,
) -> SharingOutcome:
    """Run all jobs on `gpus` equal GPUs. Raises InputError if a job requests more.

    With `weights`, queues are the tenants: the weight of a queue (default 1) is divided among its present jobs. `watch`
    is called after each round.
    """
    for given in jobs:
        if given.gpus > gpus:
            raise InputError(f"job {given.name}: gpus", f"at most the {gpus} of the cluster", given.gpus)
    if not 0 <= preemption_s < round_s:
        expected = f"seconds from 0 to less than a round of {round_s:g}"
        raise InputError("the cost of a preemption", expected, preemption_s)
    ordered = sorted(range(len(jobs)), key=lambda i: (jobs[i].arrival, i))
    speeds = speeds_of(list(jobs))
    if any(int(int(speed * round_s) * (1 - preemption_s / round_s)) < 1 for speed in speeds.values()):
        raise InputError("the round", "time for a preemption and a step of every job", f"{round_s:g} s")
    every = [TrainingProgress(number, jobs[i], speeds) for number, i in enumerate(ordered)]
    chooser = policy.begin(gpus, round_s)
    active: list[TrainingProgress] = []
    before: set[int] | None = None
    now, came, rounds, used = 0.0, 0, 0, 0.0
    changed = True
    while came < len(every) or active:
        if not active:
            now, before = max(now, every[came].job.arrival), set() if rounds else None
        while came < len(every) and every[came].job.arrival <= now:
            active.append(every[came])
            came, changed = came + 1, True
        if weights is not None and changed:
            _weigh(active, weights)
        chosen = chooser.choose(active, now, changed)
        _check(chosen, gpus)
        made = [(job, steps := job.steps_in(round_s), now + steps / job.speed) for job in chosen]
        end = max((finish for *_, finish in made), default=now + round_s)  # possibly no job may run yet: time advances
        changed, ran = False, []
        for job, steps, finish in made:
            seconds = finish - now
            # The very first round costs nothing, and neither does a job's last one.
            if before is not None and job.number not in before and seconds > round_s - SHORT:
                steps = int(steps * ((seconds - preemption_s) / seconds))
                seconds -= preemption_s
            if steps > 0 or seconds > 0:
                chooser.ran(job, seconds)
            else:
                changed = True
            if job.advance(steps, seconds):
                job.ended, changed = finish, True
            ran.append((job, seconds))
            used += job.gpus * seconds
        if watch is not None:
            watch(ShareRound(now, end, tuple(ran)))
        now, before = end, {job.number for job in chosen}
        rounds += 1
        active = [job for job in active if job.ended < 0]
        for job in active:
            job.adapt()
        if now > LATEST:
            raise InputError("this workload", f"jobs that end within {LATEST:g} seconds")
    return outcome(every, gpus, rounds, used, chooser.note)


def _weigh(jobs: Sequence[TrainingProgress], weights: Mapping[str, float]) -> None:
    """Divide the weight of each queue among its jobs; the mean weight of a job is 1."""
    of_queue = Counter(job.job.queue for job in jobs)
    whole = sum(weights.get(queue, 1.0) for queue in of_queue)
    for job in jobs:
        job.weight = weights.get(job.job.queue, 1.0) / of_queue[job.job.queue] * len(jobs) / whole


def _check(chosen: Sequence[TrainingProgress], gpus: int) -> None:
    """Check the invariants of all policies: no job twice, no GPU twice."""
    if len({job.number for job in chosen}) < len(chosen) or sum(job.gpus for job in chosen) > gpus:
        raise AssertionError("a policy has given a GPU twice")
