"""What a blocked job claims: whether it may evict any job, and which jobs are behind it.

Python and compiled code call these functions. `queueing/priority.py` and design note 51 have the rules of priority.
"""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.quota_columns import would_borrow
from kant.compiled import inlined
from kant.model.units import FOREVER


@inlined
def ranks_after(jobs: Table, head: int, other: int) -> bool:
    """Return whether job `other` ranks behind job `head`: it has a lower priority, or the same and came later."""
    own, job = jobs[head], jobs[other]
    later = job[c.J_SUBMIT] > own[c.J_SUBMIT] or (job[c.J_SUBMIT] == own[c.J_SUBMIT] and other > head)
    return bool(job[c.J_PRIORITY] < own[c.J_PRIORITY] or (job[c.J_PRIORITY] == own[c.J_PRIORITY] and later))


@inlined
def is_behind(jobs: Table, head: int, other: int) -> bool:
    """Return whether job `other` started while job `head` waited, and ranks behind it (`ranks_after`)."""
    return bool(jobs[other, c.J_STARTED] >= jobs[head, c.J_SINCE] and ranks_after(jobs, head, other))


@inlined
def may_evict(
    priority: int, lowest: int, reclaims: bool, limits: Table, used: Table, first: int, amounts: Table, beyond: bool
) -> bool:
    """Return whether a waiting job may evict any running job, judged by totals and not job by job.

    `lowest` is the lowest priority of the preemptible running jobs, FOREVER if priority gives no right to evict.
    `beyond`: some queue holds more than its nominal quota, so a job in its own nominal quota may reclaim from it.
    """
    return bool(priority > lowest or (reclaims and beyond and not would_borrow(limits, used, first, amounts)))


@inlined
def may_evict_later(
    priority: int, lowest: int, started: int, reclaims: bool, limits: Table, used: Table, first: int, amounts: Table
) -> bool:
    """Return whether a waiting job may evict a job that the plan starts, once that job runs; judged by totals.

    `started` is the lowest priority of the preemptible jobs that the plan starts, FOREVER if there is none. `lowest` is
    that of the running jobs: a job that reclaims quota may first evict some of these, and then be in quota itself.
    """
    lowest = min(lowest, started) if reclaims else started
    return bool(started < FOREVER and may_evict(priority, lowest, reclaims, limits, used, first, amounts, True))
