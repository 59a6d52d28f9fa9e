"""What an order is: a key for every live job, the smallest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import Struct
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.taxonomy import EVERY_CLUSTER_POLICY, Tags, tagged
from kant.queueing.shares import Shares


class Order(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Base of the orders: priority, the order's key, arrival; and queues before all of these, if it shares.

    Unless the order is `moving`, the key of a waiting job must not change while it waits: the queue is kept sorted,
    not sorted again.
    """

    source: ClassVar[str] = ""
    tags: ClassVar[Tags] = tagged(EVERY_CLUSTER_POLICY, resources="none", method="rule")
    """Where it sits in `kant.model.taxonomy`. Subclasses add `objective` and `knowledge`, and say where they differ."""
    remembers: ClassVar[bool] = False
    """Whether the order of one cycle is the start of the next one (column J_RANK), and time alone may change it."""
    moving: ClassVar[bool] = False
    """Whether keys change with time or with who waits: then every cycle asks for the keys of all waiting jobs."""
    by_priority: ClassVar[bool] = True
    """Whether a job of higher priority comes first, whatever its key."""
    shares: ClassVar[bool] = False
    """Whether queues take turns: `share` ranks them, and the job of the lowest queue goes first."""

    by_arrival: ClassVar[bool] = False
    """Whether jobs of one priority that come at one time go in the order of their rows."""
    outgrown: ClassVar[bool] = False
    """Whether a job falls behind as it runs on: then who is behind a late head goes by keys, and not by submission."""

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        """A key for each of `rows` of the job table (of a moving order: all that wait, as they came to wait)."""
        raise TypeError(f"{type(self).__name__} is no order: it has no keys")

    def falls_behind(self, jobs: Table, rows: Table, key: int, now: int) -> Table:
        """When each of the running `rows` comes to have a later key than `key`: `now` where it has, FOREVER where it
        never will. Asked of orders that are `outgrown`."""
        raise TypeError(f"{type(self).__name__} is not outgrown")

    def share(self, shares: Shares, queue: int) -> tuple[float, ...]:
        """What `queue` has had of its share, the least first; asked again as the plan grows. Of orders that share."""
        raise TypeError(f"{type(self).__name__} does not share")

    def demotions(self, jobs: Table, running: Table, now: int) -> Sequence[tuple[int, int]]:
        """(row, new level) of running jobs that have used up their level; `keys` already counts them there."""
        return ()

    def review_at(self, jobs: Table, running: Table, now: int) -> int:
        """When the order changes by itself if `running` runs on; -1 for never. Asked of orders that remember."""
        return -1
