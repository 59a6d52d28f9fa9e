"""What an instant of a compiled call changes: jobs end and arrive, and what was decided for others is carried out."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.cluster.columns import Table
from kant.cluster.preemptible import count
from kant.cluster.quota_columns import could_ever, refund_all
from kant.compiled import merged
from kant.model.status import JobStatus
from kant.model.units import FOREVER
from kant.placement.calendar.book import H_END as SPAN_END
from kant.placement.cost.slowdown import write_spans
from kant.queueing import waiting as w
from kant.sim import tables as t
from kant.sim.blocked import HOME_SLOT, S_ALONE, S_MILLI, S_PODS, Quotas
from kant.sim.ends import first_end, push_end, take_end
from kant.sim.evict import BUCKET, KEY, KNOWN, MOVED, Evictions, work_lost
from kant.sim.happened import CAME, ENDED, EVICTED, H_BEGIN, H_COUNT, H_END, H_PIECE, H_ROW, H_WHAT, STARTED, note
from kant.sim.reservations import Reservations, close_up, has_room, join, leaves
from kant.sim.reserve import NO_ROOM, WAITS
from kant.sim.tables import Tables

FINISHED = int(JobStatus.FINISHED)


@merged
def end_jobs(v: Tables, now: int, quotas: Quotas | None, reservations: Reservations | None, store: Table) -> None:
    """End the jobs whose run is over at `now`."""
    instant, jobs = v.instant, v.jobs
    while first_end(v.heap, v.ends) == now:
        row = take_end(v.heap, v.ends)
        if reservations is not None:
            leaves(reservations, store, row, now)
        pieces = v.held[jobs[row, c.J_PIECE] : jobs[row, c.J_PIECE] + jobs[row, c.J_PIECES]]
        to.stopped(v.table, v.log, v.pools, jobs, pieces, v.demands, row, now, FINISHED, 0, -1, to.STAYS, True)
        instant[t.SAID] = note(v.happened, instant[t.SAID], now, ENDED, row, instant[t.INSTANTS], 0, 0)
        if quotas is not None:
            home = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT]
            refund_all(quotas.limits, quotas.used, home, quotas.amounts[jobs[row, c.J_SHAPE]])
        if jobs[row, c.J_PREEMPTIBLE] == 1:
            count(v.counts, jobs[row, c.J_PRIORITY], -1)


@merged
def look(v: Tables, now: int, reservations: Reservations | None, evictions: Evictions | None) -> None:
    """Find which jobs arrive now, whether Python decides one of them, and whether the tables have room for all."""
    stands, instant, last = v.stands, v.instant, v.stands[t.AT]
    pods, idle = stands[t.PODS], stands[t.WAITING] == 0 and v.verdicts[0, w.V_ROW] == 0
    while last < v.arrivals.shape[0] and v.arrivals[last, t.A_TIME] == now:
        s = v.shape_of[v.arrivals[last, t.A_KIND]]
        if s == t.PYTHON or not (idle or v.shapes[s, S_ALONE] == 0):
            instant[t.CODE] = WAITS
        else:
            pods += v.shapes[s, S_PODS]
        last += 1
    pieces, rows, runs = pods, stands[t.WAITING] + last - stands[t.AT], 0
    if reservations is not None:
        pieces = 2 * pods
        if instant[t.CODE] == 0 and not has_room(reservations.book, 3 * pods):
            instant[t.CODE], instant[t.ROOM] = NO_ROOM, 3 * pods
    if evictions is not None:
        runs = v.heap[0, 0]
        rows += runs
    lacks = stands[t.TAKEN] + pieces > v.held.shape[0] or rows >= v.entries.shape[0]
    if evictions is not None:
        lacks = lacks or runs + rows >= v.heap.shape[0]
    if instant[t.CODE] == 0 and lacks:
        instant[t.CODE], instant[t.ROOM] = NO_ROOM, max(pieces, rows)
    instant[t.LAST], instant[t.MORE] = last, pods


@merged
def arrive(
    v: Tables, now: int, quotas: Quotas | None, reservations: Reservations | None, evictions: Evictions | None
) -> None:
    """Let the jobs arrive that `look` has found."""
    stands, instant, jobs, queues, users, shapes = v.stands, v.instant, v.jobs, v.queues, v.users, v.shapes
    for i in range(stands[t.AT], instant[t.LAST]):
        come, row, s = v.arrivals[i], v.begin + i, v.shape_of[v.arrivals[i, t.A_KIND]]
        instant[t.SAID] = note(v.happened, instant[t.SAID], now, CAME, row, instant[t.INSTANTS], 0, 0)
        if queues[come[t.A_QUEUE]] < 0:
            queues[come[t.A_QUEUE]] = stands[t.QUEUES]
            stands[t.QUEUES] += 1
        if users[come[t.A_USER]] < 0:
            users[come[t.A_USER]] = stands[t.USERS]
            stands[t.USERS] += 1
        to.submitted(
            jobs, row, now, stands[t.RANK], queues[come[t.A_QUEUE]], users[come[t.A_USER]], s, shapes[s, S_MILLI],
            shapes[s, S_PODS], now, come[t.A_ESTIMATE], come[t.A_PRIORITY], come[t.A_PREEMPTIBLE] == 1, come[t.A_DUE],
            v.checkpoint, -1, -1,
        )  # fmt: skip
        v.work[row] = come[t.A_RUNTIME]
        stands[t.RANK] += 1
        stands[t.WAITING] += 1
        stands[t.MILLI] += shapes[s, S_MILLI]
        stands[t.PODS] += shapes[s, S_PODS]
        v.places[row, w.P_RECORDED] = 0
        if evictions is not None:
            evictions.again[row, BUCKET], evictions.again[row, KNOWN] = come[t.A_BUCKET], come[t.A_KNOWN]
            evictions.again[row, KEY] = come[t.A_KEY]
        if quotas is not None:
            home = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT]
            if not could_ever(quotas.limits, home, quotas.amounts[s]):
                instant[t.CODE] = WAITS
        priority = -come[t.A_PRIORITY] if v.by_priority else 0
        if reservations is not None:
            join(reservations.line, stands[t.WAITING] - 1, row, priority, come[t.A_KEY])
        elif w.push(
            v.entries, v.places, v.buckets, row, priority, come[t.A_KEY], s, come[t.A_KNOWN], come[t.A_BUCKET]
        ):  # fmt: skip
            stands[t.MAY_TRY] = 1
            if v.outgrown:
                v.verdicts[come[t.A_KNOWN], w.V_STATE] = w.AWAKE


@merged
def carry_out(v: Tables, now: int, reservations: Reservations | None, evictions: Evictions | None) -> None:
    """Carry out the evictions and starts of the instant."""
    stands, instant, happened, jobs, held, runs = v.stands, v.instant, v.happened, v.jobs, v.held, 0
    for k in range(instant[t.KNOWN], instant[t.SAID]):
        row = happened[k, H_ROW]
        if evictions is not None and happened[k, H_WHAT] == EVICTED:
            moved, pieces = (
                happened[k, H_BEGIN] & MOVED != 0,
                held[jobs[row, c.J_PIECE] : jobs[row, c.J_PIECE] + jobs[row, c.J_PIECES]],
            )
            cost = work_lost(evictions, jobs[row, c.J_MILLI], now - jobs[row, c.J_STARTED])
            v.work[row] += cost - (now - jobs[row, c.J_STARTED])
            happened[k, H_PIECE], happened[k, H_END] = cost, jobs[row, c.J_STARTED]
            to.stopped(
                v.table, v.log, v.pools, jobs, pieces, v.demands, row, now, to.PENDING, cost,
                -1 if moved else c.J_PREEMPTIONS, to.ENDS, True,
            )  # fmt: skip
            count(v.counts, jobs[row, c.J_PRIORITY], -1)
            stands[t.WAITING] += 1
            stands[t.MILLI] += jobs[row, c.J_MILLI]
            stands[t.PODS] += jobs[row, c.J_PODS]
            v.places[row, w.P_RECORDED] = 0
            if not moved:
                again, priority = evictions.again[row], -jobs[row, c.J_PRIORITY] if v.by_priority else 0
                s = jobs[row, c.J_SHAPE]
                if w.push(v.entries, v.places, v.buckets, row, priority, again[KEY], s, again[KNOWN], again[BUCKET]):
                    stands[t.MAY_TRY] = 1
        elif happened[k, H_WHAT] == STARTED:
            runs += 1
            first = happened[k, H_PIECE]
            if jobs[row, c.J_PREEMPTIBLE] == 1:
                count(v.counts, jobs[row, c.J_PRIORITY], 1)
            pieces = held[first : first + happened[k, H_COUNT]]
            to.started(v.table, v.log, v.pools, jobs, pieces, v.demands, row, now, held, first)
            stands[t.STAMP] += 1
            write_spans(v.table, pieces, v.seen, stands[t.STAMP], v.spans, row)
            push_end(v.heap, v.ends, row, now + v.work[row])
            stands[t.TAKEN] = first + pieces.shape[0]
            stands[t.WAITING] -= 1
            stands[t.MILLI] -= jobs[row, c.J_MILLI]
            stands[t.PODS] -= jobs[row, c.J_PODS]
            if reservations is not None:
                until = reservations.book.spans[row, SPAN_END]
                if until < FOREVER:
                    push_end(reservations.expects, reservations.expected, row, until)
    if reservations is not None and instant[t.SAID] > instant[t.KNOWN]:
        close_up(reservations.line, stands[t.WAITING] + runs, jobs)
        stands[t.TAKEN] = instant[t.TOP]
