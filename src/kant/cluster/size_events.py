"""What jobs take, and how elastic gangs change their size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster.elastic import held_by, pods_by_group, without
from kant.cluster.node_events import opened
from kant.model import event as ev
from kant.model.errors import Violation
from kant.model.placement import PODS, Allocation
from kant.model.units import FOREVER

if TYPE_CHECKING:
    from kant.cluster.state import ClusterState


def take(state: ClusterState, job: str, allocation: Allocation) -> None:
    missing = c.take(state.table, state.log, state.pools, allocation)
    if missing >= 0:
        raise Violation(f"job {job!r} was given what is not free: piece {allocation[missing].tolist()}")


def grown(state: ClusterState, event: ev.JobGrown) -> None:
    row, held = elastic_gang(state, event.job, event.cost)
    wider = np.concatenate([held, event.allocation])
    if len(event.allocation) == 0 or pods_by_group(state.shape_of(row), wider) is None:
        raise Violation(f"job {event.job!r} grew by other than pods up to its ceiling")
    take(state, event.job, event.allocation)
    holds_now(state, row, wider, event.cost, event.time)


def shrunk(state: ClusterState, event: ev.JobShrunk) -> None:
    row, held = elastic_gang(state, event.job, event.cost)
    rest = without(held, event.allocation)
    if len(event.allocation) == 0 or pods_by_group(state.shape_of(row), rest) is None:
        raise Violation(f"job {event.job!r} shrank by other than pods above its floor")
    opened(state, int(c.give(state.table, state.log, state.pools, event.allocation)))
    holds_now(state, row, rest, event.cost, event.time)


def elastic_gang(state: ClusterState, job: str, cost: int) -> tuple[int, Allocation]:
    """The row of an elastic gang that runs, and what it holds."""
    row = state.row_of(job)
    if row not in state.elastic or row not in state.running:
        raise Violation(f"job {job!r} is no elastic gang that runs")
    if not 0 <= cost < FOREVER:
        raise Violation(f"a new size costs job {job!r} {cost}: not a time")
    return row, state.running[row]


def holds_now(state: ClusterState, row: int, allocation: Allocation, cost: int, now: int) -> None:
    """A running gang has another size from now on."""
    shape = state.shape_of(row)
    state.elastic[row].settle(state.jobs, row, now)
    state.elastic[row].costs(cost)
    state.running[row] = allocation
    state.jobs[row, c.J_SINCE] = now
    resize(state, row, now)
    state.holdings.resized(row, shape, allocation, now)
    state.moved.add(row)
    state.rivals[shape.pool_bits].stirred = now


def resize(state: ClusterState, row: int, now: int) -> None:
    """What the job table says of a gang is at the size that it has now."""
    allocation, progress = state.running[row], state.elastic[row]
    pods = int(allocation[:, PODS].sum())
    progress.turn_to(state.jobs, row, pods, held_by(allocation)[0])
    progress.resized = now
