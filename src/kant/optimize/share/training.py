"""A job in training: its steps, and how its batch size changes between rounds.

The rules are those of Shockwave's simulator (arXiv 2210.00093, MIT). They are reimplemented even where they are odd,
since its published results can be compared only under the same rules. Times are float seconds, as in the simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kant.model.adaptive import (
    LARGEST_BATCH,
    SMALLEST_BATCH,
    AdaptiveJob,
    gns_batch,
    in_critical_regime,
    steps_of_epoch,
)

Speeds = dict[tuple[str, int, int], float]
"""Steps per second, by model, batch size and GPUs."""

PATIENCE = 1.5
"""A job that has run for this multiple of its profile's run time counts as finished."""
FAILURES = 5
"""After this number of rounds without a step a job counts as finished."""


def speeds_of(jobs: list[AdaptiveJob]) -> Speeds:
    """The speeds of models, from the profiles of all jobs."""
    return {
        (job.model, run.batch, job.gpus): job.samples / run.batch / run.seconds for job in jobs for run in job.epochs
    }


@dataclass(slots=True, eq=False)
class TrainingProgress:
    """A job in the cluster; `number` is its position in the order of arrival.

    `total` and `done` are steps at the present batch size `batch`; both are recomputed when the batch size changes.
    `ran` is the seconds that the job has run, without time lost to preemption. `larger` is set if the next round in
    which the job runs ends with a change of its batch size: True for a larger one, False for the first one. `trained`
    has the epochs by batch size.
    """

    number: int
    job: AdaptiveJob
    speeds: Speeds
    batch: int = field(init=False)
    speed: float = field(init=False)
    total: int = field(init=False)
    done: int = 0
    ran: float = 0.0
    failures: int = 0
    ended: float = -1.0
    weight: float = 1.0
    larger: bool | None = None
    trained: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first = self.job.epochs[0]
        self.batch = first.batch
        self.speed = self.speeds[self.job.model, first.batch, self.job.gpus]
        steps = steps_of_epoch(self.job.samples, self.batch)
        total, epochs = int(self.job.declared * self.speed), self.job.epoch_count
        # The last epoch may be partial. If the declared run time contradicts the epochs, the epochs are used.
        self.total = total if math.ceil(total / steps) == epochs else steps * epochs

    @property
    def gpus(self) -> int:
        return self.job.gpus

    @property
    def steps_left(self) -> int:
        return self.total - self.done

    @property
    def seconds_left(self) -> float:
        """The remaining seconds if the speed does not change."""
        return self.steps_left / self.speed

    @property
    def epoch(self) -> int:
        """The number of whole epochs that the job has trained."""
        return self.done // steps_of_epoch(self.job.samples, self.batch)

    def steps_in(self, seconds: float) -> int:
        """The number of steps that the job makes in a round of `seconds`."""
        return max(0, min(int(self.speed * seconds), self.steps_left))  # a change of batch size may have ended the job

    def advance(self, steps: int, seconds: float) -> bool:
        """Count a round, then change the batch if that is due; returns whether the job has ended with the round."""
        self.ran += seconds
        if steps <= 0 and seconds <= 0:
            self.failures += 1
            ended = self.failures >= FAILURES
        else:
            self.failures = 0
            self.done += steps
            epochs = steps / steps_of_epoch(self.job.samples, self.batch)
            self.trained[self.batch] = self.trained.get(self.batch, 0.0) + epochs
            ended = self.steps_left <= 0 or self.ran > int(int(self.job.exclusive) * PATIENCE)
        self._rescale()
        return ended

    def _rescale(self) -> None:
        """Change the batch size. The numbers of trained and of total epochs stay the same."""
        larger, self.larger = self.larger, None
        first = self.job.epochs[0].batch
        largest = LARGEST_BATCH.get(self.job.model)
        if larger is None or largest is None or (first == largest and self.job.model != "Transformer"):
            return
        batch = 2 * self.batch if self.job.mode == "gns" else largest if larger else first
        speed = self.speeds.get((self.job.model, batch, self.job.gpus))
        if speed is None:  # not measured: the job keeps its batch size
            return
        before, after = steps_of_epoch(self.job.samples, self.batch), steps_of_epoch(self.job.samples, batch)
        epochs = math.ceil(self.total / before)
        total = math.ceil(self.total * (1 / (batch / self.batch)))
        self.total = total if math.ceil(total / after) == epochs else after * epochs
        self.done = math.ceil(self.done / before) * after
        self.batch, self.speed = batch, speed

    def adapt(self) -> None:
        """At the end of a round: request another batch size if the present epoch asks for one."""
        job, mode = self.job, self.job.mode
        if mode == "static" or (mode == "accordion" and job.model == "Transformer"):
            return
        epoch = math.ceil(self.done / steps_of_epoch(job.samples, self.batch))
        first = job.epochs[0].batch
        if mode == "gns":
            wanted = max(gns_batch(job.model, first, job.gpus, at) for at in (epoch, epoch + 1))
            if wanted > self.batch != LARGEST_BATCH[job.model]:
                self.larger = True
            return
        critical = in_critical_regime(job.model, first, epoch)
        if self.batch == first and not critical and self.batch != LARGEST_BATCH[job.model]:
            self.larger = True
        elif self.batch != first and critical and self.batch != SMALLEST_BATCH[job.model]:
            self.larger = False
