"""Parts of an instant of the compiled loop (`advance.py`): how it begins, which jobs wake, and how it is undone."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.preemptible import lowest
from kant.cluster.quota_columns import any_beyond_nominal, charge_all, refund_all
from kant.cluster.snapshot import copy_changed
from kant.compiled import inlined, merged
from kant.model.units import FOREVER
from kant.queueing import waiting as w
from kant.queueing.watch import JOBS, LIVE, NODES, QUOTA, RIGHTS, freed
from kant.sim import tables as t
from kant.sim.blocked import HOME_SLOT, Quotas
from kant.sim.happened import CAME, ENDED, EVICTED, H_END, H_ROW, H_WHAT, HELD, STARTED
from kant.sim.tables import Tables


@inlined
def copy_of(one: Table, other: Table) -> None:
    """Copy the elements of `one` into `other`."""
    for i in range(one.shape[0]):
        other[i] = one[i]


@inlined
def changes_of(happened: Table, known: int, said: int) -> int:
    """Return what the events [known, said) change for waiting jobs, as bits of `queueing/watch.py`."""
    found = 0
    for k in range(known, said):
        what = happened[k, H_WHAT]
        if what in (ENDED, EVICTED):
            found |= QUOTA | JOBS | LIVE
        elif what == STARTED:
            found |= JOBS | LIVE
        elif what == CAME:
            found |= LIVE
    return found


@merged
def begin(v: Tables, now: int, stood: Table) -> None:
    """Begin an instant, and copy into `stood` the position of the run before it."""
    instant = v.instant
    instant[t.TIME], instant[t.KNOWN], instant[t.TOP] = now, instant[t.SAID], v.stands[t.TAKEN]
    instant[t.STARTED_LEAST], instant[t.ABOVE], instant[t.ABOVE_OF] = FOREVER, 0, FOREVER
    instant[t.RUNNING], instant[t.EVICTS], instant[t.REVIEW], instant[t.OPENED] = -1, 0, -1, 0
    copy_of(v.stands, stood)


@merged
def wake(v: Tables, now: int, quotas: Quotas | None) -> None:
    """Wake the jobs that may start after what has happened since they slept. Also updates the trial copy of nodes."""
    stands, instant, least, beyond = v.stands, v.instant, lowest(v.counts), False
    copy_changed(v.table, v.log, stands[t.SEEN], v.trial, v.trial_log, stands[t.TRIED])
    stands[t.SEEN], stands[t.TRIED] = v.log[0], v.trial_log[0]
    if quotas is not None:
        beyond = any_beyond_nominal(quotas.limits, quotas.used)
    if v.verdicts[0, w.V_ROW] > 0:
        changed = changes_of(v.happened, stands[t.FOLLOWED], instant[t.SAID])
        if v.log[0] != stands[t.LOG]:
            changed |= NODES
        if least != stands[t.LOWEST] or beyond != (stands[t.BEYOND] == 1):
            changed |= RIGHTS
        stands[t.LOG] = v.log[0]
        woke = w.wake(v.entries, v.buckets, v.verdicts, v.ready, changed, freed(v.pools, v.watched), True, now)
        stands[t.MAY_TRY] |= woke & w.MAY_TRY
        stands[t.DOUBTS] |= (woke & w.DOUBTS) // w.DOUBTS
    stands[t.FOLLOWED], stands[t.LOWEST], stands[t.BEYOND] = instant[t.SAID], least, beyond


@merged
def undo(v: Tables, quotas: Quotas | None, stood: Table, was_freed: Table, knew: Table) -> None:
    """Undo the attempt at an instant: new jobs are removed, started jobs wait again, and evicted jobs run on.

    The run then continues from `stood`, with the verdicts `knew` and the pools `was_freed`.
    """
    stands, instant, happened, jobs = v.stands, v.instant, v.happened, v.jobs
    entries, places, buckets, known = v.entries, v.places, v.buckets, v.instant[t.KNOWN]
    for k in range(instant[t.SAID] - 1, known - 1, -1):
        row, what = happened[k, H_ROW], happened[k, H_WHAT]
        if what == STARTED and entries[0, w.E_ROW] > 0:
            # the row of the last removed job is the first free one again
            was = entries[entries[0, w.E_LEFT]]
            w.push(
                entries, places, buckets, row, was[w.E_PRIORITY], was[w.E_KEY], was[w.E_SHAPE], was[w.E_KNOWN],
                was[w.E_BUCKET],
            )  # fmt: skip
            if quotas is not None:
                home, amounts = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT], quotas.amounts[jobs[row, c.J_SHAPE]]
                refund_all(quotas.limits, quotas.used, home, amounts)
        elif what == EVICTED and quotas is not None:
            home, amounts = quotas.homes[jobs[row, c.J_QUEUE], HOME_SLOT], quotas.amounts[jobs[row, c.J_SHAPE]]
            charge_all(quotas.limits, quotas.used, home, amounts)
            v.ends[row] = happened[k, H_END]
        elif what >= HELD:
            places[row, w.P_RECORDED] = 0
    for i in range(stands[t.AT], instant[t.LAST]):
        row = v.begin + i
        if places[row, w.P_ENTRY] > 0:
            w.remove(entries, places, buckets, places[row, w.P_ENTRY])
        places[row, w.P_RECORDED] = 0
        if v.queues[v.arrivals[i, t.A_QUEUE]] >= stood[t.QUEUES]:
            v.queues[v.arrivals[i, t.A_QUEUE]] = -1
        if v.users[v.arrivals[i, t.A_USER]] >= stood[t.USERS]:
            v.users[v.arrivals[i, t.A_USER]] = -1
    for k in range(v.verdicts[0, w.V_STATE] + 1):
        c.copy_row(knew, k, v.verdicts, k)
    copy_of(was_freed, v.watched)
    seen, tried = stands[t.SEEN], stands[t.TRIED]
    copy_of(stood, stands)
    stands[t.SEEN], stands[t.TRIED] = seen, tried
    instant[t.SAID], v.ready[0] = known, 0
