"""Whether the quotas admit a job once a set of others has left, in columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.quota_columns import NO_QUOTAS, first_short, reach, refund_all
from kant.compiled import inlined


class QuotaCondition(NamedTuple):
    """What a job asks for, and what each candidate would free.

    `limits` and `used` are the columns of the tree (`quota_columns.py`). `first` is the first slot of the job's queue;
    `home` is that of each candidate, -1 outside the tree. Once the candidates of its own queue have left, the job must
    reach `level` of its path, within `part` and `entitled` (by slot); -1: it may borrow. With `limited`, no limit may
    be exceeded once all have left.
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
    """Return whether the job is admitted once the candidates marked in `which` have left. More never make it false."""
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
