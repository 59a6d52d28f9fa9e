"""Advance a simulated run by many instants in one compiled call: jobs end and arrive, and those that wait are tried.

The waiting jobs are tried in the order of service (`queueing/service_order.py`), as in a live cycle. The call covers
disciplines that inherit `Discipline.run`, and backfill; disciplines with reservations (`reserve.py`) use no buckets. In
an instant for which the tables do not suffice, the call returns and Python decides. Python uses the same functions:
`queueing/waiting.py`, `queueing/claims.py`, `cluster/transitions.py`, `cluster/quota_columns.py`, and those of the
placement and the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.compiled import compiled_at_once, merged
from kant.metrics.recorder import sample
from kant.model.units import FOREVER
from kant.placement.group_kernel import group_kernel
from kant.placement.kernels import named
from kant.placement.policy import NodePolicy
from kant.queueing import waiting as w
from kant.sim import tables as t
from kant.sim.blocked import S_ALONE, awaits_start
from kant.sim.changes import arrive, carry_out, end_jobs, look
from kant.sim.ends import first_end
from kant.sim.happened import CYCLED, note
from kant.sim.instant import begin, copy_of, undo, wake
from kant.sim.reservations import follow_ends, spans_of, take_back
from kant.sim.reserve import WAITS, reserving_kernel
from kant.sim.serve_heads import serve_kernel, serve_none
from kant.sim.tables import Tables
from kant.sim.tries import tries_kernels

MOST_WAKES = 1024
"""Maximum number of instants without an event in one call."""

Advance = Callable[[Tables, Table], Table]


@cache
def advance_kernel(
    one: type[NodePolicy], other: type[NodePolicy], by_domain: bool, backfills: bool, reserves: bool, limited: bool,
    evicts: bool,
) -> Advance:  # fmt: skip
    """Return the compiled call for a profile with these node policies. `by_domain`: some jobs are placed by domains.

    With `backfills` heads that have waited too long are served. With `reserves` jobs have reservations in time.
    `limited`: there are quotas, or several priorities. With `evicts` jobs are evicted in the call.
    """
    place = group_kernel(one, other, by_domain)
    (try_in_order, restart, take_over), looks_again = tries_kernels(place, limited, evicts), backfills or reserves
    serve = serve_kernel(place, limited, take_over if evicts else None) if backfills else serve_none
    cycle: Callable[..., Any] = reserving_kernel(place) if reserves else serve_none

    @merged
    def decide(v: Tables, store: Table, now: int) -> Table:
        """Decide about the waiting jobs, or set a code that leaves them to Python. Returns the calendar's table."""
        stands, instant = v.stands, v.instant
        if not reserves and instant[t.CODE] == 0 and stands[t.MAY_TRY] == 1:
            try_in_order(v)
        for i in range(stands[t.AT], instant[t.LAST]):  # a new job may wait behind one that was tried
            s = v.shape_of[v.arrivals[i, t.A_KIND]]
            if v.places[v.begin + i, w.P_ENTRY] > 0 and v.shapes[s, S_ALONE] == 1:
                instant[t.CODE] = WAITS
        if reserves:
            store = follow_ends(v.reservations, store, now)
            marks, before = v.reservations.marks.copy(), spans_of(v.reservations, stands[t.WAITING])
            if instant[t.CODE] == 0:
                instant[t.CODE], instant[t.SAID], instant[t.TOP], instant[t.REVIEW], store = cycle(
                    v.reservations, store, stands[t.WAITING], instant[t.TOP], now, v.happened, instant[t.SAID],
                    instant[t.INSTANTS],
                )  # fmt: skip
            if instant[t.CODE] != 0:
                store = take_back(v.reservations, store, before, marks)
        elif instant[t.CODE] == 0 and stands[t.WAITING] > 0:
            serve(v)
            if limited and instant[t.CODE] == 0 and v.rights.reclaims and instant[t.STARTED_LEAST] < FOREVER:
                t.wake_at(v, awaits_start(v))
        if evicts and instant[t.EVICTS] == 1 and instant[t.CODE] == 0:
            instant[t.REVIEW] = now + 1  # others may fit where victims free more than is taken
            if v.evictions.moves:
                restart(v)
        return store

    def advance(v: Tables, store: Table) -> Table:
        """Run the instants up to `v.until` (µs). Returns `store`, the calendar's table, or what replaces it."""
        stands, instant, verdicts, arrivals, wakes = v.stands, v.instant, v.verdicts, v.arrivals, 0
        stood, was_freed, knew = stands.copy(), v.watched.copy(), verdicts.copy()
        while instant[t.CODE] == 0 and wakes < MOST_WAKES:
            at, due = stands[t.AT], first_end(v.heap, v.ends)
            comes = arrivals[at, t.A_TIME] if at < arrivals.shape[0] else FOREVER
            now = min(due, comes, stands[t.WAKE])
            wakes += now < min(due, comes)
            if now == FOREVER or now > v.until:
                break
            if reserves or evicts:
                most = stands[t.WAITING] + arrivals.shape[0] - at
                if instant[t.SAID] + 4 * v.heap[0, 0] + 4 * most + 1 > v.happened.shape[0]:
                    break
                if stands[t.SAMPLES] == v.samples.shape[0]:
                    break
            end_jobs(v, now, v.quotas, v.reservations, store)
            look(v, now, v.reservations, v.evictions)
            begin(v, now, stood)
            if instant[t.CODE] == 0 and (instant[t.LAST] > at or stands[t.WAITING] > 0):
                copy_of(v.watched, was_freed)
                for k in range(verdicts[0, w.V_STATE] + 1):
                    c.copy_row(verdicts, k, knew, k)
                arrive(v, now, v.quotas, v.reservations, v.evictions)
                wake(v, now, v.quotas)
                store = decide(v, store, now)
                if instant[t.CODE] != 0:
                    undo(v, v.quotas, stood, was_freed, knew)
            elif verdicts[0, w.V_ROW] == 0:
                stands[t.FOLLOWED] = instant[t.SAID]
            stands[t.AT] = at if instant[t.CODE] != 0 else instant[t.LAST]
            carry_out(v, now, v.reservations, v.evictions)
            if due == now or stands[t.AT] > at or instant[t.SAID] > instant[t.KNOWN]:
                stands[t.SAMPLES] = sample(
                    v.pools, v.samples, stands[t.SAMPLES], v.integrals, v.sampled, now, stands[t.WAITING],
                    stands[t.MILLI],
                )  # fmt: skip
                stands[t.NOW] = now
            if instant[t.CODE] == 0:
                if looks_again or v.rights.evicts:
                    review = instant[t.REVIEW]
                    instant[t.SAID] = note(v.happened, instant[t.SAID], now, CYCLED, -1, instant[t.INSTANTS], review, 0)
                    stands[t.WAKE] = now if instant[t.EVICTS] == 1 else review if review > now else FOREVER
                instant[t.INSTANTS] += 1
            elif looks_again or v.rights.evicts or due == now:
                stands[t.WAKE] = now  # Python decides the rest of this instant
        return store

    return compiled_at_once(named(advance, one, other, place, serve, cycle))
