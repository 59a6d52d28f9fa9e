"""One walk over the first jobs of the awake buckets, best first, in one round or more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any

from kant.cluster.shapes import Shape
from kant.queueing import waiting as w
from kant.queueing.watch import ANY_START

if TYPE_CHECKING:
    from kant.queueing.pending import PendingQueue

Share = Callable[[int], tuple[float, ...]]
"""The share that a queue has used, so far in this cycle."""


class Walk:
    """A walk over the awake buckets of a queue, by the `share` of their queues if that is given.

    If the plan frees capacity meanwhile, another round over all that are awake follows.
    """

    bucket = 0
    """The bucket of the present job."""
    _aside = 0  # the bucket of the last job that stepped aside in this round
    _begun = False
    _by_share: list[tuple[tuple[float, ...], int, int, int, int]]  # heap of a round by shares

    def __init__(self, pending: PendingQueue, share: Share | None = None) -> None:
        self.pending, self.share = pending, share

    def next_job(self) -> tuple[int, int, Any]:
        """Return the next job: its entry (0: there is none), row and shape."""
        pending, share, shapes = self.pending, self.share, self.pending.state.shapes.shapes
        if pending.opened or not self._begun:
            stirred = 0
            if pending.doubts and not self._begun:
                pending.doubts, stirred = False, w.rouse(pending.verdicts, pending.sorting, pending.now)
                for at, key in enumerate(pending.sorting[:stirred].tolist()):
                    pending.fits[at] = pending.may_fit(shapes[pending.verdicts.item(key, w.V_SHAPE)])
            self._begun, self._aside = True, 0
            pending.may_try = pending.opened = False
            pending.rounds += 1
            if pending.released:
                pending.push_released()
            entry = w.begin_round(
                pending.entries, pending.places, pending.buckets, pending.verdicts, pending.ready, pending.sorting,
                pending.fits, stirred, share is not None, pending.now,
            )  # fmt: skip
            if share is not None:
                entry = self._first_by_share(share)
        elif share is not None:
            entry = self._next_by_share(share)
        elif pending.ready.item(0) == 1 and not pending.buckets.item(self.bucket, w.B_TOP):
            entry = pending.ready[0] = 0  # that was the last bucket
        else:
            entry = w.go_on(pending.entries, pending.buckets, pending.verdicts, pending.ready, self._aside)
        if not entry:
            return 0, -1, None
        row, _, _, shape, _, self.bucket, *_ = pending.entries[entry].tolist()
        return entry, row, shapes[shape]

    def jobs(self) -> Iterator[tuple[int, Shape, int]]:
        """Yield the jobs: row, shape and bucket."""
        pending = self.pending
        try:
            entry, row, shape = self.next_job()
            while entry:
                yield row, shape, self.bucket
                entry, row, shape = self.next_job()
        finally:
            left = pending.ready.item(0) > 0 or (self.share is not None and bool(self._by_share))
            pending.may_try = pending.may_try or left
            pending.ready[0] = 0

    def skip(self) -> None:
        """Skip the present job in this round. Its bucket stays awake: the next cycle tries it again."""
        self._aside, self.pending.may_try = self.bucket, True

    def _first_by_share(self, share: Share) -> int:
        """Begin a round by the shares of queues. Returns the entry of the first job to try; 0 for none.

        Buckets that a start may wake take part in the round.
        """
        pending = self.pending
        count = w.turns(pending.entries, pending.buckets, pending.verdicts, ANY_START, pending.sorted)
        shares: dict[int, tuple[float, ...]] = {}
        self._by_share = []
        for queue, *entry in pending.sorted[:count].tolist():
            if queue not in shares:
                shares[queue] = share(queue)
            self._by_share.append((shares[queue], *entry))
        heapify(self._by_share)
        return self._next_by_share(share)

    def _next_by_share(self, share: Share) -> int:
        pending, ready = self.pending, self._by_share
        entries, buckets, verdicts = pending.entries, pending.buckets, pending.verdicts
        while ready:
            had, _, _, row, entry = ready[0]
            bucket, known = entries.item(entry, w.E_BUCKET), entries.item(entry, w.E_KNOWN)
            top = buckets.item(bucket, w.B_TOP)
            if top and top != entry:
                row, priority, key, *_ = entries[top].tolist()
                heapreplace(ready, (share(buckets.item(bucket, w.B_QUEUE)), priority, key, row, top))
            elif (
                not top
                or bucket == self._aside
                or (verdicts.item(known, w.V_STATE) and verdicts.item(known, w.V_ROW) in (-1, row))
            ):
                heappop(ready)
            elif (has := share(buckets.item(bucket, w.B_QUEUE))) > had:  # others may now go before it
                heapreplace(ready, (has, *ready[0][1:]))
            else:
                return entry
        return 0
