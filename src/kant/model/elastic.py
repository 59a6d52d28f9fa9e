"""The contract of an elastic training job: its batch sizes, its learning rate, and how it ends.

The learning rate follows the law of Power Scheduler (arXiv 2408.13359) with two free exponents: it depends on the batch
and on the tokens so far, but not on the tokens to come. So a run may be resized, stop and resume, or end at any time;
to end, it needs a tail in which the rate falls to zero. Tokens are in the unit in which the law was fitted.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from kant.model.errors import InputError

Positive = Annotated[float, Meta(gt=0, le=1e18)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class Batches(Struct, frozen=True, forbid_unknown_fields=True):
    """A step may take `least` to `most` samples; a GPU holds `per_gpu` of them at a time."""

    least: Count
    most: Count
    per_gpu: Count


class RateLaw(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The learning rate is `amplitude` * batch^`batch_power` * tokens^`token_power`, and at most `peak`."""

    amplitude: Positive
    batch_power: Annotated[float, Meta(ge=-2, le=2)]
    token_power: Annotated[float, Meta(ge=-2, le=0)]
    peak: Positive = 1.0

    def rate(self, batch: int, tokens: float) -> float:
        """Return the learning rate of a step of `batch` samples after `tokens`, between warm-up and tail."""
        return float(min(self.peak, self.amplitude * batch**self.batch_power * max(tokens, 1.0) ** self.token_power))


class Contract(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The properties and limits of an elastic job.

    It runs with any number of GPUs from `least_gpus` to the number that the job requests, in steps of `step_gpus`, as
    one pod. Over the first `warmup` tokens its learning rate rises from zero; over the last part `tail` of its tokens
    it falls to zero. `budget`: its total tokens (0: none). In its tail it is not stopped for another job.
    """

    batch: Batches
    rate: RateLaw
    least_gpus: Annotated[int, Meta(ge=1, le=100_000)] = 1
    step_gpus: Annotated[int, Meta(ge=1, le=1024)] = 1
    warmup: Annotated[float, Meta(ge=0, le=1e18)] = 0.0
    tail: Annotated[float, Meta(ge=0, le=0.5)] = 0.1
    budget: Annotated[float, Meta(ge=0, le=1e18)] = 0.0

    def step(self, gpus: int) -> tuple[int, int] | None:
        """Return the samples per GPU and round, and the rounds per optimizer step; None if no batch fits.

        It uses as few rounds as the batch range allows, each as large as possible.
        """
        if self.batch.most // gpus * gpus < self.batch.least:
            return None
        rounds = -(-self.batch.least // (self.batch.per_gpu * gpus))
        while True:
            each = min(self.batch.per_gpu, self.batch.most // (gpus * rounds))
            if each * gpus * rounds >= self.batch.least:
                return each, rounds
            rounds += 1

    def check(self, gpus: float) -> None:
        """Raise InputError unless the contract can be kept at every size of a job that asks for `gpus`."""
        where = "the contract"
        if gpus != int(gpus) or gpus < self.least_gpus or gpus % self.step_gpus or self.least_gpus % self.step_gpus:
            expected = f"a job with least_gpus ({self.least_gpus:,}) GPUs or more, both multiples of {self.step_gpus:,}"
            raise InputError(f"{where}, least_gpus", expected, gpus)
        for size in range(self.least_gpus, int(gpus) + 1, self.step_gpus):
            if self.step(size) is None:
                expected = f"a batch from {self.batch.least:,} to {self.batch.most:,} that {size:,} GPUs share evenly"
                raise InputError(f"{where}, batch", expected)

    def tail_until(self, tokens: float) -> float:
        """Return the number of tokens at which a tail that begins after `tokens` ends: the last part `tail` of all."""
        return max(self.budget, tokens) if self.ends_at(tokens) else tokens / (1 - self.tail)

    def ends_at(self, tokens: float) -> bool:
        """Return whether the budget requires that the tail has begun after `tokens`."""
        return 0 < self.budget * (1 - self.tail) <= tokens

    def learning_rate(self, batch: int, tokens: float, tail: tuple[float, float] | None = None) -> float:
        """Return the learning rate of a step of `batch` samples after `tokens`; `tail`: its start and end, if known."""
        rate = self.rate.rate(batch, max(tokens, self.warmup))
        if tokens < self.warmup:
            rate *= tokens / self.warmup
        if tail is not None and tokens > tail[0]:
            rate *= max(tail[1] - tokens, 0.0) / max(tail[1] - tail[0], 1e-9)
        return rate


class Resize(Struct, frozen=True, omit_defaults=True):
    """An event for an elastic run: a line of JSON in the file that KANT_ELASTIC names.

    The run now has `gpus` GPUs: `place` lists them in Kant's format, `devices` in that of KANT_DEVICES. A step is
    `rounds` rounds of `each` samples on every GPU, `batch` in total. `tokens` is the last number of tokens that the run
    has reported, and `rate` the learning rate at that point. A tail lasts from `tail_from` to `tail_until` tokens; -1:
    none yet. `at` is in seconds since the Unix epoch.
    """

    number: int
    event: Literal["start", "resize", "tail"]
    at: float
    gpus: int
    devices: str
    place: list[list[int]]
    batch: int
    each: int
    rounds: int
    tokens: float
    rate: float
    tail_from: float = -1.0
    tail_until: float = -1.0

    @property
    def tail(self) -> tuple[float, float] | None:
        """The start and end of the tail, in which the rate falls, in tokens; None if it has not begun."""
        return (self.tail_from, self.tail_until) if self.tail_from >= 0 else None


class RunReport(Struct, frozen=True, omit_defaults=True):
    """The report of an elastic run: the `number` of the last event that it has followed, and its tokens so far."""

    number: int = 0
    tokens: float = 0.0


def report_path(events: str) -> str:
    """Return the path of a run's report file, from that of its event file."""
    return f"{events}.heard"
