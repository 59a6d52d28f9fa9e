"""Shockwave: welfare over time and an early end of all jobs, with more weight for jobs that would end unfairly late."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kant.model.errors import InputError
from kant.model.taxonomy import Tags, tagged
from kant.optimize.share.policy import SHARES, Chooser
from kant.optimize.share.training import TrainingProgress
from kant.optimize.solvers import cp_sat, deterministic
from kant.queueing.window import Window, WindowJob, fill, late_weight, lay_out

UNITS = 10**6
"""The resolution of the objective: the largest gain of a job from a single round is this many integer units."""
PARTS = 1000
"""The remaining time of the longest job is counted in units of a round divided by PARTS."""


def best_counts(window: Window, begin: Sequence[int], limit: float) -> list[int]:
    """Numbers of rounds at least as good as `begin`, after at most `limit` deterministic seconds.

    Raises InputError if CP-SAT is not installed.
    """
    cp_model = cp_sat()
    model: Any = cp_model.CpModel()
    entries = window.entries
    scale = len(entries) * window.rounds
    counts, gains, most = [], [], []
    for i, entry in enumerate(entries):
        top = entry.most(window.rounds)
        counts.append(model.new_int_var(0, top, f"n{i}"))
        most.append(top)
    # Only whole rounds count. Gains shrink, so lines through neighbouring points bound the utility from above.
    steps = [
        [entry.weight * (entry.utility(n + 1) - entry.utility(n)) for n in range(top)]
        for entry, top in zip(entries, most, strict=True)
    ]
    unit = max((max(each) for each in steps), default=0.0) / UNITS or 1.0
    for i, each in enumerate(steps):
        whole = [round(step / unit) for step in each]
        gains.append(model.new_int_var(0, sum(whole), f"u{i}"))
        reached, last = 0, None
        for n, step in enumerate(whole):
            if step != last:
                model.add(gains[i] <= reached + step * (counts[i] - n))
            reached, last = reached + step, step
        model.add(gains[i] <= reached)
    price = round(window.price * scale / PARTS / unit)
    lengths = [math.ceil(entry.left * PARTS) for entry in entries]
    longest = model.new_int_var(0, max(lengths), "longest")
    for count, length in zip(counts, lengths, strict=True):
        model.add(longest >= length - PARTS * count)
    used = sum(entry.gpus * count for entry, count in zip(entries, counts, strict=True))
    model.add(used <= window.gpus * window.rounds)
    model.maximize(sum(gains) - price * longest)
    for variable, count in zip(counts, begin, strict=True):
        model.add_hint(variable, count)
    solver = deterministic(limit)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return list(begin)
    found = [solver.value(count) for count in counts]
    return found if window.value(found) > window.value(begin) else list(begin)


DONE = 1.0
"""The assumed remaining seconds of a job that has trained all its epochs."""


def expected_left(job: TrainingProgress) -> float:
    """The seconds that a job still needs if it runs all the time, estimated from its epochs at each batch size so far.

    A Dirichlet prior gives each batch size of the job's profile the same share of the epochs. The observed epochs,
    including the present one, are added. The expected epochs at each size, minus those trained, say how the remaining
    epochs are divided. Source: the predictor of Shockwave, arXiv 2210.00093, section 5.
    """
    whole = job.job.epoch_count
    left = whole - job.epoch
    if left <= 0:
        return DONE
    seconds = {run.batch: run.seconds for run in job.job.epochs}
    seconds[job.batch] = job.job.samples / job.batch / job.speed
    seen = dict(job.trained)
    seen[job.batch] = seen.get(job.batch, 0.0) + 1.0
    sizes = sorted(seconds.keys() | seen.keys())
    prior = whole / len(sizes)
    counted = whole + sum(seen.values())
    open_epochs = {}
    for batch in sizes:
        had = seen.get(batch, 0.0)
        open_epochs[batch] = max(0.0, whole * (prior + had) / counted - had)
    total = sum(open_epochs.values())
    if total <= 0:
        return left * seconds[job.batch]
    return left / total * sum(epochs * seconds.get(batch, seconds[job.batch]) for batch, epochs in open_epochs.items())


MEMORY = 0.9
"""A job's fair time is averaged over time with this weight; the latest estimate has the weight 1 - MEMORY."""


@dataclass(frozen=True, slots=True)
class ShockwaveRounds:
    """Plan a window of rounds so that the product of all progress is large and the longest job does not end late.

    If a job is expected to take longer than with a fair share of the cluster, its weight is multiplied by the ratio of
    the two times, to the power `lateness`. Jobs that must run in every round of the window go first, so that large ones
    do not pile up at the end; then those with the largest weights. The plan is renewed when jobs arrive or end and
    after `again` rounds. Source: P. Zheng et al., NSDI 2023, arXiv 2210.00093; the aggregation, the order, and times
    counted from a job's own arrival are ours.
    """

    window: int = 20
    """The number of rounds that are planned at once."""
    again: int = 8
    """The number of rounds after which the plan is renewed."""
    lateness: float = 12.0
    """The exponent, in a weight, of the ratio of the expected time to the fair time."""
    longest: float = 1e-3
    """The cost of one more second of the longest job, in units of the mean welfare of a round."""
    solver: bool = True
    """Whether CP-SAT improves the plan found by marginal gains."""
    solver_jobs: int = 200
    """The maximum number of jobs for which CP-SAT is used. With more, only marginal gains are used, which is fast."""
    limit: float = 0.03
    """The limit of CP-SAT for one plan, in deterministic seconds."""
    source: ClassVar[str] = "Shockwave, P. Zheng et al., NSDI 2023, arXiv 2210.00093"
    tags: ClassVar[Tags] = tagged(SHARES, knowledge="learned", objective="fairness makespan", method="solver")

    def begin(self, gpus: int, round_s: float) -> Chooser:
        return _Plan(self, gpus, round_s)


class _Plan:
    """The planned rounds, and the estimates of fair times so far."""

    def __init__(self, policy: ShockwaveRounds, gpus: int, round_s: float) -> None:
        self.policy, self.gpus, self.round_s = policy, gpus, round_s
        self.fair: dict[int, _FairTime] = {}
        self.rounds: list[list[TrainingProgress]] = []
        self.solver = policy.solver
        self.note = ""
        if self.solver:
            try:
                cp_sat()
            except InputError as absent:
                self.solver = False
                self.note = f"plans use only marginal gains: {absent}"

    def ran(self, job: TrainingProgress, seconds: float) -> None:
        """Do nothing: the job itself records its time."""

    def choose(self, jobs: Sequence[TrainingProgress], now: float, changed: bool) -> list[TrainingProgress]:
        if changed:
            self.fair = {job.number: self.fair.get(job.number) or _FairTime() for job in jobs}
            for job in jobs:
                self.fair[job.number].estimate(now, (job.ran + expected_left(job)) / self.share(job, jobs))
        if changed or not self.rounds:
            self.rounds = self.plan(jobs, now)
        return self.rounds.pop(0)

    def share(self, job: TrainingProgress, jobs: Sequence[TrainingProgress]) -> float:
        """The share of time that a job would run if the GPUs were divided among all jobs by their weights."""
        return min(1.0, self.gpus * job.weight / len(jobs))

    def plan(self, jobs: Sequence[TrainingProgress], now: float) -> list[list[TrainingProgress]]:
        policy = self.policy
        entries = []
        for job in jobs:
            left = expected_left(job)
            expected = now - job.job.arrival + left / self.share(job, jobs)
            late = expected / self.fair[job.number].at(now)
            weight = job.weight * late_weight(late, policy.lateness, left < self.round_s)
            # A present job has not ended, whatever its epochs say, so another round still has a gain for it.
            open_part = 0.5 * self.round_s / (job.ran + left + self.round_s)
            progress = min(job.epoch / job.job.epoch_count, 1 - open_part)
            entries.append(WindowJob(job.gpus, weight, progress, left / self.round_s))
        window = Window(tuple(entries), self.gpus, policy.window, policy.longest * self.round_s)
        counts = fill(window)
        if self.solver and len(jobs) <= policy.solver_jobs:
            counts = best_counts(window, counts, policy.limit)
        return [[jobs[i] for i in chosen] for chosen in lay_out(window, counts, min(policy.again, policy.window))]


class _FairTime:
    """The fair time of a job in seconds: estimates at arrivals and ends, averaged over time and with the latest."""

    def __init__(self) -> None:
        self.area = 0.0
        self.begun = self.since = self.latest = -1.0

    def estimate(self, now: float, seconds: float) -> None:
        if self.begun < 0:
            self.begun = now
        else:
            self.area += self.latest * (now - self.since)
        self.since, self.latest = now, seconds

    def at(self, now: float) -> float:
        past = now - self.begun
        mean = (self.area + self.latest * (now - self.since)) / past if past > 0 else self.latest
        return MEMORY * mean + (1 - MEMORY) * self.latest
