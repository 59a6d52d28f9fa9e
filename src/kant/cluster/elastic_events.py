"""The events that resize elastic gangs: a function for each, which applies it to the state."""

from __future__ import annotations

import dataclasses

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.elastic import Progress, held_by, pods_by_group, without
from kant.cluster.state_data import StateData
from kant.model import event as ev
from kant.model.errors import StateError
from kant.model.placement import PODS, Allocation
from kant.model.units import FOREVER


def not_free(job: str, allocation: Allocation, piece: int) -> StateError:
    return StateError(f"job {job!r} was given resources that are not free: piece {allocation[piece].tolist()}")


def grown(state: StateData, event: ev.JobGrown) -> None:
    row, held = elastic_gang(state, event.job, event.cost)
    more = state.shapes.counted(state.shape_of(row), event.allocation)
    wider = np.concatenate([held, more])
    if len(event.allocation) == 0 or pods_by_group(state.shape_of(row), wider) is None:
        raise StateError(f"job {event.job!r} grew by no pods, or beyond its ceiling")
    missing = c.take(state.table, state.log, state.pools, more, state.shapes.demands)
    if missing >= 0:
        raise not_free(event.job, more, missing)
    holds_now(state, row, wider, event.cost, event.time)


def shrunk(state: StateData, event: ev.JobShrunk) -> None:
    row, held = elastic_gang(state, event.job, event.cost)
    less = state.shapes.counted(state.shape_of(row), event.allocation)
    rest = without(held, less)
    if len(event.allocation) == 0 or pods_by_group(state.shape_of(row), rest) is None:
        raise StateError(f"job {event.job!r} shrank by no pods, or below its floor")
    c.give(state.table, state.log, state.pools, less, state.shapes.demands)
    state.capacity_version += 1
    holds_now(state, row, rest, event.cost, event.time)
    state.elastic[row].ripe = False


def scaled(state: StateData, event: ev.JobScaled) -> None:
    row, jobs = state.row_of(event.job), state.jobs
    held = state.running.get(row)
    if held is None:
        raise StateError(f"job {event.job!r} was scaled while it was not running")
    before = state.live[row]
    if [group.demand for group in event.groups] != [group.demand for group in before.groups]:
        raise StateError(f"job {event.job!r} was scaled to pods with other requests")
    job = replace(
        before, groups=event.groups, models=event.models, flavors=event.flavors, roles=event.roles,
        node_set=event.node_set,
    )  # fmt: skip
    shape = state.shapes.of(job)
    counts = shape.ceiling or tuple(group.count for group in shape.groups)
    if pods_by_group(dataclasses.replace(shape, ceiling=counts), held) is None:
        raise StateError(f"job {event.job!r} was scaled to groups that do not match the pods that it holds")
    progress = state.elastic.get(row)
    if progress is not None:
        progress.settle(jobs, row, event.time)
        jobs[row, c.J_SINCE] = event.time
        progress.turn_to(jobs, row, progress.pods, progress.milli)
    if not shape.ceiling:
        state.elastic.pop(row, None)
    elif progress is None:
        state.elastic[row] = Progress.of_rigid(shape, jobs, row)
    else:
        progress.shape, progress.ceiling, progress.ripe = shape, sum(counts), True
    state.live[row] = job
    jobs[row, c.J_SHAPE] = shape.index
    state.quota_usage.resized(row, shape, held, event.time)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, event.time)


def elastic_gang(state: StateData, job: str, cost: int) -> tuple[int, Allocation]:
    """Return the row of a running elastic gang, and what it holds."""
    row = state.row_of(job)
    if row not in state.elastic or row not in state.running:
        raise StateError(f"job {job!r} is not a running elastic gang")
    if not 0 <= cost < FOREVER:
        raise StateError(f"job {job!r} cannot be resized at a cost of {cost}: not a time")
    return row, state.running[row]


def holds_now(state: StateData, row: int, allocation: Allocation, cost: int, now: int) -> None:
    """Set the allocation of a resized running gang."""
    shape = state.shape_of(row)
    state.elastic[row].settle(state.jobs, row, now)
    state.elastic[row].costs(cost)
    state.holds(row, allocation)
    state.jobs[row, c.J_SINCE] = now
    resize(state, row, now)
    state.quota_usage.resized(row, shape, allocation, now)
    state.job_changes.add(row)
    for follower in state.followers:
        follower.job_changed(row, now)


def resize(state: StateData, row: int, now: int) -> None:
    """Convert the columns of a gang in the job table to its present size."""
    allocation, progress = state.running[row], state.elastic[row]
    pods = int(allocation[:, PODS].sum())
    progress.turn_to(state.jobs, row, pods, held_by(allocation)[0])
    progress.resized = now
