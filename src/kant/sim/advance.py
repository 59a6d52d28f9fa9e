"""Advance a simulated run by many instants in one compiled call: jobs end and arrive, the awake buckets are walked.

Buckets are walked best first, in quota and by priority. This covers disciplines that keep to `Discipline.run`, and
backfill, without limits; with reservations in time (`reserve.py`) there are no buckets. For anything else the call
returns, and Python decides that instant: for example where a job may be evicted. Both use the same functions:
`queueing/waiting.py`, `queueing/claims.py`, `cluster/transitions.py`, `cluster/quota_columns.py`, the placement
kernels, the metrics.

Long: it is one loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster import transitions as to
from kant.cluster.columns import Narrow, Table
from kant.cluster.preemptible import count, lowest
from kant.cluster.quota_columns import (
    any_beyond_nominal,
    binding,
    charge_all,
    could_ever,
    first_short,
    refund_all,
)
from kant.cluster.snapshot import copy_changed
from kant.compiled import compiled_at_once
from kant.metrics.recorder import sample
from kant.model.placement import GROUP
from kant.model.status import JobStatus
from kant.model.units import FOREVER
from kant.placement.calendar.book import H_END as SPAN_END
from kant.placement.cost.slowdown import SpanRows, write_spans
from kant.placement.group_kernel import G_NUMBER, G_PODS, Domains, Scores, group_kernel
from kant.placement.kernels import COUNT_ALL, named
from kant.placement.policy import NodePolicy
from kant.queueing import waiting as w
from kant.queueing.claims import may_evict
from kant.queueing.evictable import EVERYWHERE, MAY_BE, NONE_PROVEN, Claim
from kant.queueing.watch import ANY_START, JOBS, LIVE, NODES, QUOTA, RIGHTS, freed
from kant.sim.blocked import (
    HOME_SLOT,
    S_ALONE,
    S_FIRST,
    S_GROUPS,
    S_MILLI,
    S_PODS,
    S_POOL_BITS,
    S_PREEMPTS,
    Quotas,
    Rights,
    awaits_start,
    borrowing_of,
    holder_of,
    in_order_of_start,
    running_jobs,
    running_of,
)
from kant.sim.ends import first_end, push_end, take_end
from kant.sim.evict import BUCKET, KEY, KNOWN, MOVED, Evictions, evict, look_for_victims, restart_kernel, work_lost
from kant.sim.happened import (
    CAME,
    CYCLED,
    ENDED,
    EVICTED,
    H_BEGIN,
    H_COUNT,
    H_END,
    H_PIECE,
    H_ROW,
    H_WHAT,
    HELD,
    OUTRANKED,
    SHORT,
    STARTED,
    note,
)
from kant.sim.instant import changes_of, copy_of, undo
from kant.sim.reservations import Reservations, close_up, follow_ends, has_room, join, leaves, spans_of, take_back
from kant.sim.reserve import NO_ROOM, WAITS, reserving_kernel
from kant.sim.serve_heads import PYTHON_DECIDES, Rules, serve_kernel, serve_none

# Columns of the table of arrivals. Queues, users and kinds are numbered by the workload.
A_TIME, A_RUNTIME, A_QUEUE, A_USER, A_KIND, A_ESTIMATE, A_PRIORITY, A_PREEMPTIBLE, A_DUE = range(9)
# The job's place among the waiting: its bucket, its scheduling key, and its sort key.
A_BUCKET, A_KNOWN, A_KEY = range(9, 12)
ARRIVAL_WIDTH = 12

PYTHON = -1
"""Value of S_FIRST, and of a kind's shape, for jobs that Python decides."""

# The state of the call, which it reads and writes.
(
    AT, SAID, TAKEN, SEEN, TRIED, SAMPLES, STAMP, QUEUES, USERS, NOW, INSTANTS, RANK, CODE, ROOM, WAITING, MILLI, PODS,
    MAY_TRY, DOUBTS, WAKES_ON, LOG, WAKE, FOLLOWED, RETRY, LOWEST, BEYOND,
) = range(26)  # fmt: skip
STANDS = 26
"""The queue has followed the first FOLLOWED events. LOWEST and BEYOND are the bounds on evictions by then."""

MOST_WAKES = 1024
"""Maximum number of instants without an event in one call."""

FINISHED = int(JobStatus.FINISHED)

Advance = Callable[..., Table]


@cache
def advance_kernel(
    one: type[NodePolicy], other: type[NodePolicy], by_domain: bool, backfills: bool, reserves: bool
) -> Advance:
    """Return the compiled call for a profile that places jobs by these node policies; `by_domain`: some in a domain.

    With `backfills` heads that have waited too long are served. With `reserves` jobs have reservations in time.
    """
    place = group_kernel(one, other, by_domain)
    serve, restart = serve_kernel(place) if backfills else serve_none, restart_kernel(place)
    cycle: Callable[..., Any] = reserving_kernel(place) if reserves else serve_none
    looks_again = backfills or reserves

    def advance(
        until: int, checkpoint: int, outgrown: bool, by_priority: bool, stands: Table, happened: Table,
        arrivals: Table, shape_of: Table, shapes: Table, groups: Table, queues: Table, users: Table, begin: int,
        jobs: Table, work: Table, table: Table, log: Table, pools: Table, demands: Table, held: Table, view: Table,
        view_log: Table, typical: Table, scores: Scores, others: Scores, domains: Domains | None, heap: Table,
        ends: Table, samples: Table, integrals: Table, sampled: Table, spans: SpanRows, seen: Table, entries: Table,
        places: Narrow, buckets: Table, verdicts: Table, ready: Table, stirred: Table, watched: Table,
        rules: Rules | None, rights: Rights, quotas: Quotas | None, counts: Table,
        reservations: Reservations, store: Table, evictions: Evictions | None,
    ) -> Table:  # fmt: skip
        """Run instants up to `until`. Row `begin` of `jobs` is that of the first of `arrivals`.

        `quotas` is None where no queue has any and all jobs have one priority: then none holds or evicts another, and
        nothing is compiled for that. `evictions` is None where Python decides all instants that evict somebody.
        `counts` are the preemptible running jobs by priority.
        `reservations` is None without any, and `store` that of the calendar, which is returned.
        """
        at, said, passed, code, wakes = 0, 0, 0, 0, 0
        stood, was_freed, knew = stands.copy(), watched.copy(), verdicts.copy()
        if quotas is not None:
            nobody, nothing = np.empty(0, dtype=np.int64), np.empty((0, quotas.amounts.shape[1]), dtype=np.bool_)
            running = running_of(nobody, nothing, rights, quotas, jobs, shapes)
        while code == 0 and wakes < MOST_WAKES:
            due = first_end(heap, ends)
            comes = arrivals[at, A_TIME] if at < arrivals.shape[0] else FOREVER
            now = min(due, comes, stands[WAKE])
            wakes += now < min(due, comes)
            if now == FOREVER or now > until:
                break
            if reserves or evictions is not None:
                most = stands[WAITING] + arrivals.shape[0] - at
                if said + 4 * heap[0, 0] + 4 * most + 1 > happened.shape[0]:
                    break
                if stands[SAMPLES] == samples.shape[0]:
                    break
            if due == now:
                while first_end(heap, ends) == now:
                    row = take_end(heap, ends)
                    if reserves:
                        leaves(reservations, store, row, now)
                    pieces = held[jobs[row, c.J_PIECE] : jobs[row, c.J_PIECE] + jobs[row, c.J_PIECES]]
                    to.stopped(table, log, pools, jobs, pieces, demands, row, now, FINISHED, 0, -1, to.STAYS, True)
                    said = note(happened, said, now, ENDED, row, passed, 0, 0)
                    if quotas is not None:
                        home = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT]
                        refund_all(quotas.limits, quotas.used, home, quotas.amounts[jobs[row, c.J_SHAPE]])
                    if jobs[row, c.J_PREEMPTIBLE] == 1:
                        count(counts, jobs[row, c.J_PRIORITY], -1)
            last, pods, idle = at, stands[PODS], stands[WAITING] == 0 and verdicts[0, w.V_ROW] == 0
            while last < arrivals.shape[0] and arrivals[last, A_TIME] == now:
                s = shape_of[arrivals[last, A_KIND]]
                if s == PYTHON or not (idle or shapes[s, S_ALONE] == 0):
                    code = WAITS
                else:
                    pods += shapes[s, S_PODS]
                last += 1
            if reserves and code == 0 and not has_room(reservations.book, 3 * pods):
                code = NO_ROOM
                stands[ROOM] = 3 * pods
            pieces_more, rows_more = 2 * pods if reserves else pods, stands[WAITING] + last - at
            if evictions is not None:
                rows_more += heap[0, 0]
            if code == 0 and (
                stands[TAKEN] + pieces_more > held.shape[0] or rows_more >= entries.shape[0]
                or (evictions is not None and heap[0, 0] + rows_more >= heap.shape[0])
            ):  # fmt: skip
                code = NO_ROOM
                stands[ROOM] = max(pieces_more, rows_more)
            known, top, review, first, evicted = said, stands[TAKEN], -1, at, False
            copy_of(stands, stood)
            tries = code == 0 and (last > at or stands[WAITING] > 0)
            if tries:
                copy_of(watched, was_freed)
                for k in range(verdicts[0, w.V_STATE] + 1):
                    c.copy_row(verdicts, k, knew, k)
                copy_changed(table, log, stands[SEEN], view, view_log, stands[TRIED])
                stands[SEEN], stands[TRIED] = log[0], view_log[0]
                for i in range(at, last):
                    come, row, s = arrivals[i], begin + i, shape_of[arrivals[i, A_KIND]]
                    said = note(happened, said, now, CAME, row, passed, 0, 0)
                    if queues[come[A_QUEUE]] < 0:
                        queues[come[A_QUEUE]] = stands[QUEUES]
                        stands[QUEUES] += 1
                    if users[come[A_USER]] < 0:
                        users[come[A_USER]] = stands[USERS]
                        stands[USERS] += 1
                    to.submitted(
                        jobs, row, now, stands[RANK], queues[come[A_QUEUE]], users[come[A_USER]], s,
                        shapes[s, S_MILLI], shapes[s, S_PODS], now, come[A_ESTIMATE], come[A_PRIORITY],
                        come[A_PREEMPTIBLE] == 1, come[A_DUE], checkpoint, -1,
                    )  # fmt: skip
                    work[row] = come[A_RUNTIME]
                    stands[RANK] += 1
                    stands[WAITING] += 1
                    stands[MILLI] += shapes[s, S_MILLI]
                    stands[PODS] += shapes[s, S_PODS]
                    places[row, w.P_RECORDED] = 0
                    if evictions is not None:
                        evictions.again[row, BUCKET], evictions.again[row, KNOWN] = come[A_BUCKET], come[A_KNOWN]
                        evictions.again[row, KEY] = come[A_KEY]
                    if quotas is not None:
                        home = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT]
                        if not could_ever(quotas.limits, home, quotas.amounts[s]):
                            code = WAITS
                    priority = -come[A_PRIORITY] if by_priority else 0
                    if reserves:
                        join(reservations.line, stands[WAITING] - 1, row, priority, come[A_KEY])
                    elif w.push(entries, places, buckets, row, priority, come[A_KEY], s, come[A_KNOWN], come[A_BUCKET]):
                        stands[MAY_TRY] = 1
                        if outgrown:
                            verdicts[come[A_KNOWN], w.V_STATE] = w.AWAKE
                least, beyond = lowest(counts), False
                if quotas is not None:
                    beyond = any_beyond_nominal(quotas.limits, quotas.used)
                started_least, above, above_of, knows_running = FOREVER, 0, FOREVER, False
                if verdicts[0, w.V_ROW] > 0:
                    changed = changes_of(happened, stands[FOLLOWED], said)
                    if log[0] != stands[LOG]:
                        changed |= NODES
                    if least != stands[LOWEST] or beyond != (stands[BEYOND] == 1):
                        changed |= RIGHTS
                    stands[LOG] = log[0]
                    woke = w.wake(entries, buckets, verdicts, ready, changed, freed(pools, watched), True, now)
                    stands[MAY_TRY] |= woke & w.MAY_TRY
                    stands[DOUBTS] |= (woke & w.DOUBTS) // w.DOUBTS
                stands[FOLLOWED], stands[LOWEST], stands[BEYOND] = said, least, beyond
                if code == 0 and stands[MAY_TRY] == 1:
                    counted = w.rouse(verdicts, stirred, now) if stands[DOUBTS] == 1 else 0
                    for i in range(counted):
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
                        priority, what, why, which = jobs[row, c.J_PRIORITY], STARTED, 0, 0
                        if quotas is not None:
                            home, amounts = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT], quotas.amounts[s]
                        if quotas is not None and rights.keeps:
                            if priority != above_of:
                                above_of, above = priority, w.best_first(
                                    entries, buckets, verdicts, stirred, rights.heads, False, int(np.int64(0)),
                                    -priority,
                                )  # fmt: skip
                            which, why, _, beside = holder_of(
                                now, row, above, rights, quotas, jobs, shapes, groups, demands
                            )
                            if which >= 0:
                                what = OUTRANKED
                                if beside:
                                    code = WAITS
                                    break
                        may, victims, retry, wakes_on, stops = False, NONE_PROVEN, -1, rights.wakes_on, False
                        for _ in range(2):  # again where others stop for it
                            if quotas is not None and what == STARTED:
                                key = first_short(quotas.limits, quotas.used, home, amounts)
                                if key >= 0:
                                    what = SHORT
                                    why, which = binding(quotas.limits, quotas.used, home + key)
                            for g in range(shapes[s, S_FIRST], shapes[s, S_FIRST] + shapes[s, S_GROUPS]):
                                if what != STARTED:
                                    break
                                placed = end
                                end = place(
                                    view, view_log, demands, groups[g], typical, scores, others, domains,
                                    groups[g, G_PODS], held, placed,
                                )  # fmt: skip
                                if end < 0:
                                    what, why, which = HELD, -1 - end, 0
                                for piece in range(placed, end):
                                    held[piece, GROUP] = groups[g, G_NUMBER]
                            if stops or what in (STARTED, OUTRANKED):
                                break
                            if quotas is not None:
                                may = shapes[s, S_PREEMPTS] == 1 and may_evict(
                                    priority, least if rights.by_priority or rights.keeps else FOREVER,
                                    rights.reclaims, quotas.limits, quotas.used, home, amounts, beyond,
                                )  # fmt: skip
                            if quotas is not None and may:
                                if not knows_running:
                                    rows, knows_running = running_jobs(jobs, heap, ends), True
                                    rows = in_order_of_start(rows, jobs)
                                    borrows = borrowing_of(rows, quotas, jobs)
                                    running = running_of(rows, borrows, rights, quotas, jobs, shapes)
                                claim = Claim(
                                    row, jobs[row, c.J_QUEUE], home if amounts.shape[0] > 0 else -1, priority,
                                    jobs[row, c.J_SINCE], -1,
                                    EVERYWHERE if what == SHORT else shapes[s, S_POOL_BITS], amounts,
                                    rights.by_priority, rights.reclaims, rights.keeps, False,
                                )  # fmt: skip
                                victims, retry, leaving, gives = look_for_victims(
                                    now, s, claim, running, rights, evictions, shapes, groups, jobs, held, view, demands
                                )
                                if evictions is not None and leaving.shape[0] > 0:
                                    woken = -1
                                    for other in leaving:
                                        pods += jobs[other, c.J_PODS]  # they may start elsewhere
                                    if stands[TAKEN] + pods <= held.shape[0]:
                                        said, woken = evict(
                                            leaving, gives, row, now, happened, said, passed, quotas, shapes, jobs,
                                            held, view, view_log, demands, ends,
                                        )  # fmt: skip
                                    if woken >= 0:
                                        what, end, stops, evicted = STARTED, top, True, True
                                        knows_running, above_of = False, FOREVER
                                        w.wake(entries, buckets, verdicts, ready, ANY_START | QUOTA, woken, False, now)
                            if not stops:
                                break
                        if what == STARTED:
                            said = note(happened, said, now, STARTED, row, passed, top, end - top)
                            top = end
                            if quotas is not None:
                                charge_all(quotas.limits, quotas.used, home, amounts)
                            if jobs[row, c.J_PREEMPTIBLE] == 1:
                                started_least = min(started_least, priority)
                            if stands[WAKES_ON] & ANY_START != 0:
                                woke = w.wake(entries, buckets, verdicts, ready, ANY_START, 0, False, now)
                                stands[MAY_TRY] |= woke & w.MAY_TRY
                            w.remove(entries, places, buckets, entry)
                            if stops:  # another round over all that are awake
                                w.fill_ready(entries, buckets, verdicts, ready)
                        else:
                            if what == OUTRANKED:
                                w.pop_ready(entries, buckets, ready)
                                stands[MAY_TRY] = 1
                            else:
                                if victims == MAY_BE or shapes[s, S_ALONE] == 1:
                                    code = WAITS
                                    break
                                if may and retry >= 0:
                                    wakes_on = (wakes_on & QUOTA) | LIVE
                                elif may:
                                    wakes_on = (wakes_on & QUOTA) | (JOBS if wakes_on & QUOTA != 0 else 0)
                                stands[RETRY] = max(stands[RETRY], retry)
                                if verdicts[0, w.V_ROW] == 0:
                                    freed(pools, watched)
                                    stands[LOG], stands[WAKES_ON] = log[0], 0
                                stands[WAKES_ON] |= wakes_on
                                proven = priority <= started_least or not rights.evicts or shapes[s, S_PREEMPTS] == 0
                                proven = proven and victims == NONE_PROVEN
                                if not proven:
                                    stands[DOUBTS] = stands[MAY_TRY] = 1
                                w.learn(
                                    entries, verdicts, entry, w.ASLEEP if proven else w.UNPROVEN,
                                    0 if what == SHORT and not may else shapes[s, S_POOL_BITS], wakes_on, retry,
                                    not may, what == SHORT, now,
                                )  # fmt: skip
                            if places[row, w.P_RECORDED] == 0:
                                places[row, w.P_RECORDED] = 1
                                said = note(happened, said, now, what, row, passed, why, which)
                        entry = w.next_ready(entries, buckets, verdicts, ready, 0)
                for i in range(at, last):  # a new job may wait behind one that was tried
                    if places[begin + i, w.P_ENTRY] > 0 and shapes[shape_of[arrivals[i, A_KIND]], S_ALONE] == 1:
                        code = WAITS
                if reserves:
                    store = follow_ends(reservations, store, now)
                    marks, before = reservations.marks.copy(), spans_of(reservations, stands[WAITING])
                    if code == 0:
                        code, said, top, review, store = cycle(
                            reservations, store, stands[WAITING], top, now, happened, said, passed
                        )
                    if code != 0:
                        store = take_back(reservations, store, before, marks)
                elif code == 0 and stands[WAITING] > 0:
                    review = serve(
                        now, log[0], rules, rights, quotas, stands[RETRY], stands[TAKEN], happened[known:said, H_ROW],
                        shapes, groups, jobs, heap, ends, held, top, view, view_log, demands, typical, scores, others,
                        domains, entries, places, buckets, verdicts, stirred,
                    )  # fmt: skip
                    code = WAITS if review == PYTHON_DECIDES else 0
                    if quotas is not None and code == 0 and rights.reclaims and started_least < FOREVER:
                        soon = awaits_start(
                            now, least, started_least, rights, quotas, shapes, jobs, entries, buckets, verdicts, stirred
                        )
                        if soon > now:
                            review = soon if review <= now else min(review, soon)
                if evictions is not None and quotas is not None and evicted and code == 0:
                    review = now + 1  # others may fit where victims free more than is taken
                    if evictions.moves:
                        said, top, woke = restart(
                            known, said, now, passed, happened, top, stands[WAKES_ON], quotas, shapes, groups, jobs,
                            held, view, view_log, demands, typical, scores, others, domains, entries, buckets, verdicts,
                            ready,
                        )  # fmt: skip
                        stands[MAY_TRY] |= woke & w.MAY_TRY
                if code != 0:
                    undo(
                        happened, known, said, entries, places, buckets, jobs, quotas, ends, begin + at, begin + last
                    )  # fmt: skip
                    for i in range(at, last):
                        if queues[arrivals[i, A_QUEUE]] >= stood[QUEUES]:
                            queues[arrivals[i, A_QUEUE]] = -1
                        if users[arrivals[i, A_USER]] >= stood[USERS]:
                            users[arrivals[i, A_USER]] = -1
                    for k in range(verdicts[0, w.V_STATE] + 1):
                        c.copy_row(knew, k, verdicts, k)
                    copy_of(was_freed, watched)
                    seen_nodes, tried_nodes = stands[SEEN], stands[TRIED]
                    copy_of(stood, stands)
                    stands[SEEN], stands[TRIED] = seen_nodes, tried_nodes
                    said, ready[0] = known, 0
            elif verdicts[0, w.V_ROW] == 0:
                stands[FOLLOWED] = said
            if code != 0:
                last = at
            at = last
            runs = 0
            for k in range(known, said):
                if evictions is not None and happened[k, H_WHAT] == EVICTED:
                    row, moved = happened[k, H_ROW], happened[k, H_BEGIN] & MOVED != 0
                    pieces = held[jobs[row, c.J_PIECE] : jobs[row, c.J_PIECE] + jobs[row, c.J_PIECES]]
                    cost = work_lost(evictions, jobs[row, c.J_MILLI], now - jobs[row, c.J_STARTED])
                    work[row] += cost - (now - jobs[row, c.J_STARTED])
                    happened[k, H_PIECE], happened[k, H_END] = cost, jobs[row, c.J_STARTED]
                    to.stopped(
                        table, log, pools, jobs, pieces, demands, row, now, to.PENDING, cost,
                        -1 if moved else c.J_PREEMPTIONS, to.ENDS, True,
                    )  # fmt: skip
                    count(counts, jobs[row, c.J_PRIORITY], -1)
                    stands[WAITING] += 1
                    stands[MILLI] += jobs[row, c.J_MILLI]
                    stands[PODS] += jobs[row, c.J_PODS]
                    places[row, w.P_RECORDED] = 0
                    if not moved:
                        again, priority = evictions.again[row], -jobs[row, c.J_PRIORITY] if by_priority else 0
                        s = jobs[row, c.J_SHAPE]
                        if w.push(entries, places, buckets, row, priority, again[KEY], s, again[KNOWN], again[BUCKET]):
                            stands[MAY_TRY] = 1
                elif happened[k, H_WHAT] == STARTED:
                    runs += 1
                    row, first = happened[k, H_ROW], happened[k, H_PIECE]
                    if jobs[row, c.J_PREEMPTIBLE] == 1:
                        count(counts, jobs[row, c.J_PRIORITY], 1)
                    pieces = held[first : first + happened[k, H_COUNT]]
                    to.started(table, log, pools, jobs, pieces, demands, row, now, held, first)
                    stands[STAMP] += 1
                    write_spans(table, pieces, seen, stands[STAMP], spans, row)
                    push_end(heap, ends, row, now + work[row])
                    stands[TAKEN] = first + pieces.shape[0]
                    stands[WAITING] -= 1
                    stands[MILLI] -= jobs[row, c.J_MILLI]
                    stands[PODS] -= jobs[row, c.J_PODS]
                    until_then = reservations.book.spans[row, SPAN_END] if reserves else FOREVER
                    if reserves and until_then < FOREVER:
                        push_end(reservations.expects, reservations.expected, row, until_then)
            if reserves and said > known:
                close_up(reservations.line, stands[WAITING] + runs, jobs)
                stands[TAKEN] = top
            if due == now or last > first or said > known:
                stands[SAMPLES] = sample(
                    pools, samples, stands[SAMPLES], integrals, sampled, now, stands[WAITING], stands[MILLI]
                )  # fmt: skip
                stands[NOW] = now
            if code == 0:
                if looks_again or rights.evicts:
                    said = note(happened, said, now, CYCLED, -1, passed, review, 0)
                    stands[WAKE] = now if evicted else review if review > now else FOREVER
                passed += 1
            elif looks_again or rights.evicts or due == now:
                stands[WAKE] = now  # for the rest of this instant
        stands[AT], stands[SAID], stands[INSTANTS], stands[CODE] = at, said, passed, code
        return store

    return compiled_at_once(named(advance, one, other, place, serve, restart, cycle))
