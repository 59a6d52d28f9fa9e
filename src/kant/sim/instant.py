"""Parts of an instant of the compiled loop (`advance.py`): what its events change, and how they are undone."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Narrow, Table
from kant.cluster.quota_columns import charge_all, refund_all
from kant.compiled import inlined
from kant.queueing import waiting as w
from kant.queueing.watch import JOBS, LIVE, QUOTA
from kant.sim.blocked import HOME_SLOT, Quotas
from kant.sim.happened import CAME, ENDED, EVICTED, H_END, H_ROW, H_WHAT, HELD, STARTED


@inlined
def copy_of(one: Table, other: Table) -> None:
    """Copy a row of numbers."""
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


@inlined
def undo(
    happened: Table, known: int, said: int, entries: Table, places: Narrow, buckets: Table, jobs: Table,
    quotas: Quotas | None, ends: Table, begin: int, end: int,
) -> None:  # fmt: skip
    """Undo the attempt at an instant: new jobs are removed, started jobs wait again, and evicted jobs run on."""
    for k in range(said - 1, known - 1, -1):
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
            ends[row] = happened[k, H_END]
        elif what >= HELD:
            places[row, w.P_RECORDED] = 0
    for row in range(begin, end):
        if places[row, w.P_ENTRY] > 0:
            w.remove(entries, places, buckets, places[row, w.P_ENTRY])
        places[row, w.P_RECORDED] = 0
