"""Fair share: the queue that has used the least recently goes next."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from msgspec import Meta
from numpy.typing import NDArray

from kant.cluster.columns import J_SUBMIT, Table
from kant.model.taxonomy import Tags, tagged
from kant.model.units import HOUR
from kant.queueing.order import Order
from kant.queueing.shares import Shares


class FairShare(Order, frozen=True, tag="fair-share"):
    """The queue with the least used GPU time relative to its weight goes next; in a tree from the root down. Use
    `half_life_h` hours ago counts half. Ties go to the queue that holds least; within a queue priority decides, then
    submission.
    """

    half_life_h: Annotated[float, Meta(gt=0, le=10**5)] = 168.0

    source: ClassVar[str] = "J. Kay and P. Lauder, A fair share scheduler, CACM 31(1), 1988; Slurm's multifactor plugin"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="fairness", knowledge="none", resources="1-d")
    shares: ClassVar[bool] = True

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        keys: NDArray[Any] = jobs[rows, J_SUBMIT]
        return keys

    def share(self, shares: Shares, queue: int) -> tuple[float, ...]:
        half_life, found = max(round(self.half_life_h * HOUR), 1), list[float]()
        for node in shares.path(queue):
            weight = shares.weight(node)
            found += (shares.used(node, half_life) / weight, shares.dominant(node) / weight, node)
        return tuple(found)
