"""ClusterState: what is true now. `apply(event)` is the only way it changes; `check()` says what must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.elastic import Progress, held_by, pods_by_group, without
from kant.cluster.health import Health
from kant.cluster.history import RunTimes
from kant.cluster.holdings import Holdings
from kant.cluster.invariants import check
from kant.cluster.node_table import node_table, pool_totals
from kant.cluster.rowlog import RowLog
from kant.cluster.shapes import Shape, Shapes
from kant.cluster.typical import TypicalPods
from kant.model import event as ev
from kant.model.errors import Violation
from kant.model.job import Job
from kant.model.matching import Match
from kant.model.node import MAX_POOLS, ClusterSpec
from kant.model.placement import MASK, NODE, PODS, Allocation, Reservation
from kant.model.status import JobStatus, NodeStatus
from kant.model.units import FOREVER, GPU


class Rivals:
    """The live jobs that the same pools admit; `stirred` is when one of them, or a node of the pools, last changed."""

    __slots__ = ("pending", "pools", "running", "stirred")

    def __init__(self, pools: int) -> None:
        self.pools = pools
        self.pending: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self.stirred = 0


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
        self.services = (
            0  # counts what may end a promise, or open another one: nodes that changed their status or devices
        )
        self.waiting_milli = 0  # milli-GPUs that the pending jobs ask for
        self.arrivals = 0  # the rank that the next job to arrive gets
        self._appliers: dict[type, Callable[[Any], None]] = {
            ev.JobSubmitted: self._submitted,
            ev.JobStarted: self._started,
            ev.JobGrown: self._grown,
            ev.JobShrunk: self._shrunk,
            ev.JobFinished: self._finished,
            ev.JobPreempted: self._preempted,
            ev.JobEvicted: self._evicted,
            ev.JobRefused: self._refused,
            ev.JobFailed: self._failed,
            ev.JobReserved: self._reserved,
            ev.JobReleased: self._released,
            ev.JobRejected: self._rejected,
            ev.JobCancelled: self._cancelled,
            ev.JobProgressed: self._progressed,
            ev.JobDemoted: self._demoted,
            ev.QueueOrdered: self._ordered,
            ev.QueuesChanged: self._queues_changed,
            ev.NodeChanged: self._node_changed,
            ev.DevicesChanged: self._devices_changed,
            ev.MixObserved: self._mix_observed,
        }

    def apply(self, event: ev.Event) -> None:
        """Take one event in. Raises Violation, and changes nothing, where it contradicts the state."""
        if event.time < self.now:
            raise Violation(f"{event} lies before the state's time {self.now}")
        self._appliers[type(event)](event)
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

    # --- one method an event -------------------------------------------------------------------------------

    def _submitted(self, event: ev.JobSubmitted) -> None:
        job = event.job
        if job.id in self.rows:
            raise Violation(f"job {job.id!r} was submitted twice")
        numbers = (job.submit, job.estimate, job.priority, job.limit, job.due, job.checkpoint, job.retries)
        if max(map(abs, numbers)) >= FOREVER:
            raise Violation(f"job {job.id!r} has a number beyond 62 bits")
        row = len(self.ids)
        if row == len(self.jobs):
            self.jobs = np.concatenate([self.jobs, np.zeros_like(self.jobs)])
        shape = self.shapes.of(job)
        core = self.row_of(job.core) if job.core else -1
        if core >= 0 and core not in self.live:
            raise Violation(f"job {job.id!r} is a burst of {job.core!r}, which has left")
        if job.queue not in self.queues:
            self.queues[job.queue] = len(self.queues)
            self.holdings.queue_added(job.queue)
        queue = self.queues[job.queue]
        user = self.users.setdefault(job.user, len(self.users))
        kind, promises = self._promises(job, queue, user, shape.most_milli if shape.ceiling else shape.gpu_milli)
        self.jobs[row] = (
            job.submit, JobStatus.PENDING.value, queue, shape.index, job.priority, shape.gpu_milli, job.estimate,
            job.estimate, event.time, 0, 0, -1, -1, 0, self.arrivals, 0, 0, shape.pods,
            int(job.preemptible), -1, user, job.limit, job.due, job.checkpoint, 0, 0, core,
            int(not self.holdings.accepts(queue)), kind, *promises,
        )  # fmt: skip
        self.arrivals += 1
        self.ids.append(job.id)
        self.rows[job.id] = row
        self.typical.submitted(shape, self.shapes.demands)
        self.live[row] = job
        if core >= 0:
            self.bursts.setdefault(core, {})[row] = None
        if shape.ceiling:
            self.elastic[row] = Progress(shape, job.estimate)
            self.elastic[row].rest(self.jobs, row)
        self._wait(row, event.time)

    def _promises(self, job: Job, queue: int, user: int, milli: int) -> tuple[int, tuple[int, ...]]:
        """The kind of a job's run time, and how long it will run at most at two probabilities."""
        if self.history is None:
            return -1, (-1, -1)
        kind = self.history.kind(queue, user if job.user else -1, job.name, milli)
        return kind, self.history.promises(kind)

    def _started(self, event: ev.JobStarted) -> None:
        row = self.row_of(event.job)
        if row not in self.pending:
            raise Violation(f"job {event.job!r} started without waiting")
        shape = self.shape_of(row)
        if shape.ceiling and pods_by_group(shape, event.allocation) is None:
            raise Violation(f"job {event.job!r} started with other than its floor up to its ceiling")
        self._take(event.job, event.allocation)
        del self.pending[row]
        self.reserved.pop(row, None)
        self.health.broken.pop(row, None)
        self.waiting_milli -= shape.gpu_milli
        rivals = self.rivals[shape.pool_bits]
        del rivals.pending[row]
        rivals.running[row] = None
        queue, user = self.jobs[row, [c.J_QUEUE, c.J_USER]].tolist()
        self.holdings.started(row, queue, user, shape, event.allocation, event.time)
        self.moved.add(row)
        rivals.stirred = event.time
        self.running[row] = event.allocation
        if shape.company is not None and shape.company.group:
            self.companions.setdefault(shape.company.group, {})[row] = None
        c.job_starts(self.jobs, row, event.time)
        if shape.ceiling:
            self._resize(row, event.time)

    def _take(self, job: str, allocation: Allocation) -> None:
        missing = c.take(self.table, self.log, self.pools, allocation)
        if missing >= 0:
            raise Violation(f"job {job!r} was given what is not free: piece {allocation[missing].tolist()}")

    def _grown(self, event: ev.JobGrown) -> None:
        row, held = self._elastic(event.job, event.cost)
        wider = np.concatenate([held, event.allocation])
        if len(event.allocation) == 0 or pods_by_group(self.shape_of(row), wider) is None:
            raise Violation(f"job {event.job!r} grew by other than pods up to its ceiling")
        self._take(event.job, event.allocation)
        self._hold(row, wider, event.cost, event.time)

    def _shrunk(self, event: ev.JobShrunk) -> None:
        row, held = self._elastic(event.job, event.cost)
        rest = without(held, event.allocation)
        if len(event.allocation) == 0 or pods_by_group(self.shape_of(row), rest) is None:
            raise Violation(f"job {event.job!r} shrank by other than pods above its floor")
        self._opened(int(c.give(self.table, self.log, self.pools, event.allocation)))
        self._hold(row, rest, event.cost, event.time)

    def _elastic(self, job: str, cost: int) -> tuple[int, Allocation]:
        """The row of an elastic gang that runs, and what it holds."""
        row = self.row_of(job)
        if row not in self.elastic or row not in self.running:
            raise Violation(f"job {job!r} is no elastic gang that runs")
        if not 0 <= cost < FOREVER:
            raise Violation(f"a new size costs job {job!r} {cost}: not a time")
        return row, self.running[row]

    def _hold(self, row: int, allocation: Allocation, cost: int, now: int) -> None:
        """A running gang has another size from now on."""
        shape = self.shape_of(row)
        self.elastic[row].settle(self.jobs, row, now)
        self.elastic[row].costs(cost)
        self.running[row] = allocation
        self.jobs[row, c.J_SINCE] = now
        self._resize(row, now)
        self.holdings.resized(row, shape, allocation, now)
        self.moved.add(row)
        self.rivals[shape.pool_bits].stirred = now

    def _resize(self, row: int, now: int) -> None:
        """What the job table says of a gang is at the size that it has now."""
        allocation, progress = self.running[row], self.elastic[row]
        pods = int(allocation[:, PODS].sum())
        progress.turn_to(self.jobs, row, pods, held_by(allocation)[0])
        progress.resized = now

    def _finished(self, event: ev.JobFinished) -> None:
        row = self._leave_devices(event.job, event.time, JobStatus.FINISHED, 0)
        self._forget(row)
        if self.history is not None:
            kind, ran, *promised = self.jobs[row, [c.J_KIND, c.J_ATTAINED, c.J_P50, c.J_P90]].tolist()
            self.history.finished(kind, ran, tuple(promised))

    def _preempted(self, event: ev.JobPreempted) -> None:
        row = self._leave_devices(event.job, event.time, JobStatus.PENDING, event.cost)
        if not event.moved:
            self.jobs[row, c.J_PREEMPTIONS] += 1
        self.jobs[row, c.J_RETURNS] = 0
        self._wait(row, event.time)

    def _evicted(self, event: ev.JobEvicted) -> None:
        blamed = self._blamed(event.job, event.node)
        row = self._leave_devices(event.job, event.time, JobStatus.PENDING, event.cost)
        if blamed is not None:
            self.health.blame(row, blamed[0])
            self.health.broken[row] = blamed[1]
        self.jobs[row, c.J_EVICTIONS] += 1
        self.jobs[row, c.J_RETURNS] += 1
        self._wait(row, event.time)

    def _failed(self, event: ev.JobFailed) -> None:
        blamed = self._blamed(event.job, event.node)
        row = self._leave_devices(event.job, event.time, JobStatus.PENDING, event.cost)
        if blamed is not None:
            self.health.blame(row, blamed[0])
        self.jobs[row, c.J_FAILURES] += 1
        self.jobs[row, c.J_RETURNS] += 1
        self._wait(row, event.time)

    def _refused(self, event: ev.JobRefused) -> None:
        row = self._give_back(event.job, event.time)
        c.job_was_refused(self.jobs, row)
        if row in self.elastic:
            self.elastic[row].rest(self.jobs, row)
        self.jobs[row, c.J_RETURNS] += 1
        self._wait(row, event.time)

    def _rejected(self, event: ev.JobRejected) -> None:
        self._withdraw(self.row_of(event.job), event.time, JobStatus.REJECTED)

    def _cancelled(self, event: ev.JobCancelled) -> None:
        row = self.row_of(event.job)
        if row in self.running:
            self._leave_devices(event.job, event.time, JobStatus.CANCELLED, 0)
            self._forget(row)
        else:
            self._withdraw(row, event.time, JobStatus.CANCELLED)

    def _progressed(self, event: ev.JobProgressed) -> None:
        row = self.row_of(event.job)
        if row not in self.running:
            raise Violation(f"job {event.job!r} made progress without running")
        progress = self.elastic.get(row)
        if progress is not None:
            progress.settle(self.jobs, row, event.time)
        self.jobs[row, c.J_ATTAINED] += event.time - self.jobs[row, c.J_SINCE]
        self.jobs[row, c.J_SINCE] = event.time
        self.jobs[row, c.J_REMAINING] = event.remaining
        if progress is not None:
            progress.left = event.remaining * progress.ceiling
            progress.turn_to(self.jobs, row, progress.pods, progress.milli)
        self.moved.add(row)
        self.rivals[self.shape_of(row).pool_bits].stirred = event.time

    def _demoted(self, event: ev.JobDemoted) -> None:
        self.jobs[self.row_of(event.job), c.J_LEVEL] = event.level

    def _ordered(self, event: ev.QueueOrdered) -> None:
        rows = [self.row_of(job) for job in event.jobs]
        self.jobs[rows, c.J_RANK] = np.arange(self.arrivals, self.arrivals + len(rows))
        self.arrivals += len(rows)

    def _reserved(self, event: ev.JobReserved) -> None:
        row = self.row_of(event.job)
        if row not in self.pending:
            raise Violation(f"job {event.job!r} was promised a place without waiting")
        if not event.time <= event.start < event.end:
            raise Violation(f"job {event.job!r} was promised a place from {event.start} to {event.end}")
        self.reserved[row] = Reservation(event.start, event.end, event.allocation, event.time)

    def _released(self, event: ev.JobReleased) -> None:
        if self.reserved.pop(self.row_of(event.job), None) is None:
            raise Violation(f"job {event.job!r} was promised nothing")

    def _queues_changed(self, event: ev.QueuesChanged) -> None:
        running = {row: (self.shape_of(row), allocation) for row, allocation in self.running.items()}
        self.holdings.queues_changed(event.tenancy, running)
        self.openings += 1

    def _node_changed(self, event: ev.NodeChanged) -> None:
        node = self._node_of(event.node)
        if event.status not in list(NodeStatus):
            raise Violation(f"{event.status} is no status of a node")
        if event.until >= 0 and event.status != NodeStatus.DRAINING:
            raise Violation(f"node {event.node!r} has a time by which it is drained, and is not draining")
        self.health.status_changed(node, event.status, event.until)
        c.set_status(self.table, self.log, self.pools, node, event.status)
        self._served(node, event.time, event.status == NodeStatus.IN_SERVICE)

    def _devices_changed(self, event: ev.DevicesChanged) -> None:
        node = self._node_of(event.node)
        devices, before = self.spec.nodes[node].gpus, self.health.lost.get(node, 0)
        if event.lost < 0 or event.lost >> devices:
            raise Violation(f"node {event.node!r} has {devices} GPUs and cannot lose those of the bits {event.lost}")
        own = self.table[node, c.DEVICES : c.DEVICES + devices].tolist()
        for device, free in enumerate(own):
            if (event.lost >> device) & 1 and 0 <= free < GPU:
                raise Violation(f"GPU {device} of node {event.node!r} is lost while a job holds it")
        self.health.devices_changed(node, event.lost)
        c.set_lost(self.table, self.log, self.pools, node, devices, event.lost)
        self._served(node, event.time, before & ~event.lost != 0)

    def _node_of(self, name: str) -> int:
        node = self.node_index.get(name)
        if node is None:
            raise Violation(f"there is no node {name!r}")
        return node

    def _served(self, node: int, now: int, opens: bool) -> None:
        """What the node has to offer has changed; it `opens` where that may be more than before."""
        self.services += 1
        for rivals in self.rivals.values():
            if (rivals.pools >> int(self.table[node, c.POOL])) & 1:
                rivals.stirred = now
        if opens:
            self.freed[self.table[node, c.POOL]] += 1
            self.openings += 1

    def _blamed(self, job: str, name: str) -> tuple[int, Allocation] | None:
        """The node that a running job has suffered from, and all that it holds; None where it was no node's fault."""
        if not name:
            return None
        node, held = self._node_of(name), self.running.get(self.row_of(job))
        if held is None or not (held[:, NODE] == node).any():
            raise Violation(f"job {job!r} does not run on node {name!r}")
        return node, held

    def _mix_observed(self, event: ev.MixObserved) -> None:
        self.told = np.ascontiguousarray(event.rows, dtype=np.int64).reshape(-1, 5)

    def _wait(self, row: int, now: int) -> None:
        self.pending[row] = None
        shape = self.shape_of(row)
        self.waiting_milli += shape.gpu_milli
        self.moved.add(row)
        rivals = self.rivals.get(shape.pool_bits)
        if rivals is None:
            rivals = self.rivals[shape.pool_bits] = Rivals(shape.pool_bits)
        rivals.pending[row] = None
        rivals.stirred = now

    def _leave_devices(self, job: str, now: int, status: JobStatus, cost: int) -> int:
        if not 0 <= cost < FOREVER:
            raise Violation(f"stopping job {job!r} costs {cost}: not a time")
        row = self._give_back(job, now)
        progress = self.elastic.get(row)
        if progress is not None:
            progress.settle(self.jobs, row, now)
            progress.costs(cost)
        c.job_stops(self.jobs, row, now, status.value, cost)
        if progress is not None:
            progress.rest(self.jobs, row)
        return row

    def _give_back(self, job: str, now: int) -> int:
        row = self.row_of(job)
        allocation = self.running.pop(row, None)
        if allocation is None:
            raise Violation(f"job {job!r} does not run")
        shape = self.shape_of(row)
        rivals = self.rivals[shape.pool_bits]
        del rivals.running[row]
        rivals.stirred = now
        if shape.company is not None and shape.company.group:
            members = self.companions[shape.company.group]
            del members[row]
            if not members:
                del self.companions[shape.company.group]
        self.holdings.stopped(row, now)
        self.moved.add(row)
        self._opened(int(c.give(self.table, self.log, self.pools, allocation)))
        return row

    def _opened(self, pools: int) -> None:
        """Capacity came free in these pools, as bits."""
        self.openings += 1
        freed = self.freed
        for pool in range(pools.bit_length()):
            if (pools >> pool) & 1:
                freed[pool] += 1

    def _withdraw(self, row: int, now: int, status: JobStatus) -> None:
        if row not in self.pending:
            raise Violation(f"job {self.ids[row]!r} does not wait")
        del self.pending[row]
        self.reserved.pop(row, None)
        self._forget(row)
        self.moved.add(row)
        self.openings += 1
        shape = self.shape_of(row)
        self.waiting_milli -= shape.gpu_milli
        rivals = self.rivals[shape.pool_bits]
        del rivals.pending[row]
        rivals.stirred = now
        self.jobs[row, c.J_WAITED] += now - self.jobs[row, c.J_SINCE]
        self.jobs[row, [c.J_SINCE, c.J_END]] = now
        self.jobs[row, c.J_STATUS] = status.value

    def _forget(self, row: int) -> None:
        """A job leaves for good. Bursts that have lost their core are the scheduler's to stop."""
        del self.live[row]
        self.health.forget(row)
        if row in self.elastic:
            self.elastic.pop(row).leave(self.jobs, row)
        core = int(self.jobs[row, c.J_CORE])
        if core >= 0:
            del self.bursts[core][row]
            if not self.bursts[core] and core not in self.live:
                del self.bursts[core]
        elif row in self.bursts and not self.bursts[row]:
            del self.bursts[row]

    def check(self) -> None:
        """Raise Violation unless every invariant holds (`cluster/invariants.py`)."""
        check(self)
