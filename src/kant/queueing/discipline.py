"""What a discipline is: who may be tried, and what happens when the first in line does not fit."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from msgspec import Struct

from kant.model.decision import Booked, NoFit
from kant.model.taxonomy import EVERY_CLUSTER_POLICY, Tags, tagged
from kant.queueing.cycle_plan import CyclePlan


class Discipline(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Base of the disciplines."""

    source: ClassVar[str] = ""
    tags: ClassVar[Tags] = tagged(EVERY_CLUSTER_POLICY, resources="multi-d topology heterogeneous", method="rule")
    """Where it sits in `kant.model.taxonomy`. Subclasses add `objective` and `knowledge`, and say where they differ."""
    buckets: ClassVar[bool] = True
    """Whether it serves buckets; otherwise it looks at all live jobs in every cycle, and there are no buckets."""
    forecasts: ClassVar[bool] = False
    """Whether it asks when something will be free, so that the cycle keeps a forecast for it."""
    quotas: ClassVar[bool] = True
    """Whether it heeds quotas, back-offs and burst replicas. Those that reproduce an experiment do not."""

    def bucket(self, queue: int, shape: int) -> tuple[int, ...]:
        """The key of a job's bucket. In a bucket only the first job is tried. A queue in the key comes first."""
        return (queue,)

    def run(self, cycle: CyclePlan) -> None:
        """Write this cycle's decisions into `cycle.plan`. By default: try the first jobs of the buckets, best first."""
        pending = cycle.pending
        if pending.awake or pending.brief or pending.stirred:
            for row, shape, bucket in pending.walk(cycle.share if cycle.order.shares else None):
                result = cycle.nominate(row, shape)
                if isinstance(result, np.ndarray):
                    cycle.start(row, result)
                    pending.took(bucket)
                else:
                    cycle.hold(row, result)
                    pending.sleep(bucket, shape, cycle.failed, not isinstance(result, NoFit | Booked))
        if pending.retries:
            cycle.wake_at(pending.wakes_at())
