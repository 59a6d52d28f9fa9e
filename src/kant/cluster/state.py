"""ClusterState: what is true now. `apply(event)` is the only way it changes; `check()` says what must hold."""

from __future__ import annotations

import numpy as np

from kant.cluster import columns as c
from kant.cluster.appliers import APPLIERS
from kant.cluster.columns import Table
from kant.cluster.elastic import Progress
from kant.cluster.health import Health
from kant.cluster.history import RunTimes
from kant.cluster.holdings import Holdings
from kant.cluster.invariants import check
from kant.cluster.node_table import node_table, pool_totals
from kant.cluster.rivals import Rivals
from kant.cluster.rowlog import RowLog
from kant.cluster.shapes import Shape, Shapes
from kant.cluster.typical import TypicalPods
from kant.model import event as ev
from kant.model.errors import Violation
from kant.model.job import Job
from kant.model.matching import Match
from kant.model.node import MAX_POOLS, ClusterSpec
from kant.model.placement import MASK, NODE, Allocation, Reservation


class ClusterState:
    """Nodes, jobs and who holds what.

    `pending` and `running` are in the order in which their jobs entered them; a job is in at most one of them.
    `freed[p]` counts how often capacity came free in pool p: a verdict "does not fit" holds until it moves.
    `reserved` has what waiting jobs are promised, `bursts` the live bursts of each live core, `health` what is wrong
    with nodes and who suffered from it, `elastic` the progress of live elastic gangs. With `learn` it keeps the run
    times of finished jobs in `history`. `companions` has the running jobs of each affinity group. `workloads` are those
    of the profile, whose jobs are told apart.
    """

    def __init__(self, spec: ClusterSpec, learn: bool = False, workloads: tuple[Match, ...] = ()) -> None:
        self.spec = spec
        self.shapes = Shapes(spec.nodes, workloads)
        if len(self.shapes.pool_keys) > MAX_POOLS:
            raise Violation(f"a cluster has at most {MAX_POOLS} pools, this one has {len(self.shapes.pool_keys)}")
        self.node_index = {node.name: index for index, node in enumerate(spec.nodes)}
        if not spec.nodes or len(self.node_index) != len(spec.nodes):
            raise Violation("a cluster has nodes, and no two of one name")
        self.empty = node_table(spec, self.shapes)  # every node in service and nothing taken; never written
        self.table = self.empty.copy()
        self.log = c.make_log(len(spec.nodes))
        self.pools = pool_totals(self.table, len(self.shapes.pool_keys))
        self.freed = [0] * len(self.shapes.pool_keys)
        self.rivals: dict[int, Rivals] = {}  # live jobs by the pools, as bits, that admit them
        self.now = 0

        self.jobs: Table = np.zeros((1024, c.JOB_WIDTH), dtype=np.int64)
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.live: dict[int, Job] = {}  # waiting and running jobs as they were submitted
        self.pending: dict[int, None] = {}
        self.running: dict[int, Allocation] = {}
        self.reserved: dict[int, Reservation] = {}
        self.bursts: dict[int, dict[int, None]] = {}
        self.companions: dict[str, dict[int, None]] = {}
        self.elastic: dict[int, Progress] = {}
        self.moved = RowLog()
        self.queues: dict[str, int] = {}
        self.users: dict[str, int] = {}
        self.history = RunTimes() if learn else None
        self.holdings = Holdings(self.shapes, self.table[:, c.POOL].tolist())
        self.health = Health(spec)
        self.typical = TypicalPods()
        self.told: Table | None = None  # the typical pods, where somebody said what they are
        self.openings = 0  # counts what may let a waiting job start: capacity that came free, a waiting job that left
        self.services = 0  # counts what may end a promise, or open one: nodes that changed their status or devices
        self.waiting_milli = 0  # milli-GPUs that the pending jobs ask for
        self.arrivals = 0  # the rank that the next job to arrive gets

    def apply(self, event: ev.Event) -> None:
        """Take one event in. Raises Violation, and changes nothing, where it contradicts the state."""
        if event.time < self.now:
            raise Violation(f"{event} lies before the state's time {self.now}")
        APPLIERS[type(event)](self, event)
        self.now = event.time

    @property
    def mix(self) -> Table:
        """The typical pods, rows (cpu, gpus, milli, pool mask, weight): as told, else of the recent stream."""
        return self.typical.mix if self.told is None else self.told

    def shape_of(self, row: int) -> Shape:
        return self.shapes.shapes[int(self.jobs[row, c.J_SHAPE])]

    def row_of(self, job: str) -> int:
        """The job's row. Raises Violation for a job that never came."""
        row = self.rows.get(job)
        if row is None:
            raise Violation(f"there is no job {job!r}")
        return row

    def jobs_on(self, node: int, devices: int = -1) -> list[int]:
        """Rows of the running jobs that lie on a node; with `devices` (bits) only those that hold one of them."""
        found = []
        for row, held in self.running.items():
            masks = held[held[:, NODE] == node, MASK].tolist()
            if masks and (devices < 0 or any(mask & devices for mask in masks)):
                found.append(row)
        return found

    def check(self) -> None:
        """Raise Violation unless every invariant holds (`cluster/invariants.py`)."""
        check(self)
