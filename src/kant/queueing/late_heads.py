"""Late heads: a job at the head of its queue that is blocked for too long takes the devices of jobs that passed it.

As in `service_order.py`, one function is built from callbacks: those of a cycle use its trial
(`disciplines/backfill.py`), those of a simulated run use tables (`sim/serve_heads.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kant.cluster.columns import J_QUEUE, J_SINCE, Table
from kant.model.units import FOREVER, GPU, SECOND
from kant.queueing.waiting import B_MILLI, B_REACH

STARTS, STAYS, MAY_NOT, UNDECIDED = range(4)
"""Outcomes for a late head. STAYS: no job that passed it keeps it from starting. MAY_NOT: it may not stop enough of the
jobs that passed it, so the head of another queue is tried. UNDECIDED: the callback cannot decide."""

ServeHeads = Callable[[Any, Any, Table, Table, Any, int, int], int]
OfHead = Callable[[Any, int, int], bool]


def make_serve_heads(
    waits: OfHead | None, is_held: OfHead | None, take_places: Callable[[Any, int, int, int], int],
    kernel: Callable[[Any], Any],
) -> ServeHeads:  # fmt: skip
    """Build the function that serves late heads, from callbacks that take `view`.

    `waits(view, row, shape)`: whether the job waits for its queue, its quota or a node, so that another head is served
    (None: never). `is_held(view, row, bucket)`: whether a blocked job of higher priority keeps the job from starting
    (None: never). `take_places(view, row, shape, bucket)`: serve a late head, and return STARTS, STAYS and so on.
    """

    def serve(view: Any, heads: Any, buckets: Table, jobs: Table, rules: Any, queues: int, now: int) -> int:
        """Serve the first head (row, shape, bucket, 1 if it waits for quota) of each lane, the best head first.

        The heads of a lane compete for the same nodes, and are all large or all small; `rules` has the fields of
        `Backfill`. With `queues` > 1 the heads of that many queues are distinguished. Returns when the next
        head is late, µs (FOREVER: none will be); -1 if `take_places` cannot decide.
        """
        served, freed = np.zeros(2 * (buckets[0, B_REACH] + 1), dtype=np.bool_), False
        without, next_late = np.zeros((queues, served.shape[0]), dtype=np.bool_), FOREVER
        for i in range(len(heads)):
            row, shape, bucket = heads[i][0], heads[i][1], heads[i][2]
            large, queue = buckets[bucket, B_MILLI] >= rules.large_gpus * GPU, 0
            lane = 2 * buckets[bucket, B_REACH] + large
            if queues > 1:
                queue = jobs[row, J_QUEUE]
            if served[lane] or without[queue, lane] or (heads[i][3] == 1 and not freed):
                continue
            if waits is not None and waits(view, row, shape):
                continue
            until = jobs[row, J_SINCE] + (rules.timeout_s if large else rules.small_timeout_s) * SECOND
            if until > now:
                served[lane], next_late = True, min(next_late, until)
            elif is_held is None or not is_held(view, row, bucket):
                found = take_places(view, row, shape, bucket)
                if found == UNDECIDED:
                    return -1
                freed = freed or found == STARTS
                served[lane], without[queue, lane] = found != MAY_NOT, found == MAY_NOT
        return int(next_late)

    return kernel(serve)  # type: ignore[no-any-return]
