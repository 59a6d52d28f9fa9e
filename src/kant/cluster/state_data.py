"""StateData: everything that a cluster's state consists of. Only the event functions write it."""

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
from kant.cluster.node_rows import NodeRows
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
    """What is told of each change at once. Whoever can wait for the next cycle reads `StateData.job_changes`."""

    def job_changed(self, row: int, now: int) -> None:
        """A job came, started, stopped, left, or made progress."""
        ...

    def node_changed(self, node: int, now: int) -> None:
        """A node has more or less to offer."""
        ...

    def reshaped(self) -> None:
        """Live jobs ask for other pools than before."""
        ...


class StateData:
    """Nodes, jobs and who holds what.

    `pending` and `running` are in the order in which their jobs entered them; a job is in at most one of them.
    `reserved` has what waiting jobs are promised, `bookings` what people have booked, by name (the last few may be
    over); no two of them have a GPU at the same time. `burst_replicas` has the live replicas of each base job, `health`
    what is wrong with nodes and who suffered from it, `elastic` the progress of live elastic gangs.
    `spec` is what the run began with. `nodes` has the node of each row of the table now (`node_rows`), `node_index` the
    rows of those that are there, by name.
    `affinity_members` has the running jobs of each affinity group, `prices` what stopping a live job costs, where
    somebody has said so, in milli-GPU-seconds. For the waiting jobs in `without_node` no autoscaler adds a node.

    With `learn` the state keeps the run times of finished jobs in `history`. `workloads` are those of the profile,
    whose jobs are told apart. With `usage_hours` it keeps the GPU time that each queue has used, by the hour.
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
            raise StateError("a cluster has nodes, and no two of one name")
        # Every node in service and nothing taken.
        self.empty = node_table(self.nodes, self.node_rows.places, self.shapes.pool_of)
        self.left: Table | None = None  # as `empty`, with those that have left, once one has
        self.table = self.empty.copy()
        self.log = c.make_log(len(spec.nodes))
        self.counter_tables = CounterTables(self)
        self.pools = pool_totals(self.table, len(self.shapes.pool_keys))
        self.now = 0

        self.jobs: Table = np.zeros((1024, c.JOB_WIDTH), dtype=np.int64)
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.live: dict[int, Job] = {}  # waiting and running jobs as they were submitted
        self.pending: dict[int, None] = {}
        self.running: dict[int, Allocation] = {}
        self.pieces: Table = np.zeros((256, WIDTH), dtype=np.int64)  # held by running jobs; those of one in a row
        self.pieces_used = 0  # rows of it, also those of jobs that run no more
        self.reserved: dict[int, Reservation] = {}
        self.burst_replicas: dict[int, dict[int, None]] = {}
        self.affinity_members: dict[str, dict[int, None]] = {}
        self.elastic: dict[int, Progress] = {}
        self.prices: dict[int, int] = {}
        self.without_node: dict[int, None] = {}
        self.preemptible: PreemptibleCounts | None = None  # counted from the first question on
        self.followers: list[Follower] = []
        self.job_changes = ChangeLog()  # jobs that came, started, made progress, stopped or left
        self.queues: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.history = RunTimes() if learn else None
        self.quota_usage = QuotaUsage(self.shapes, self.shapes.node_sets.pool_of, usage_hours)
        self.health = ClusterHealth()
        self.typical = TypicalPods()
        self.proposal: PlanProposed | None = None  # the last one of a solver
        self.routed: PolicyRouted | None = None  # the last switch of a router of policies
        self.given_pods: Table | None = None  # the typical pods, where they are given
        self.capacity_version = 0  # counts what may let a waiting job start: freed capacity, a waiting job that left
        self.node_version = 0  # counts changes of the status or the devices of nodes
        self.fleet_version = 0  # counts events by which nodes joined, left, or were described anew
        self.asked_anew = 0  # counts changes after which a waiting job may never fit, or ask for other nodes
        self.layout = 0  # counts those of them after which what is kept by node has to be made again,
        self.moves = 0  # and those after which what is kept by domain has: a row has another place in the fabric
        self.waiting_milli = 0  # milli-GPUs that the pending jobs ask for
        self.limits_runs = False  # whether a job or a booking has come that lasts only so long
        self.bookings: dict[str, Booking] = {}
        self.booking_version = 0  # counts changes of what is booked
        self.books = False  # whether anything was ever booked, or a job has named a reservation
        self.arrivals = 0  # the rank that the next job to arrive gets

    def lay_out_pieces(self, more: int) -> int:
        """Lay out anew what running jobs hold, with room for as much again and `more`; returns the first free row."""
        held = list(self.running.values())
        counts = np.fromiter(map(len, held), np.int64, len(held))
        ends, rows = np.cumsum(counts), list(self.running)
        self.pieces_used = used = int(counts.sum())
        self.pieces = np.zeros((2 * (used + more) + 256, WIDTH), dtype=np.int64)
        self.pieces[:used] = np.concatenate([self.pieces[:0], *held])
        self.jobs[rows, c.J_PIECE], self.jobs[rows, c.J_PIECES] = ends - counts, counts
        return used

    def holds(self, row: int, allocation: Allocation) -> None:
        """A running job holds this in place of what it held."""
        self.running[row] = allocation
        at, count = self.pieces_used, len(allocation)
        if at + count > len(self.pieces):
            self.lay_out_pieces(0)
            return
        self.pieces[at : at + count] = allocation
        self.jobs[row, c.J_PIECE], self.jobs[row, c.J_PIECES] = at, count
        self.pieces_used = at + count

    def look_at_all(self) -> None:
        """Whoever follows the log of changed nodes has missed something, and looks at all of them."""
        self.log[0] += len(self.log)

    @property
    def typical_pods(self) -> Table:
        """The typical pods, rows (cpu, gpus, milli, pool mask, weight): as given, else of the recent submissions."""
        if self.given_pods is not None:
            return self.given_pods
        return self.typical.rows_of(self.jobs[: len(self.ids), c.J_SHAPE], self.shapes)

    @property
    def gpus(self) -> int:
        """GPUs of the nodes that are there, or have left."""
        return int(self.with_left[:, c.GPUS].sum())

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster with the nodes of now, by their rows; also those that have left."""
        if not self.fleet_version:
            return self.spec
        taken = [row for row, node in enumerate(self.nodes) if node.name]
        return replace(self.spec, nodes=tuple(self.nodes[: taken[-1] + 1]))

    @property
    def gpus_there(self) -> int:
        """GPUs of the nodes that are there, in service or not."""
        return int(self.empty[:, c.GPUS].sum())

    @property
    def tables(self) -> list[Table]:
        """All tables of nodes: as things are, with nothing taken, and that with those that have left."""
        return [self.table, self.empty, *([] if self.left is None else [self.left])]

    @property
    def with_left(self) -> Table:
        """Every node that is there or has left, in service and with nothing taken. What does not fit there never will.

        A node that has left may come back, and jobs wait for it.
        """
        return self.empty if self.left is None else self.left

    def shape_of(self, row: int) -> Shape:
        """What the job asks for."""
        return self.shapes.shapes[self.jobs.item(row, c.J_SHAPE)]

    def row_of(self, job: str) -> int:
        """The job's row. Raises StateError for a job that never came."""
        row = self.rows.get(job)
        if row is None:
            raise StateError(f"there is no job {job!r}")
        return row

    def jobs_on(self, node: int, devices: int = -1) -> list[int]:
        """Rows of the running jobs that lie on a node; with `devices` (bits) only those that hold one of them."""
        found = []
        for row, held in self.running.items():
            masks = held[held[:, NODE] == node, MASK].tolist()
            if masks and (devices < 0 or any(mask & devices for mask in masks)):
                found.append(row)
        return found
