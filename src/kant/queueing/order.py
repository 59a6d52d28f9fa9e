"""The base class of the orders: a key for every live job, the smallest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import Struct
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.model.taxonomy import EVERY_CLUSTER_POLICY, Tags, tagged
from kant.queueing.shares import Shares


class Order(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """The base class of the orders. Jobs rank by queue (if `shares` is set), priority, the order's key and arrival.

    Unless `moving` is set, the key of a job must not change while the job waits, because the queue is sorted by keys
    only as jobs arrive.
    """

    source: ClassVar[str] = ""
    tags: ClassVar[Tags] = tagged(EVERY_CLUSTER_POLICY, resources="none", method="rule")
    """The policy's tags (`kant.model.taxonomy`). Subclasses add `objective` and `knowledge`, and override others."""
    remembers: ClassVar[bool] = False
    """Whether each cycle starts from the ranking of the previous cycle (column J_RANK). Time alone may change it."""
    moving: ClassVar[bool] = False
    """Whether keys change with time or with the set of waiting jobs: every cycle then computes all keys."""
    by_priority: ClassVar[bool] = True
    """Whether a job of higher priority comes first, whatever its key."""
    shares: ClassVar[bool] = False
    """Whether the order ranks queues before jobs: the jobs of the queue with the smallest `share` go first."""

    outgrown: ClassVar[bool] = False
    """Whether a job's key grows while it runs. Keys, not submission times, then say which jobs a late head preempts."""

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        """Return a sort key for each job of `rows`, the smallest first. A `moving` order gets all waiting jobs."""
        raise TypeError(f"{type(self).__name__} does not define `keys`")

    def falls_behind(self, jobs: Table, rows: Table, key: int, now: int) -> Table:
        """Return when the key of each of the running `rows` exceeds `key`, µs: `now` if it does already, FOREVER if
        never. Called only if `outgrown` is set."""
        raise TypeError(f"{type(self).__name__} does not define `falls_behind`")

    def share(self, shares: Shares, queue: int) -> tuple[float, ...]:
        """Return the share that `queue` has used, as a sort key, the smallest first. Called only if `shares` is set."""
        raise TypeError(f"{type(self).__name__} does not define `share`")

    def demotions(self, jobs: Table, running: Table, now: int) -> Sequence[tuple[int, int]]:
        """Return (row, new level) of running jobs that have used up their level; `keys` already uses the new level."""
        return ()

    def review_at(self, jobs: Table, running: Table, now: int) -> int:
        """Return when (µs) time alone next changes the ranking; -1: never. Called only if `remembers` is set."""
        return -1
