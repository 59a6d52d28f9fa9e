"""The interface of an engine's policy: it sets priorities, limits admissions, and learns from finished requests.

A policy is a small class in a file of `policies`. It sees the engine's tables, and its requests by their number on that
engine. A policy must not use outputs that are not yet generated; it may use `Job.predicted`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.engine import Engine

ENDED = "ended"
"""The signal of policies that make predictions from the outputs of ended requests."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a policy knows about a new request: its prompt, predicted output, priority, program, and time.

    `now` is in seconds, from any origin common to all requests.
    """

    prompt: int
    predicted: float
    priority: float
    program: int
    now: float = 0.0


class Policy:
    """First come, first served, as in vLLM: the base of all policies. It changes nothing."""

    source: ClassVar[str] = "vLLM V1"
    tags: ClassVar[Tags] = {
        "level": ("node",),
        "architecture": ("monolithic",),
        "unit": ("request",),
        "timing": ("online",),
        "knowledge": ("none",),
        "objective": ("none",),
        "preemption": ("evict",),  # when blocks run out, the latest request is evicted
        "resources": ("1-d",),
        "method": ("rule",),
        "freshness": ("live",),
    }
    """The tags of the policy (`kant.model.taxonomy`). A subclass overrides those that differ."""

    signals: ClassVar[tuple[str, ...]] = ()
    """What the policy uses of a request: predicted, priority, program; or `ENDED`, the outputs of ended requests."""

    preemptive = False
    """Whether a request of better priority takes the seat of one of worse priority."""

    by_priority = False
    """Whether requests are ordered by priority before arrival."""

    by_step = False
    """Whether the policy is called before and after every step. Other policies are only told of arrivals."""

    layers = 0
    """The number of layers of the model if a better priority may interrupt a step between two layers; 0: it may not."""

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        """Return the priority of a new request (lower goes first). `number` is its number on the engine."""
        return 0.0

    def before_step(self, engine: Engine) -> None:
        """Change priorities and then call `engine.reorder()`, or limit admissions by `engine.state[ADMIT]`."""

    def after_step(self, engine: Engine, took: float) -> None:
        """Record that the step of `engine.ran()` took `took` seconds."""

    def finished(self, engine: Engine, number: int) -> None:
        """Record that a request has got its last token."""

    limits = False
    """Whether `admitted` may admit fewer than all waiting requests."""

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        """Return how many of the waiting requests, in order, may run with the running ones."""
        return len(waiting)

    def forget(self, program: int) -> None:
        """Forget a program: it makes no more calls, or too many programs are remembered."""
