"""What a policy for workflows is: it chooses the next stage and its processor, until none is left to place."""

from __future__ import annotations

from typing import ClassVar, Protocol

from kant.model.taxonomy import Tags
from kant.optimize.workflow.board import Board, Key

STAGES: Tags = {
    "level": ("cluster",),
    "architecture": ("monolithic",),
    "unit": ("dag",),
    "timing": ("online",),
    "knowledge": ("estimated",),
    "objective": ("makespan",),
    "preemption": ("none",),
    "resources": ("heterogeneous",),
    "method": ("rule",),
    "freshness": ("live",),
}
"""What rules for workflows have in common (`kant.model.taxonomy`)."""


class Policy(Protocol):
    """A frozen class; `whole` says when it is asked.

    With `whole` it places all stages of a graph when that arrives, each after those that it waits for have their
    place. Otherwise a stage is placed when it is ready: all that it waits for has ended. Only such a policy can work
    where durations are not known before.
    """

    source: ClassVar[str]
    tags: ClassVar[Tags]

    @property
    def whole(self) -> bool: ...

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        """One of the stages that may be placed now, and its processor. `open` is in the order in which they came."""
        ...
