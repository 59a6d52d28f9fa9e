"""The base class of the disciplines: which jobs are tried, and what happens if the first job does not fit."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from kant.model.decision import Outranked
from kant.model.taxonomy import EVERY_CLUSTER_POLICY, Tags, tagged
from kant.queueing.cycle_plan import CyclePlan, Evictor
from kant.queueing.tries import try_in_order


class Discipline(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """The base class of the disciplines."""

    source: ClassVar[str] = ""
    tags: ClassVar[Tags] = tagged(EVERY_CLUSTER_POLICY, resources="multi-d topology heterogeneous", method="rule")
    """The policy's tags (`kant.model.taxonomy`). Subclasses add `objective` and `knowledge`, and override others."""
    buckets: ClassVar[bool] = True
    """Whether only the first job of each bucket is tried. If False, every cycle looks at all live jobs."""
    forecasts: ClassVar[bool] = False
    """Whether the discipline asks when capacity becomes free; then each cycle has a `forecast`."""
    quotas: ClassVar[bool] = True
    """Whether quotas, back-offs and burst replicas count. They do not if a discipline reproduces an experiment."""

    @property
    def passing_evictor(self) -> Evictor | None:
        """The evictor by which a job stops jobs of lower priority that passed it, in a profile without preemption.

        None for a discipline under which jobs that have passed a blocked job keep their devices.
        """
        return None

    def held_by(self, cycle: CyclePlan, row: int) -> Outranked | None:
        """Return which job of higher priority keeps a waiting job from being tried now; None if none does."""
        return None

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        """Return the key of a job's bucket; a queue in the key comes first. Only the first job of a bucket is tried."""
        return (queue,)

    def run(self, cycle: CyclePlan) -> None:
        """Write this cycle's decisions into `cycle.plan`. By default: try the first jobs of the buckets, best first."""
        try_in_order(cycle)
