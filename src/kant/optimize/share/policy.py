"""A policy for sharing GPUs: it chooses the jobs of the next round, by shares of time or by a plan of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from kant.model.taxonomy import Tags
from kant.optimize.share.training import TrainingProgress

SHARES: Tags = {
    "level": ("cluster",),
    "architecture": ("monolithic",),
    "unit": ("gang",),
    "timing": ("round",),
    "knowledge": ("estimated",),
    "objective": ("fairness",),
    "preemption": ("evict",),
    "resources": ("1-d",),
    "method": ("rule",),
    "freshness": ("live",),
}
"""The common tags of policies for sharing (`kant.model.taxonomy`)."""


class Chooser(Protocol):
    """A policy in a run, with its state. `note` is a message about it for people."""

    note: str

    def choose(self, jobs: Sequence[TrainingProgress], now: float, changed: bool) -> list[TrainingProgress]:
        """The jobs of the next round, which fit together. `changed`: jobs arrived or ended since the last round."""
        ...

    def ran(self, job: TrainingProgress, seconds: float) -> None:
        """Count `seconds` that a job has run in a round. Time that it lost to preemption is not included."""
        ...


class RoundPolicy(Protocol):
    """A frozen class in a file of its own; its fields are its configuration."""

    source: ClassVar[str]
    tags: ClassVar[Tags]

    def begin(self, gpus: int, round_s: float) -> Chooser:
        """Start the policy for a run on `gpus` GPUs, with rounds of `round_s` seconds."""
        ...
