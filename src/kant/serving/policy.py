"""What a policy of one engine may do: set priorities, limit admissions, and learn from what has finished.

A policy is a small class in a file of `policies`. It sees the engine's tables, and its requests by their number on that
engine. Outputs that are not yet generated are no business of a policy; `Job.predicted` is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags
from kant.serving.engine import Engine


@dataclass(frozen=True, slots=True)
class Job:
    """What a policy knows of a request when it comes: its prompt, what is predicted of its output, who calls, and when.

    `now` is in seconds, from any beginning that all requests share.
    """

    prompt: int
    predicted: float
    priority: float
    program: int
    now: float = 0.0


class Policy:
    """First come, first served, as in vLLM: the base of all policies, which does nothing at all."""

    source: ClassVar[str] = "vLLM V1"
    tags: ClassVar[Tags] = {
        "level": ("node",),
        "architecture": ("monolithic",),
        "unit": ("request",),
        "timing": ("online",),
        "knowledge": ("none",),
        "objective": ("none",),
        "preemption": ("evict",),  # the last to come gives its blocks back where they run out
        "resources": ("1-d",),
        "method": ("rule",),
        "freshness": ("live",),
    }
    """Where it sits in `kant.model.taxonomy`; a subclass says where it differs."""

    preemptive = False
    """Whether a better priority takes the seat of a worse one."""

    by_priority = False
    """Whether requests are ordered by priority before arrival."""

    by_step = False
    """Whether the policy is asked before every step and told after it; others only hear of arrivals."""

    layers = 0
    """Layers of the model, if a better priority may interrupt a step between two of them; 0: only between steps."""

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        """The priority of a new request, lower first; `number` is what the engine will call it."""
        return 0.0

    def before_step(self, engine: Engine) -> None:
        """Change priorities (then `engine.reorder()`), or allow so many admissions (`engine.state[ADMIT]`)."""

    def after_step(self, engine: Engine, took: float) -> None:
        """The step of `engine.ran()` took so many seconds."""

    def finished(self, engine: Engine, number: int) -> None:
        """A request has its last token."""

    limits = False
    """Whether `admitted` may say less than all."""

    def admitted(self, engine: Engine, running: list[int], waiting: list[int]) -> int:
        """How many of those that wait, in order, may run with those that do."""
        return len(waiting)

    def forget(self, program: int) -> None:
        """A program will not call again, or is remembered no longer."""
