"""The invariants of a state, recomputed from the allocations alone."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.booking_events import overlap
from kant.cluster.elastic import pods_by_group
from kant.cluster.node_rows import NO_NODE, place_columns
from kant.cluster.node_table import PLACE, pool_totals, retire_row, write_node
from kant.cluster.preemptible import PreemptibleCounts
from kant.cluster.shapes import Shape
from kant.cluster.state_data import StateData
from kant.model import placement as pl
from kant.model.errors import StateError
from kant.model.mig import GEOMETRIES
from kant.model.placement import Allocation
from kant.model.status import JobStatus, NodeStatus


def check(state: StateData) -> None:
    """Raise StateError with the first invariant that does not hold. Takes time linear in the nodes and in all jobs."""
    fresh = state.empty.copy()
    fresh[:, c.STATUS] = state.table[:, c.STATUS]
    scratch, ignored = c.make_log(len(state.table)), np.zeros_like(state.pools)
    for node, lost in state.health.lost.items():
        c.set_lost(fresh, scratch, ignored, node, state.nodes[node].gpus, lost)
    for row, allocation in state.running.items():
        _say(c.take(fresh, scratch, ignored, allocation, state.shapes.demands) < 0,
             f"job {state.ids[row]!r} holds only resources of nodes in service that no other job holds")  # fmt: skip
        at, count = state.jobs[row, [c.J_PIECE, c.J_PIECES]].tolist()
        _say(np.array_equal(state.pieces[at : at + count], allocation),
             f"the table of pieces has what job {state.ids[row]!r} holds")  # fmt: skip
        shape = state.shape_of(row)
        _say(not shape.ceiling or pods_by_group(shape, allocation) is not None,
             f"elastic gang {state.ids[row]!r} holds pods from its floor to its ceiling")  # fmt: skip
        _say(int(allocation[:, pl.PODS].sum()) == state.jobs[row, c.J_PODS],
             f"the gang of job {state.ids[row]!r} is placed as a whole")  # fmt: skip
        _say(bool(shape.ceiling) or _pods_by_group(allocation) == [group.count for group in shape.groups],
             f"job {state.ids[row]!r} holds as many pods of each group as the group has")  # fmt: skip
        _say(pl.gpu_milli(allocation) == state.jobs[row, c.J_MILLI],
             f"job {state.ids[row]!r} holds the GPUs that it requests")  # fmt: skip
        _say(_slices_as_asked(state, state.shape_of(row), allocation),
             f"job {state.ids[row]!r} holds MIG slices that form instances of its profile")  # fmt: skip
        _say(_islands_kept(state, state.shape_of(row), allocation),
             f"a pod of job {state.ids[row]!r} that requires one NVLink island is inside one")  # fmt: skip
    _say(
        np.array_equal(fresh, state.table),
        "free and used resources add up to all resources on every node",
    )
    _say(np.array_equal(pool_totals(fresh, len(ignored))[:, : c.P_FREED], state.pools[:, : c.P_FREED]),
         "the totals of each pool are the sums over its nodes")  # fmt: skip
    _say(all(state.jobs[row, c.J_LIMIT] == job.limit for row, job in state.live.items()),
         "the job table has the time limit of each job")  # fmt: skip
    status = state.jobs[: len(state.ids), c.J_STATUS]
    _say(not (state.pending.keys() & state.running.keys()), "a job waits or runs, never both")
    _say(set(state.pending) == set(np.flatnonzero(status == JobStatus.PENDING).tolist()),
         "every pending job is in the queue")  # fmt: skip
    _say(set(state.running) == set(np.flatnonzero(status == JobStatus.RUNNING).tolist()),
         "every running job holds an allocation")  # fmt: skip
    _say(state.live.keys() == state.pending.keys() | state.running.keys(), "the live jobs wait or run")
    if state.preemptible is not None:
        counted = PreemptibleCounts(state.jobs, state.running)
        _say(state.preemptible.counts == counted.counts,
             "running preemptible jobs are counted by priority")  # fmt: skip
    affinities = {row: state.shape_of(row).affinity for row in state.running}
    members = {(affinity.group, row) for row, affinity in affinities.items() if affinity is not None and affinity.group}
    _say({(group, row) for group, rows in state.affinity_members.items() for row in rows} == members,
         "the members of an affinity group are its running jobs")  # fmt: skip
    _say(state.waiting_milli == sum(int(state.jobs[row, c.J_MILLI]) for row in state.pending),
         "the waiting GPUs are the sum over the pending jobs")  # fmt: skip
    _say(state.prices.keys() <= state.live.keys(), "only live jobs have a price")
    _say(state.elastic.keys() == {row for row in state.live if state.shape_of(row).ceiling},
         "the progress of elastic gangs is known while they live")  # fmt: skip
    named = list(map(state.ids.__getitem__, state.rows.values())) == [*state.rows]
    _say(named and state.live.keys() <= {*state.rows.values()}, "a live job is known by its name, and has one row")
    _check_rows(state)
    _say(state.reserved.keys() <= state.pending.keys(), "only a waiting job has a reservation")
    booked = [one for one in state.bookings.values() if one.end > state.now]
    _say(not any(overlap(one, two) for one, two in combinations(booked, 2)), "no GPU is booked twice at a time")
    state.health.check(state.table, state.nodes, state.live.keys(), state.pending.keys())
    held = {
        row: (state.jobs.item(row, c.J_QUEUE), state.shape_of(row), allocation)
        for row, allocation in state.running.items()
    }
    state.quota_usage.check(held)


def _check_rows(state: StateData) -> None:
    """Check that the rows of the tables match their nodes."""
    slots, there = c.devices_of(state.table), state.node_index
    _say(len(state.nodes) == len(state.table) == len(state.empty), "every row of the table has a node or is empty")
    _say({row: state.nodes[row].name for row in there.values()} == {row: name for name, row in there.items()},
         "a node is in one row, and known by its name")  # fmt: skip
    retired = np.flatnonzero(state.table[:, c.STATUS] == NodeStatus.RETIRED).tolist()
    _say(not there.keys() & {""} and sorted([*there.values(), *retired]) == list(range(len(state.table))),
         "a row has an existing node, or is retired")  # fmt: skip
    for row, node in enumerate(state.nodes):
        fresh = state.empty[row].copy()
        if row in retired:
            retire_row(fresh, slots)
        else:
            write_node(fresh, node, state.shapes.pool_of[node.pool], slots)
        _say(np.array_equal(fresh, state.empty[row]), f"the empty row {row} is {node.name!r} when empty")
        if state.left is not None and node is not NO_NODE:
            write_node(fresh, node, state.shapes.pool_of[node.pool], slots)
            _say(np.array_equal(fresh[: c.REVISION], state.left[row, : c.REVISION]), f"{node.name!r} keeps its row")
    domains, said = place_columns(state.node_rows.places), True
    for own, fresh in zip(state.empty[:, PLACE].T.tolist(), domains.T.tolist(), strict=True):
        said = said and len(set(zip(own, fresh, strict=True))) == len(set(own)) == len(set(fresh))
        said = said and max(own) < len(own)
    _say(said and all((table[:, PLACE] == state.empty[:, PLACE]).all() for table in state.tables),
         "two nodes are in one domain if both name it, and domains have small numbers")  # fmt: skip
    _say(state.shapes.node_sets.pool_of == state.table[:, c.POOL].tolist(), "the pool of each row is known")
    state.shapes.node_sets.check()
    state.counter_tables.check()
    for row, held in ((row, one.allocation) for row, one in state.reserved.items()):
        _say(not np.isin(held[:, pl.NODE], retired).any(), f"job {state.ids[row]!r} has reserved existing nodes")


def _pods_by_group(allocation: Allocation) -> list[int]:
    counts: list[int] = np.bincount(allocation[:, pl.GROUP], allocation[:, pl.PODS]).astype(np.int64).tolist()
    return counts


def _slices_as_asked(state: StateData, shape: Shape, allocation: Allocation) -> bool:
    """Return whether every MIG instance is valid for the profile of its group on its GPU."""
    if not any(group.demand.profile for group in shape.groups):
        return True
    for piece in allocation.tolist():
        slices, asked = pl.slices_of_tag(piece[pl.TAG]), shape.groups[piece[pl.GROUP]].demand.profile
        geometry = GEOMETRIES[state.nodes[piece[pl.NODE]].mig]
        start = (slices & -slices).bit_length() - 1
        if not any(
            slices == (1 << profile.size) - 1 << start and profile.starts >> start & 1
            for profile in geometry.profiles
            if profile.name == asked
        ):
            return False
    return True


def _islands_kept(state: StateData, shape: Shape, allocation: Allocation) -> bool:
    """Return whether each pod that needs its GPUs in one NVLink island has them in one island.

    A piece (a row of the allocation) has pods on one node, with its devices in order. With a GPU share it is one pod.
    """
    for piece in allocation.tolist():
        if not shape.groups[piece[pl.GROUP]].demand.island:
            continue
        devices = [device for device in range(piece[pl.MASK].bit_length()) if piece[pl.MASK] >> device & 1]
        each = piece[pl.TAG] or len(devices)
        islands = [device // state.nodes[piece[pl.NODE]].island for device in devices]
        pods = [islands[first : first + each] for first in range(0, len(islands), each)] if devices else []
        if any(len(set(pod)) > 1 for pod in pods):
            return False
    return True


def _say(holds: bool | np.bool_, invariant: str) -> None:
    if not holds:
        raise StateError(f"violated invariant: {invariant}")
