"""Advance a simulated run by many instants in one compiled call: jobs end and arrive, the awake buckets are walked.

Buckets are walked best first. This covers disciplines that keep to `Discipline.run`, without quotas, limits or
evictions. For anything else the call returns, and Python decides that instant. Both use the same functions:
`queueing/waiting.py`, `cluster/transitions.py`, the placement kernels, the metrics.

Long: it is one loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

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
from kant.placement.group_kernel import G_NUMBER, G_PODS, Domains, Scores, group_kernel
from kant.placement.kernels import COUNT_ALL, named
from kant.placement.policy import NodePolicy
from kant.queueing import waiting as w
from kant.queueing.watch import ANY_START, NODES, freed
from kant.sim.ends import first_end, push_end, take_end
from kant.sim.serve_heads import (
    PYTHON_DECIDES,
    S_ALONE,
    S_FIRST,
    S_GROUPS,
    S_MILLI,
    S_PODS,
    S_POOL_BITS,
    Rules,
    serve_kernel,
    serve_none,
)

# Columns of the table of arrivals. Queues, users and kinds are numbered by the workload.
A_TIME, A_RUNTIME, A_QUEUE, A_USER, A_KIND, A_ESTIMATE, A_PRIORITY, A_PREEMPTIBLE, A_DUE = range(9)
# The job's place among the waiting: its bucket, its scheduling key, and its sort key.
A_BUCKET, A_KNOWN, A_KEY = range(9, 12)
ARRIVAL_WIDTH = 12

PYTHON = -1
"""Value of S_FIRST, and of a kind's shape, for jobs that Python decides."""

# Columns of the event table, in order of time.
H_TIME, H_WHAT, H_ROW, H_INSTANT, H_PIECE, H_COUNT = range(6)
"""H_INSTANT numbers the instants of the call. A job that starts has H_COUNT pieces from H_PIECE on. For a job that is
told it waits H_COUNT is 0, and H_PIECE is the number of its pods that fit. Where late heads are served each instant
ends with CYCLED, whose H_PIECE is when to cycle again without an event, µs; -1: never."""
ENDED, CAME, STARTED, HELD, CYCLED = range(5)

# The state of the call, which it reads and writes.
(
    AT, SAID, TAKEN, SEEN, TRIED, SAMPLES, STAMP, QUEUES, USERS, NOW, INSTANTS, RANK, CODE, ROOM, WAITING, MILLI, PODS,
    MAY_TRY, DOUBTS, WAKES_ON, LOG, WAKE,
) = range(22)  # fmt: skip
STANDS = 22

MOST_WAKES = 1024
"""Maximum number of instants without an event in one call."""

WAITS, FULL = 1, 2
"""Return codes: Python decides the instant; there may be no room for ROOM pieces, or for ROOM more waiting jobs."""

FINISHED = int(JobStatus.FINISHED)

Advance = Callable[..., None]


@inlined
def note(happened: Table, said: int, now: int, what: int, row: int, instant: int, piece: int, count: int) -> int:
    event = happened[said]
    event[H_TIME], event[H_WHAT], event[H_ROW], event[H_INSTANT] = now, what, row, instant
    event[H_PIECE], event[H_COUNT] = piece, count
    return said + 1


@inlined
def forget(
    happened: Table, known: int, said: int, entries: Table, places: Table, buckets: Table, verdicts: Table, begin: int,
    end: int,
) -> None:  # fmt: skip
    """Undo the attempt at an instant: new jobs are removed, started jobs wait again, and all keys are unknown."""
    for k in range(said - 1, known - 1, -1):
        row, what = happened[k, H_ROW], happened[k, H_WHAT]
        if what == STARTED:  # the row of the last that was removed is the first that is free again
            was = entries[entries[0, w.E_LEFT]]
            w.push(
                entries, places, buckets, row, was[w.E_PRIORITY], was[w.E_KEY], was[w.E_SHAPE], was[w.E_KNOWN],
                was[w.E_BUCKET],
            )  # fmt: skip
        elif what == HELD:
            places[row, w.P_RECORDED] = 0
    for row in range(begin, end):
        if places[row, w.P_ENTRY] > 0:
            w.remove(entries, places, buckets, places[row, w.P_ENTRY])
        places[row, w.P_RECORDED] = 0
    for k in range(1, verdicts[0, w.V_STATE] + 1):
        verdicts[k, w.V_STATE], verdicts[k, w.V_UNTIL] = w.AWAKE, -1
    verdicts[0, w.V_ROW] = 0


@cache
def advance_kernel(one: type[NodePolicy], other: type[NodePolicy], by_domain: bool, backfills: bool) -> Advance:
    """Return the compiled call for a profile that places jobs by these node policies; `by_domain`: some in a domain.

    With `backfills` heads that have waited too long are served.
    """
    place = group_kernel(one, other, by_domain)
    serve = serve_kernel(place) if backfills else serve_none

    def advance(
        until: int, checkpoint: int, alone: bool, outgrown: bool, by_priority: bool, stands: Table, happened: Table,
        arrivals: Table, shape_of: Table, shapes: Table, groups: Table, queues: Table, users: Table, begin: int,
        jobs: Table, work: Table, table: Table, log: Table, pools: Table, demands: Table, held: Table, view: Table,
        view_log: Table, typical: Table, scores: Scores, others: Scores, domains: Domains | None, heap: Table,
        ends: Table, samples: Table, integrals: Table, sampled: Table, spans: SpanRows, seen: Table, entries: Table,
        places: Table, buckets: Table, verdicts: Table, ready: Table, stirred: Table, watched: Table,
        rules: Rules | None,
    ) -> None:  # fmt: skip
        """Run instants up to `until`. Row `begin` of `jobs` is that of the first of `arrivals`."""
        at, said, passed, code, wakes = 0, 0, 0, 0, 0
        while code == 0 and wakes < MOST_WAKES:
            due = first_end(heap, ends)
            comes = arrivals[at, A_TIME] if at < arrivals.shape[0] else FOREVER
            now = min(due, comes, stands[WAKE])
            wakes += now < min(due, comes)
            if now == FOREVER or now > until:
                break
            if due == now:
                while first_end(heap, ends) == now:
                    row = take_end(heap, ends)
                    pieces = held[jobs[row, c.J_PIECE] : jobs[row, c.J_PIECE] + jobs[row, c.J_PIECES]]
                    to.stopped(table, log, pools, jobs, pieces, demands, row, now, FINISHED, 0, -1, to.STAYS, True)
                    said = note(happened, said, now, ENDED, row, passed, 0, 0)
            last, pods, idle = at, stands[PODS], stands[WAITING] == 0 and verdicts[0, w.V_ROW] == 0
            while last < arrivals.shape[0] and arrivals[last, A_TIME] == now:
                s = shape_of[arrivals[last, A_KIND]]
                if s == PYTHON or not (idle or (shapes[s, S_ALONE] == 0 and not alone)):
                    code = WAITS
                else:
                    pods += shapes[s, S_PODS]
                last += 1
            if code == 0 and (
                stands[TAKEN] + pods > held.shape[0] or stands[WAITING] + last - at >= entries.shape[0]
            ):  # fmt: skip
                code = FULL
                stands[ROOM] = max(pods, last - at)
            known, top, review, first = said, stands[TAKEN], -1, at
            if code == 0 and (last > at or stands[WAITING] > 0):
                copy_changed(table, log, stands[SEEN], view, view_log, stands[TRIED])
                stands[SEEN], stands[TRIED] = log[0], view_log[0]
                for i in range(at, last):
                    come, row = arrivals[i], begin + i
                    said = note(happened, said, now, CAME, row, passed, 0, 0)
                    places[row, w.P_RECORDED] = 0
                    priority = -come[A_PRIORITY] if by_priority else 0
                    s = shape_of[come[A_KIND]]
                    if w.push(entries, places, buckets, row, priority, come[A_KEY], s, come[A_KNOWN], come[A_BUCKET]):
                        stands[MAY_TRY] = 1
                        if outgrown:
                            verdicts[come[A_KNOWN], w.V_STATE] = w.AWAKE
                if verdicts[0, w.V_ROW] > 0:
                    changed = NODES if log[0] != stands[LOG] else 0
                    stands[LOG] = log[0]
                    woke = w.wake(entries, buckets, verdicts, ready, changed, freed(pools, watched), True, now)
                    stands[MAY_TRY] |= woke & w.MAY_TRY
                    stands[DOUBTS] |= (woke & w.DOUBTS) // w.DOUBTS
                if stands[MAY_TRY] == 1:
                    count = w.rouse(verdicts, stirred, now) if stands[DOUBTS] == 1 else 0
                    for i in range(count):
                        s = verdicts[stirred[i], w.V_SHAPE]
                        fits = True
                        for g in range(shapes[s, S_FIRST], shapes[s, S_FIRST] + shapes[s, S_GROUPS]):
                            found = place(
                                view, view_log, demands, groups[g], typical, scores, others, domains,
                                np.int64(COUNT_ALL), held, top,
                            )  # fmt: skip
                            fits = fits and -1 - found >= groups[g, G_PODS]
                        w.settle(entries, places, buckets, verdicts, stirred[i], fits, False, now)
                    stands[MAY_TRY] = stands[DOUBTS] = 0
                    w.fill_ready(entries, buckets, verdicts, ready)
                    entry = w.next_ready(entries, buckets, verdicts, ready, 0)
                    while entry > 0:
                        row, s, end = entries[entry, w.E_ROW], entries[entry, w.E_SHAPE], top
                        for g in range(shapes[s, S_FIRST], shapes[s, S_FIRST] + shapes[s, S_GROUPS]):
                            placed = end
                            end = place(
                                view, view_log, demands, groups[g], typical, scores, others, domains,
                                groups[g, G_PODS], held, placed,
                            )  # fmt: skip
                            if end < 0:
                                break
                            for piece in range(placed, end):
                                held[piece, GROUP] = groups[g, G_NUMBER]
                        if end >= 0:
                            said = note(happened, said, now, STARTED, row, passed, top, end - top)
                            top = end
                            if stands[WAKES_ON] & ANY_START != 0:
                                woke = w.wake(entries, buckets, verdicts, ready, ANY_START, 0, False, now)
                                stands[MAY_TRY] |= woke & w.MAY_TRY
                            w.remove(entries, places, buckets, entry)
                        elif alone or shapes[s, S_ALONE] == 1:
                            code = WAITS
                            break
                        else:
                            if verdicts[0, w.V_ROW] == 0:
                                freed(pools, watched)
                                stands[LOG], stands[WAKES_ON] = log[0], 0
                            w.learn(entries, verdicts, entry, w.ASLEEP, shapes[s, S_POOL_BITS], 0, -1, True, False, now)
                            if places[row, w.P_RECORDED] == 0:
                                places[row, w.P_RECORDED] = 1
                                said = note(happened, said, now, HELD, row, passed, -1 - end, 0)
                        entry = w.next_ready(entries, buckets, verdicts, ready, 0)
                for i in range(at, last):  # a new job may wait behind one that was tried
                    waits = places[begin + i, w.P_ENTRY] > 0
                    if waits and (alone or shapes[shape_of[arrivals[i, A_KIND]], S_ALONE] == 1):
                        code = WAITS
            if code == 0 and stands[WAITING] + last - at > 0:
                review = serve(
                    now, log[0], rules, begin + at, stands[TAKEN], shapes, groups, jobs, heap, ends, held, top, view,
                    view_log, demands, typical, scores, others, domains, entries, buckets, verdicts, stirred,
                )  # fmt: skip
                code = WAITS if review == PYTHON_DECIDES else 0
            if code != 0:
                if said > known:
                    forget(happened, known, said, entries, places, buckets, verdicts, begin + at, begin + last)
                    stands[MAY_TRY] = 1
                said, last, ready[0] = known, at, 0
            for i in range(at, last):
                come, row, s = arrivals[i], begin + i, shape_of[arrivals[i, A_KIND]]
                if queues[come[A_QUEUE]] < 0:
                    queues[come[A_QUEUE]] = stands[QUEUES]
                    stands[QUEUES] += 1
                if users[come[A_USER]] < 0:
                    users[come[A_USER]] = stands[USERS]
                    stands[USERS] += 1
                to.submitted(
                    jobs, row, now, stands[RANK], queues[come[A_QUEUE]], users[come[A_USER]], s, shapes[s, S_MILLI],
                    shapes[s, S_PODS], now, come[A_ESTIMATE], come[A_PRIORITY], come[A_PREEMPTIBLE] == 1, -1,
                    come[A_DUE], checkpoint, -1, False, -1, -1, -1,
                )  # fmt: skip
                work[row] = come[A_RUNTIME]
                stands[RANK] += 1
                stands[WAITING] += 1
                stands[MILLI] += shapes[s, S_MILLI]
                stands[PODS] += shapes[s, S_PODS]
            at = last
            for k in range(known, said):
                if happened[k, H_WHAT] == STARTED:
                    row, first = happened[k, H_ROW], happened[k, H_PIECE]
                    pieces = held[first : first + happened[k, H_COUNT]]
                    to.started(table, log, pools, jobs, pieces, demands, row, now, held, first)
                    stands[STAMP] += 1
                    write_spans(table, pieces, seen, stands[STAMP], spans, row)
                    push_end(heap, ends, row, now + work[row])
                    stands[TAKEN] = first + pieces.shape[0]
                    stands[WAITING] -= 1
                    stands[MILLI] -= jobs[row, c.J_MILLI]
                    stands[PODS] -= jobs[row, c.J_PODS]
            if due == now or last > first or said > known:
                stands[SAMPLES] = sample(
                    pools, samples, stands[SAMPLES], integrals, sampled, now, stands[WAITING], stands[MILLI]
                )  # fmt: skip
                stands[NOW] = now
            if code == 0:
                if backfills:
                    said = note(happened, said, now, CYCLED, -1, passed, review, 0)
                    stands[WAKE] = review if review > now else FOREVER
                passed += 1
            elif backfills or due == now:
                stands[WAKE] = now  # for the rest of this instant
        stands[AT], stands[SAID], stands[INSTANTS], stands[CODE] = at, said, passed, code

    return compiled(named(advance, one, other, place, serve))
