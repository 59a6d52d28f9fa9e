"""Aged: priority with linear ageing."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kant.cluster.columns import J_PRIORITY, J_SUBMIT, Table
from kant.model.taxonomy import Tags, tagged
from kant.model.units import FOREVER, SECOND
from kant.queueing.order import Order


class Aged(Order, frozen=True, tag="aged"):
    """Each step of priority is worth `step_s` of waiting: a job of priority p goes before one of priority q exactly if
    it arrived no more than (p - q) * step_s later. Keys do not change while jobs wait, so the queue is never re-sorted.

    The bound: with priorities from p_min to p_max, no job that arrives more than (p_max - p_min) * step_s after another
    goes before it. So while a job's queue is within its quota, only jobs of its size class that arrive within that span
    can pass it; then it waits until these have been served.
    """

    step_s: Annotated[int, Meta(ge=1, le=10**6)] = 3600

    source: ClassVar[str] = "ageing of A. Silberschatz et al., Operating System Concepts; the linear bound is ours"
    tags: ClassVar[Tags] = tagged(Order.tags, objective="priority fairness", knowledge="none")
    by_priority: ClassVar[bool] = False

    def keys(self, jobs: Table, rows: Table, now: int) -> NDArray[Any]:
        step = self.step_s * SECOND
        most = FOREVER // (2 * step)  # a higher priority counts as this one, so that the key fits 64 bits
        keys: NDArray[Any] = jobs[rows, J_SUBMIT] - np.clip(jobs[rows, J_PRIORITY], -most, most) * step
        return keys
