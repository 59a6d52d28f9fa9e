"""DRF: the queue with the smallest dominant share goes next."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from kant.cluster.columns import J_SUBMIT, Table
from kant.model.taxonomy import Tags, tagged
from kant.queueing.order import Order
from kant.queueing.shares import Shares


class Drf(Order, frozen=True, tag="drf"):
    """The queue whose largest share of GPUs, CPU or memory, divided by its weight, is the smallest goes next; in a tree
    from the root down. Within a queue priority decides, then submission.

    With `beyond_nominal` only what a queue holds beyond its nominal quota counts.
    """

    beyond_nominal: bool = False

    source: ClassVar[str] = "dominant resource fairness, Ghodsi et al., NSDI 2011; beyond nominal as in Kueue"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="fairness", knowledge="none", resources="multi-d")
    shares: ClassVar[bool] = True

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        keys: NDArray[Any] = jobs[rows, J_SUBMIT]
        return keys

    def share(self, shares: Shares, queue: int) -> tuple[float, ...]:
        held = shares.beyond_nominal if self.beyond_nominal else shares.dominant
        return tuple(part for node in shares.path(queue) for part in (held(node) / shares.weight(node), node))
