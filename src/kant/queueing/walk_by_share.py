"""A round over the awake buckets by the shares of their queues, which change as jobs start."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

from kant.queueing import waiting as w
from kant.queueing.walk import Share, Walk
from kant.queueing.watch import ANY_START


def first_by_share(walk: Walk, share: Share) -> int:
    """Begin a round by the shares of queues. Returns the entry of the first job to try; 0 for none.

    Buckets that a start may wake take part in the round.
    """
    pending = walk.pending
    count = w.turns(pending.entries, pending.buckets, pending.verdicts, ANY_START, pending.sorted)
    shares: dict[int, tuple[float, ...]] = {}
    walk.by_share = []
    for queue, *entry in pending.sorted[:count].tolist():
        if queue not in shares:
            shares[queue] = share(queue)
        walk.by_share.append((shares[queue], *entry))
    heapify(walk.by_share)
    return next_by_share(walk, share)


def next_by_share(walk: Walk, share: Share) -> int:
    pending, ready = walk.pending, walk.by_share
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
            or bucket == walk.aside
            or (verdicts.item(known, w.V_STATE) and verdicts.item(known, w.V_ROW) in (-1, row))
        ):
            heappop(ready)
        elif (has := share(buckets.item(bucket, w.B_QUEUE))) > had:  # jobs of other queues may now go first
            heapreplace(ready, (has, *ready[0][1:]))
        else:
            return entry
    return 0
