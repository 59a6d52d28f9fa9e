"""Admission by the request's own priority, as in vLLM."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.engine import Engine
from kant.serving.policy import Job, Policy


class Priority(Policy):
    """vLLM's priority scheduling: priorities order waiting requests, and select those that lose blocks if needed."""

    source: ClassVar[str] = "priority scheduling of vLLM V1"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="priority")
    signals: ClassVar[tuple[str, ...]] = ("priority",)

    by_priority = True

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return job.priority
