"""Whether the quotas admit a job once a set of other jobs has left, computed on tables of integers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.quota_columns import NO_QUOTAS, first_short, reach, refund_all
from kant.compiled import inlined


class QuotaCondition(NamedTuple):
    """What a waiting job asks of the quotas, and what each candidate for eviction would give back.

    `limits` and `used` are tables of the quota tree (`quota_columns.py`). `first` is the first slot of the job's queue,
    `home` that of each candidate's queue (-1: not in the tree). `level`: how many queues, from the job's upwards, must
    stay in quota once candidates of the job's queue have left (`quota_columns.reach` with `part` and `entitled`); -1:
    the job may borrow. `limited`: once all candidates have left, the job must also exceed no limit.
    """

    limits: Table
    used: Table
    first: int
    asked: Table
    home: Table
    amounts: Table
    part: Table
    entitled: Table
    level: int
    limited: bool


NO_CONDITION = QuotaCondition(
    NO_QUOTAS, NO_QUOTAS, -1, np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), NO_QUOTAS,
    np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), -1, False,
)  # fmt: skip
"""The condition if no quota limits the job."""


@inlined
def admits(quota: QuotaCondition, which: np.ndarray) -> bool:
    """Return whether quotas admit the job once the candidates marked 1 in `which` have left; more marks never harm."""
    if quota.first < 0:
        return True
    used = quota.used.copy()
    if quota.limited:
        for i in range(which.shape[0]):
            if which[i] == 1:
                refund_all(quota.limits, used, quota.home[i], quota.amounts[i])
        if first_short(quota.limits, used, quota.first, quota.asked) >= 0:
            return False
    if quota.level < 0:
        return True
    used = quota.used.copy()
    for i in range(which.shape[0]):
        if which[i] == 1 and quota.home[i] == quota.first:
            refund_all(quota.limits, used, quota.home[i], quota.amounts[i])
    return bool(reach(quota.limits, used, quota.first, quota.asked, quota.part, quota.entitled) >= quota.level)
