"""StateData: all data of a cluster's state. Only the event functions write it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.change_log import ChangeLog
from kant.cluster.columns import Table
from kant.cluster.counter_tables import CounterTables
from kant.cluster.elastic import Progress
from kant.cluster.health import ClusterHealth
from kant.cluster.history import RunTimes
from kant.cluster.node_rows import NodeRows, place_of, spare_rows
from kant.cluster.node_table import node_table, pool_totals
from kant.cluster.preemptible import PreemptibleCounts
from kant.cluster.quota_usage import QuotaUsage
from kant.cluster.shapes import Shape, Shapes
from kant.cluster.typical import TypicalPods
from kant.model.errors import StateError
from kant.model.event import PlanProposed, PolicyRouted
from kant.model.job import Job
from kant.model.matching import Match
from kant.model.node import MAX_POOLS, ClusterSpec
from kant.model.placement import MASK, NODE, WIDTH, Allocation, Booking, Reservation


class Follower(Protocol):
    """An observer called at each change. Readers that can wait for the next cycle use `StateData.job_changes`."""

    def job_changed(self, row: int, now: int) -> None:
        """Follow a job that arrived, started, stopped, left, or made progress."""
        ...

    def node_changed(self, node: int, now: int) -> None:
        """Follow a node whose capacity changed."""
        ...

    def reshaped(self) -> None:
        """Follow a change of the pools that live jobs ask for."""
        ...


class StateData:
    """The nodes, the jobs and their allocations.

    `rows` has the row of each job by its name; a compiled simulation drops some jobs that have left. `pending` and
    `running` are in the order in which their jobs entered them; a job is in at most one of them. `reserved` has the
    reservations of waiting jobs. `bookings` has the reservations that users have booked, by name (the last few may have
    ended); no two of them have a GPU at the same time. `burst_replicas` has the live replicas of each base job,
    `health` the failures of nodes and the jobs affected, `elastic` the progress of live elastic gangs. `spec` is the
    cluster at the start of the run. `nodes` has the present node of each row of the table (`node_rows`), `node_index`
    the rows of present nodes by name. `affinity_members` has the running jobs of each affinity group, `prices` the cost
    of stopping a live job in milli-GPU-seconds, if set. For the waiting jobs in `without_node` no autoscaler will add a
    node. The live jobs in `unwanted` were submitted while their queue took no new jobs.

    With `learn` the state keeps the run times of finished jobs in `history`. `workloads` are the workloads of the
    profile, by which shapes differ. With `usage_hours` the state keeps the GPU time that each queue has used, by hour.
    """

    def __init__(
        self, spec: ClusterSpec, learn: bool = False, workloads: tuple[Match, ...] = (), usage_hours: bool = True
    ) -> None:
        self.spec = spec
        self.shapes = Shapes(spec.nodes, workloads)
        if len(self.shapes.pool_keys) > MAX_POOLS:
            raise StateError(f"a cluster has at most {MAX_POOLS} pools, this one has {len(self.shapes.pool_keys)}")
        self.node_rows = NodeRows(spec.nodes)
        self.nodes, self.node_index = self.node_rows.nodes, self.node_rows.index
        if not spec.nodes or len(self.node_index) != len(spec.nodes):
            raise StateError("a cluster has no nodes, or two nodes with the same name")
        if spec.grows:
            self.node_rows.grow(len(spec.nodes) + spare_rows(len(spec.nodes)), place_of(spec.nodes[-1]))
            self.node_rows.number()
            self.shapes.grow(len(self.nodes))
        # Every node in service and nothing taken.
        self.empty = node_table(spec.nodes, self.node_rows.places, self.shapes.pool_of)
        # `empty` plus the nodes that have left; None before a node leaves. A cluster that grows has the table from the
        # start, so that no event has to copy it.
        self.left: Table | None = self.empty.copy() if spec.grows else None
        self.table = self.empty.copy()
        self.log = c.make_log(len(self.nodes))
        self.counter_tables = CounterTables(self)
        self.pools = pool_totals(self.table, len(self.shapes.pool_keys))
        self.now = 0

        self.jobs: Table = np.zeros((1024, c.LEARNED_WIDTH if learn else c.JOB_WIDTH), dtype=np.int64)
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.live: dict[int, Job] = {}  # waiting and running jobs as they were submitted
        self.pending: dict[int, None] = {}
        self.running: dict[int, Allocation] = {}
        self.pieces: Table = np.zeros((256, WIDTH), dtype=np.int64)  # held by running jobs; contiguous for each job
        self.pieces_used = 0  # used rows of `pieces`, also of jobs that have stopped
        self.reserved: dict[int, Reservation] = {}
        self.burst_replicas: dict[int, dict[int, None]] = {}
        self.affinity_members: dict[str, dict[int, None]] = {}
        self.elastic: dict[int, Progress] = {}
        self.prices: dict[int, int] = {}
        self.without_node: dict[int, None] = {}
        self.unwanted: set[int] = set()
        self.preemptible: PreemptibleCounts | None = None  # counted from the first use on
        self.followers: list[Follower] = []
        self.job_changes = ChangeLog()  # jobs that arrived, started, made progress, stopped or left
        self.queues: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.history = RunTimes() if learn else None
        self.quota_usage = QuotaUsage(self.shapes, self.shapes.node_sets.pool_of, usage_hours)
        self.health = ClusterHealth()
        self.typical = TypicalPods()
        self.proposal: PlanProposed | None = None  # the last proposal of a solver
        self.routed: PolicyRouted | None = None  # the last switch of a router of policies
        self.given_pods: Table | None = None  # the typical pods, if given
        self.capacity_version = 0  # counts changes that may let a waiting job start: freed capacity, a departure
        self.node_version = 0  # counts changes of the status or the devices of nodes
        self.fleet_version = 0  # counts events by which nodes joined, left, or were described again
        self.asked_anew = 0  # counts changes after which a waiting job may never fit, or has another shape
        self.layout = 0  # counts the fleet events after which caches by node must be rebuilt
        self.moves = 0  # counts the moves of rows in the fabric, after which caches by domain must be rebuilt
        self.waiting_milli = 0  # milli-GPUs that the pending jobs ask for
        self.limits_runs = False  # whether any job or booking had a time limit
        self.bookings: dict[str, Booking] = {}
        self.booking_version = 0  # counts changes of bookings
        self.books = False  # whether anything was ever booked, or a job has named a reservation
        self.arrivals = 0  # the rank that the next job to arrive gets

    def lay_out_pieces(self, more: int) -> int:
        """Rewrite the table of held pieces with room for twice as many and `more`. Returns the first free row."""
        held = list(self.running.values())
        counts = np.fromiter(map(len, held), np.int64, len(held))
        ends, rows = np.cumsum(counts), list(self.running)
        self.pieces_used = used = int(counts.sum())
        held_now, room = np.concatenate([self.pieces[:0], *held]), 2 * (used + more) + 256
        if room > len(self.pieces):
            self.pieces = np.zeros((room, WIDTH), dtype=np.int64)
        self.pieces[:used] = held_now
        self.jobs[rows, c.J_PIECE], self.jobs[rows, c.J_PIECES] = ends - counts, counts
        return used

    def holds(self, row: int, allocation: Allocation) -> None:
        """Replace the allocation of a running job."""
        self.running[row] = allocation
        at, count = self.pieces_used, len(allocation)
        if at + count > len(self.pieces):
            self.lay_out_pieces(0)
            return
        self.pieces[at : at + count] = allocation
        self.jobs[row, c.J_PIECE], self.jobs[row, c.J_PIECES] = at, count
        self.pieces_used = at + count

    def look_at_all(self) -> None:
        """Make all readers of the log of changed nodes read all nodes."""
        self.log[0] += len(self.log)

    @property
    def typical_pods(self) -> Table:
        """The typical pods, rows (cpu, gpus, milli, pool mask, weight): given, or from recent submissions."""
        if self.given_pods is not None:
            return self.given_pods
        return self.typical.rows_of(self.jobs[: len(self.ids)], self.shapes)

    @property
    def gpus(self) -> int:
        """GPUs of the nodes that are present or have left."""
        return int(self.with_left[:, c.GPUS].sum())

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster with its present nodes and those that have left, by row."""
        if not self.fleet_version:
            return self.spec
        taken = [row for row, node in enumerate(self.nodes) if node.name]
        return replace(self.spec, nodes=tuple(self.nodes[: taken[-1] + 1]))

    @property
    def gpus_there(self) -> int:
        """GPUs of the present nodes, in service or not."""
        return int(self.empty[:, c.GPUS].sum())

    @property
    def tables(self) -> list[Table]:
        """All node tables: the present one, the empty one, and, if a node has left, `left`."""
        return [self.table, self.empty, *([] if self.left is None else [self.left])]

    @property
    def with_left(self) -> Table:
        """Every node that is present or has left, in service and empty. A job that does not fit on these never fits.

        A node that has left may return, and jobs wait for it.
        """
        return self.empty if self.left is None else self.left

    def shape_of(self, row: int) -> Shape:
        """Return the shape of a job."""
        return self.shapes.shapes[self.jobs.item(row, c.J_SHAPE)]

    def row_of(self, job: str) -> int:
        """Return the job's row. Raises StateError for an unknown job."""
        row = self.rows.get(job)
        if row is None:
            raise StateError(f"job {job!r} does not exist")
        return row

    def jobs_on(self, node: int, devices: int = -1) -> list[int]:
        """Return the rows of the running jobs on a node; with `devices` (bits) only those that hold one of them."""
        found = []
        for row, held in self.running.items():
            masks = held[held[:, NODE] == node, MASK].tolist()
            if masks and (devices < 0 or any(mask & devices for mask in masks)):
                found.append(row)
        return found
