"""What an order is: a key for every live job, the smallest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import Struct
from numpy.typing import NDArray

from kant.cluster.columns import Table


class Order(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Base of the orders. A job's priority always comes before the order's key, its arrival after it.

    The key of a waiting job must not change while it waits: the queue is kept sorted, not sorted again.
    """

    source: ClassVar[str] = ""
    remembers: ClassVar[bool] = False
    """Whether the order of one cycle is the start of the next one (column J_RANK), and time alone may change it."""

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        """A key for each of `rows` of the job table."""
        raise TypeError(f"{type(self).__name__} is no order: it has no keys")

    def demotions(self, jobs: Table, running: Table, now: int) -> Sequence[tuple[int, int]]:
        """(row, new level) of running jobs that have used up their level; `keys` already counts them there."""
        return ()

    def review_at(self, jobs: Table, running: Table, now: int) -> int:
        """When the order changes by itself if `running` runs on; -1 for never. Asked of orders that remember."""
        return -1
