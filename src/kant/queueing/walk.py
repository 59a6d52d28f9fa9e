"""One walk over the first jobs of the awake buckets, best first, in one round or more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kant.cluster.shapes import Shape
from kant.queueing import waiting as w

if TYPE_CHECKING:
    from kant.queueing.pending import PendingQueue

Share = Callable[[int], tuple[float, ...]]
"""Returns the share that a queue has used so far in this cycle, as a sort key: the smallest goes first."""


class Walk:
    """One walk; with `share`, by the shares of the queues. If the plan frees capacity meanwhile, a round is added."""

    bucket = 0  # the bucket of the current job
    aside = 0  # the bucket of the last job that stepped aside in this round
    slept = False  # whether the current job has been put to sleep
    _begun = False
    by_share: list[tuple[tuple[float, ...], int, int, int, int]]  # a heap: share, priority, key, row, entry

    def __init__(self, pending: PendingQueue, share: Share | None = None) -> None:
        self.pending, self.share = pending, share

    def next_job(self) -> tuple[int, int, Any]:
        """Return the next job: its entry (0: there is none), row and shape."""
        pending, share, shapes = self.pending, self.share, self.pending.state.shapes.shapes
        if share is not None:  # imported only if the order ranks queues
            from kant.queueing.walk_by_share import first_by_share, next_by_share
        if pending.opened or not self._begun:
            stirred = 0
            if pending.doubts and not self._begun:
                pending.doubts, stirred = False, w.rouse(pending.verdicts, pending.sorting, pending.now)
                for at, key in enumerate(pending.sorting[:stirred].tolist()):
                    pending.fits[at] = pending.may_fit(shapes[pending.verdicts.item(key, w.V_SHAPE)])
            self._begun, self.aside = True, 0
            pending.may_try = pending.opened = False
            pending.rounds += 1
            if pending.released:
                pending.push_released()
            entry = w.begin_round(
                pending.entries, pending.places, pending.buckets, pending.verdicts, pending.ready, pending.sorting,
                pending.fits, stirred, share is not None, pending.now,
            )  # fmt: skip
            if share is not None:
                entry = first_by_share(self, share)
        elif share is not None:
            entry = next_by_share(self, share)
        elif pending.ready.item(0) == 1 and (self.slept or not pending.buckets.item(self.bucket, w.B_TOP)):
            entry = pending.ready[0] = 0  # that was the last bucket
        else:
            entry = w.go_on(pending.entries, pending.buckets, pending.verdicts, pending.ready, self.aside)
        if not entry:
            return 0, -1, None
        self.slept = False
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
            left = pending.ready.item(0) > 0 or (self.share is not None and bool(self.by_share))
            pending.may_try = pending.may_try or left
            pending.ready[0] = 0

    def skip(self) -> None:
        """Skip the current job in this round. Its bucket stays awake: the next cycle tries it again."""
        self.aside, self.pending.may_try = self.bucket, True
