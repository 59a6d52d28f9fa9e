"""Many instants in one compiled call: jobs end, and who comes while nobody waits starts at once if it fits.

What is decided here needs no discipline: of those that start nobody is in the way of another. Where somebody would have
to wait, the call returns before that job comes, and Python decides the instant. Both do it by the same functions:
`cluster/transitions.py`, the placement kernels, the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.cluster.columns import Table
from kant.cluster.snapshot import copy_changed
from kant.compiled import compiled, inlined
from kant.metrics.recorder import sample
from kant.model.placement import GROUP
from kant.model.status import JobStatus
from kant.model.units import FOREVER
from kant.placement.cost.slowdown import SpanRows, write_spans
from kant.placement.kernels import index_kernel, named
from kant.placement.policy import NodePolicy
from kant.sim.ends import first_end, push_end, take_end

# Columns of the table of arrivals. Queue, user and kind are numbers of the workload's own.
A_TIME, A_RUNTIME, A_QUEUE, A_USER, A_KIND, A_ESTIMATE, A_PRIORITY, A_PREEMPTIBLE, A_DUE = range(9)

# Columns of a kind of jobs, which ask for the same.
K_FIRST, K_GROUPS, K_SHAPE, K_MILLI, K_PODS = range(5)  # its groups in the table of groups, and what it asks for
KIND_WIDTH = 5
PYTHON = -1
"""In K_FIRST: Python decides about jobs of the kind."""

# Columns of a group of a kind.
G_PODS, G_DEMAND, G_SECOND, G_BY_NODE, G_SLOT, G_NUMBER = range(6)
GROUP_WIDTH = 6

# Columns of what has happened, in order.
H_TIME, H_WHAT, H_ROW, H_INSTANT = range(4)  # the last is a number of its own for each instant
ENDED, CAME, STARTED = range(3)

# Where the call stands: it reads these numbers and writes them.
AT, SAID, HELD, SEEN, TRIED, SAMPLES, STAMP, QUEUES, USERS, NOW, INSTANTS, RANK, CODE, ROOM = range(14)

WAITS, FULL = 1, 2
"""Codes: the next to come may have to wait; there may be no room for ROOM pieces more."""

FINISHED = int(JobStatus.FINISHED)

Advance = Callable[..., None]


@inlined
def note(happened: Table, said: int, now: int, what: int, row: int, instant: int) -> int:
    event = happened[said]
    event[H_TIME], event[H_WHAT], event[H_ROW], event[H_INSTANT] = now, what, row, instant
    return said + 1


@cache
def advance_kernel(one: type[NodePolicy], other: type[NodePolicy]) -> Advance:
    """The call for a profile whose jobs are placed by these node policies."""
    place_one, place_other = index_kernel(one), index_kernel(other)

    def advance(
        until: int, in_order: bool, checkpoint: int, stands: Table, happened: Table, arrivals: Table, kinds: Table,
        groups: Table, queues: Table, users: Table, begin: int, jobs: Table, table: Table, log: Table, pools: Table,
        demands: Table, held: Table, view: Table, view_log: Table, typical: Table, order: Table, index: Table,
        marks: Table, params: Table, other_order: Table, other_index: Table, other_marks: Table, other_params: Table,
        heap: Table, ends: Table, samples: Table, integrals: Table, sampled: Table, spans: SpanRows, seen: Table,
    ) -> None:  # fmt: skip
        """Run instants up to `until`. Row `begin` of `jobs` is that of the first of `arrivals`."""
        at, said, passed, code = 0, 0, 0, 0
        while code == 0:
            due = first_end(heap, ends)
            comes = arrivals[at, A_TIME] if at < arrivals.shape[0] else FOREVER
            now = min(due, comes)
            if now == FOREVER or now > until:
                break
            if due == now:
                while first_end(heap, ends) == now:
                    row = take_end(heap, ends)
                    pieces = held[jobs[row, c.J_PIECE] : jobs[row, c.J_PIECE] + jobs[row, c.J_PIECES]]
                    to.stopped(table, log, pools, jobs, pieces, demands, row, now, FINISHED, 0, -1, to.STAYS, True)
                    said = note(happened, said, now, ENDED, row, passed)
            last = at
            while last < arrivals.shape[0] and arrivals[last, A_TIME] == now:
                last += 1
            if last > at:
                copy_changed(table, log, stands[SEEN], view, view_log, stands[TRIED])
                stands[SEEN], stands[TRIED] = log[0], view_log[0]
                top = stands[HELD]
                if last - at > 1 and not in_order:
                    code = WAITS
                for i in range(at, last):
                    kind = arrivals[i, A_KIND]
                    first = kinds[kind, K_FIRST]
                    if first < 0 or arrivals[i, A_PRIORITY] != arrivals[at, A_PRIORITY]:
                        code = WAITS
                    elif top + kinds[kind, K_PODS] > held.shape[0]:
                        code = FULL
                        stands[ROOM] = top + kinds[kind, K_PODS] - stands[HELD]
                    if code != 0:
                        break
                    jobs[begin + i, c.J_PIECE] = top
                    for g in range(first, first + kinds[kind, K_GROUPS]):
                        if groups[g, G_SECOND] == 0:
                            end = place_one(
                                view, view_log, demands, groups[g, G_DEMAND], typical, params, order, index, marks,
                                groups[g, G_SLOT], groups[g, G_PODS], groups[g, G_BY_NODE] == 1, 0, held, top,
                            )  # fmt: skip
                        else:
                            end = place_other(
                                view, view_log, demands, groups[g, G_DEMAND], typical, other_params, other_order,
                                other_index, other_marks, groups[g, G_SLOT], groups[g, G_PODS],
                                groups[g, G_BY_NODE] == 1, 0, held, top,
                            )  # fmt: skip
                        if end < 0:
                            code = WAITS
                            break
                        for piece in range(top, end):
                            held[piece, GROUP] = groups[g, G_NUMBER]
                        top = end
                    if code != 0:
                        break
                    jobs[begin + i, c.J_PIECES] = top - jobs[begin + i, c.J_PIECE]
                if code == 0:
                    for i in range(at, last):
                        come, row, kind = arrivals[i], begin + i, kinds[arrivals[i, A_KIND]]
                        if queues[come[A_QUEUE]] < 0:
                            queues[come[A_QUEUE]] = stands[QUEUES]
                            stands[QUEUES] += 1
                        if users[come[A_USER]] < 0:
                            users[come[A_USER]] = stands[USERS]
                            stands[USERS] += 1
                        to.submitted(
                            jobs, row, now, stands[RANK], queues[come[A_QUEUE]], users[come[A_USER]], kind[K_SHAPE],
                            kind[K_MILLI], kind[K_PODS], now, come[A_ESTIMATE], come[A_PRIORITY],
                            come[A_PREEMPTIBLE] == 1, -1, come[A_DUE], checkpoint, -1, False, -1, -1, -1,
                        )  # fmt: skip
                        stands[RANK] += 1
                        said = note(happened, said, now, CAME, row, passed)
                    for i in range(at, last):
                        row = begin + i
                        first = jobs[row, c.J_PIECE]
                        pieces = held[first : first + jobs[row, c.J_PIECES]]
                        to.started(table, log, pools, jobs, pieces, demands, row, now, held, first)
                        stands[STAMP] += 1
                        write_spans(table, pieces, seen, stands[STAMP], spans, row)
                        push_end(heap, ends, row, now + arrivals[i, A_RUNTIME])
                        said = note(happened, said, now, STARTED, row, passed)
                    stands[HELD], at = top, last
            if code == 0 or due == now:
                stands[SAMPLES] = sample(pools, samples, stands[SAMPLES], integrals, sampled, now, 0, 0)
                stands[NOW] = now
            if code == 0:
                passed += 1
        stands[AT], stands[SAID], stands[INSTANTS], stands[CODE] = at, said, passed, code

    return compiled(named(advance, one, other))
