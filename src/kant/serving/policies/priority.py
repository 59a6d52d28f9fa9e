"""Policies by the request's own priority: at admission, as in vLLM, or before every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.engine import Engine
from kant.serving.policy import Job, Policy


class Priority(Policy):
    """vLLM's priority scheduling: it orders waiting requests, and picks those that lose blocks if none is free."""

    source: ClassVar[str] = "priority scheduling of vLLM V1"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="priority")
    signals: ClassVar[tuple[str, ...]] = ("priority",)

    by_priority = True

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return job.priority


class PreemptivePriority(Priority):
    """Priority before every step: a better request takes the slot and the blocks of a worse one."""

    source: ClassVar[str] = "ours"

    preemptive = True


@dataclass
class LayeredPriority(PreemptivePriority):
    """QLLM's preemption (arXiv 2503.09304): a better priority interrupts a step between two of its layers."""

    source: ClassVar[str] = "QLLM, EuroMLSys 2025, arXiv 2503.09304"

    layers: int = 32
