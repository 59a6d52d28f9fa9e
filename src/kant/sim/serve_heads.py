"""Late heads in compiled instants: whether a head that has waited too long may take the place of jobs that overtook it.

The check is that of `queueing/preemption/backfilled.py` without quotas, and keeps no state. Where a head may be served
Python decides the instant, and looks for the victims.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import S_POOLS
from kant.compiled import compiled
from kant.model.units import FOREVER
from kant.placement.capacity import room_beside
from kant.placement.group_kernel import G_DEMAND, G_PODS, Domains, Scores
from kant.placement.kernels import COUNT_ALL, Kernel, named
from kant.queueing import waiting as w
from kant.queueing.preemption.room_bound import is_behind
from kant.sim.ends import ENDS, JOB


class Rules(NamedTuple):
    """How a discipline serves late heads: timeouts, µs, the size from which a job is large, the victims' minimum run.

    `above` is above all priorities, `facts` are those of the shapes; `heads` has room for the first jobs of the
    buckets. `known` has heads that could not be served: the number of node changes by then, and until when that holds.
    """

    timeout: int
    small_timeout: int
    large: int
    min_run: int
    above: int
    facts: Table
    heads: Table
    known: Table


KNOWN = 64
K_HEAD, K_CHANGES, K_UNTIL = range(3)
# Columns of a shape.
S_FIRST, S_GROUPS, S_MILLI, S_PODS, S_POOL_BITS, S_ALONE, S_PREEMPTS = range(7)
"""Of a shape: its groups in the table of groups; its request; its pools as bits; 1 where Python decides whether one of
its jobs waits (such jobs start here only where no job waits and no key is known); and 1 where it may preempt."""
SHAPE_WIDTH = 7

PYTHON_DECIDES = -2

Serve = Callable[..., int]


@compiled
def serve_none(
    now: int, changes: int, rules: Rules | None, new: int, begun: int, shapes: Table, groups: Table, jobs: Table,
    heap: Table, ends: Table, held: Table, top: int, view: Table, view_log: Table, demands: Table, typical: Table,
    scores: Scores, others: Scores, domains: Domains | None, entries: Table, buckets: Table, verdicts: Table,
    stirred: Table,
) -> int:  # fmt: skip
    """Serve no head."""
    return -1


@cache
def serve_kernel(place: Kernel) -> Serve:
    """Return the kernel for a profile whose groups are placed by `place`."""

    def serve(
        now: int, changes: int, rules: Rules, new: int, begun: int, shapes: Table, groups: Table, jobs: Table,
        heap: Table, ends: Table, held: Table, top: int, view: Table, view_log: Table, demands: Table, typical: Table,
        scores: Scores, others: Scores, domains: Domains | None, entries: Table, buckets: Table, verdicts: Table,
        stirred: Table,
    ) -> int:  # fmt: skip
        """Return when the next head is late, or may preempt one more job, µs; -1: never; or PYTHON_DECIDES.

        `changes` counts the changes of nodes. Jobs from row `new` on have just arrived. The pieces [begun, top) of
        `held` are those of the jobs that start now.
        """
        review = FOREVER
        count = w.best_first(
            entries, buckets, verdicts, stirred, rules.heads, rules.large >= 0, rules.large, rules.above
        )  # fmt: skip
        for i in range(count):
            row, s = rules.heads[i, 1], rules.heads[i, 2]
            large = shapes[s, S_MILLI] >= rules.large
            since = jobs[row, c.J_SINCE] if row < new else now
            until = since + (rules.timeout if large else rules.small_timeout)
            if until > now:
                review = min(review, until)
                continue
            known = rules.known[row % KNOWN]
            if shapes[s, S_PREEMPTS] == 0:
                continue
            if known[K_HEAD] == row and known[K_CHANGES] == changes and now < known[K_UNTIL]:
                review = min(review, known[K_UNTIL])
                continue
            known[K_HEAD] = -1
            if shapes[s, S_GROUPS] > 1 or row >= new:
                return PYTHON_DECIDES
            group = groups[shapes[s, S_FIRST]]
            fitting = -1 - place(
                view, view_log, demands, group, typical, scores, others, domains, np.int64(COUNT_ALL), held, top
            )  # fmt: skip
            behind = np.empty(heap[0, ENDS], dtype=np.int64)
            pieces, jobs_behind = top - begun, 0
            for k in range(1, heap[0, ENDS] + 1):
                other = heap[k, JOB]
                runs = ends[other] == heap[k, ENDS] and jobs[other, c.J_PIECES] > 0
                near = rules.facts[jobs[other, c.J_SHAPE], S_POOLS] & shapes[s, S_POOL_BITS] != 0
                if runs and near and jobs[other, c.J_PREEMPTIBLE] == 1 and is_behind(jobs, row, other):
                    behind[jobs_behind] = other
                    jobs_behind += 1
                    pieces += jobs[other, c.J_PIECES]
                    jobs[other, c.J_PIECES] = -jobs[other, c.J_PIECES]  # the heap may have it twice
            # The pieces of jobs that may stop now, of those that may stop later, and of those that start now.
            freed = np.empty((pieces, held.shape[1]), dtype=np.int64)
            used, stop, next_one = 0, 0, FOREVER
            for k in range(jobs_behind):
                jobs[behind[k], c.J_PIECES] = -jobs[behind[k], c.J_PIECES]
            for later in range(2):
                for k in range(jobs_behind):
                    job = jobs[behind[k]]
                    ready = job[c.J_STARTED] + rules.min_run
                    if (ready > now) == (later == 1):
                        for piece in range(job[c.J_PIECES]):
                            c.copy_row(held, job[c.J_PIECE] + piece, freed, used + piece)
                        used += job[c.J_PIECES]
                        next_one = min(next_one, ready) if later == 1 else next_one
                stop = used if later == 0 else stop
            for piece in range(begun, top):
                c.copy_row(held, piece, freed, used + piece - begun)
            if fitting + room_beside(view, freed, pieces, demands, group[G_DEMAND]) < group[G_PODS]:
                next_one = FOREVER  # does not fit even without all of them
            elif fitting + room_beside(view, freed, stop, demands, group[G_DEMAND]) >= group[G_PODS]:
                return PYTHON_DECIDES
            review = min(review, next_one)
            known[K_HEAD], known[K_CHANGES], known[K_UNTIL] = row, changes, next_one
        return int(review if review < FOREVER else -1)

    return compiled(named(serve, place))
