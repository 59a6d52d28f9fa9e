"""The shortest predicted output first, but no request is overtaken by one that arrived much later."""

from __future__ import annotations

from dataclasses import dataclass

from kant.serving.engine import Engine
from kant.serving.policies.ranked import Ranked
from kant.serving.policy import Job


@dataclass(frozen=True)
class RankedBounded(Ranked):
    """The shortest predicted output first, but a request that arrived `bound_s` seconds earlier always goes first.

    A second of waiting is worth `longest / bound_s` tokens, and predictions beyond `longest` tokens count as `longest`.
    The priority is fixed when a request comes, so a stock vLLM keeps the bound too. The bound is ours: the paper raises
    the priority of requests that have not run for some steps.
    """

    bound_s: float = 120.0
    longest: float = 512.0

    def arrived(self, engine: Engine, job: Job, number: int) -> float:
        return max(0.0, min(job.predicted, self.longest)) + self.longest * job.now / self.bound_s
