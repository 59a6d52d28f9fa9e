"""What a policy for sharing is: who runs in the next round, by shares of time or by a plan of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from kant.model.taxonomy import Tags
from kant.optimize.share.training import Training

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
"""What policies for sharing have in common (`kant.model.taxonomy`)."""


class Chooser(Protocol):
    """A policy at work on one run; what it remembers of the run is here. `note` is what people should know of it."""

    note: str

    def choose(self, jobs: Sequence[Training], now: float, changed: bool) -> list[Training]:
        """The jobs of the next round, which fit together; `changed`: some have come or gone since the last round."""
        ...

    def ran(self, job: Training, seconds: float) -> None:
        """A job has run in a round for so many seconds, without what it lost to preemption."""
        ...


class Policy(Protocol):
    """A frozen class in a file of its own; its fields are its configuration."""

    source: ClassVar[str]
    tags: ClassVar[Tags]

    def begin(self, gpus: int, round_s: float) -> Chooser:
        """The policy at the beginning of a run on so many GPUs, with rounds of so many seconds."""
        ...
