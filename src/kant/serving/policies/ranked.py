"""The shortest predicted output first, at admission: Learning to Rank (arXiv 2408.15792)."""

from __future__ import annotations

from typing import ClassVar

from kant.model.taxonomy import Tags, tagged
from kant.serving.engine import Engine
from kant.serving.policy import Job, Policy


class Ranked(Policy):
    """The shortest predicted output is admitted first; running requests are not preempted."""

    source: ClassVar[str] = "Learning to Rank, Fu et al., NeurIPS 2024, arXiv 2408.15792"
    tags: ClassVar[Tags] = tagged(Policy.tags, objective="latency", knowledge="learned", method="learned")
    signals: ClassVar[tuple[str, ...]] = ("predicted",)

    by_priority = True

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return job.predicted
