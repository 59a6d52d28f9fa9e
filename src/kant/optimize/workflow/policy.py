"""A policy for workflows: it chooses the next stage and its processor, again and again, until all stages are placed."""

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
"""The common tags of rules for workflows (`kant.model.taxonomy`)."""


class WorkflowRule(Protocol):
    """A frozen class. `whole` says when the rule is called.

    If `whole` is true, the rule places all stages of a graph when the graph arrives, each after its predecessors.
    Otherwise a stage is placed when it is ready, which means that all its predecessors have ended. Only a rule without
    `whole` works if durations are not known in advance.
    """

    source: ClassVar[str]
    tags: ClassVar[Tags]

    @property
    def whole(self) -> bool: ...

    def choose(self, board: Board, open: list[Key]) -> tuple[Key, int]:
        """Choose a stage and its processor. `open` lists the stages that may be placed, in the order of readiness."""
        ...
