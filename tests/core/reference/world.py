"""The state of the reference scheduler: the waiting and running jobs, and the nodes, from events alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace
from tests.core.reference.rules import NodeCounts, rules_of

from kant.model import event as ev
from kant.model.job import Job
from kant.model.node import ClusterSpec, Node, PoolKey
from kant.model.placement import CPU, GROUP, MASK, MEMORY, MILLI, NODE, PODS
from kant.model.status import NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import DAY, HOUR
from kant.testing.naive import admits

NO_NODE = Node("", 0, cpu=0, memory=0)

Pieces = list[list[int]]
"""An allocation as rows of integers, see `kant.model.placement`."""


@dataclass
class LiveJob:
    """A waiting or running job. Times are microseconds.

    `number` counts the jobs in order of arrival. `since` is when it last began to wait, or to run. `returns` is how
    often it returned in a row without having been preempted. `pieces` is what it holds while it runs. `node_comes` is
    true until an autoscaler says that it adds no node.
    """

    job: Job
    number: int
    since: int
    returns: int = 0
    failures: int = 0
    unwanted: bool = False
    protected: bool = False
    node_comes: bool = True
    started: int = -1
    pieces: Pieces | None = None


@dataclass
class Room:
    """The free resources of one node: thousandths of each device, milli-cores and MiB. A closed node takes nothing.

    `node_sets` has the names of the nodes of each node set, `domains` the domain of each node in the topologies that
    events have named, and `counts` the pods on the node. A node that is not `there` is in no domain.
    """

    node: Node
    devices: list[int]
    cpu: int
    memory: int
    open: bool = True
    node_sets: Mapping[str, Collection[str]] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    counts: NodeCounts = field(default_factory=NodeCounts)
    there: bool = True

    def change(self, piece: list[int], sign: int, job: Job) -> None:
        """Return a piece of a job (1) or take it (-1). Raises AssertionError if more is taken than is free."""
        self.counts.add(rules_of(job, piece[GROUP]), -sign * piece[PODS])
        for device in range(self.node.gpus):
            if piece[MASK] >> device & 1:
                self.devices[device] += sign * piece[MILLI]
        self.cpu += sign * piece[CPU]
        self.memory += sign * piece[MEMORY]
        assert min([*self.devices, self.cpu, self.memory]) >= 0, f"{self.node.name} has not what {piece} takes"

    def copy(self) -> Room:
        own = self.devices.copy(), self.cpu, self.memory, self.open, self.node_sets, self.domains
        return Room(self.node, *own, self.counts.copy(), self.there)


@dataclass
class HeldRun:
    """What a job has held, in thousandths of GPUs, from when and until when (-1: it still does)."""

    job: Job
    milli: int
    since: int
    until: int = -1


@dataclass
class ReferenceWorld:
    """The cluster and its jobs after the events so far. `running` is in the order in which jobs started."""

    rows: list[Node]
    """The node in each row, or the last one that was in it."""
    waiting: dict[str, LiveJob] = field(default_factory=dict)
    running: dict[str, LiveJob] = field(default_factory=dict)
    closed: dict[str, NodeStatus] = field(default_factory=dict)
    queues: QueueConfig = field(default_factory=QueueConfig)
    arrivals: int = 0
    node_sets: dict[str, set[str]] = field(default_factory=dict)
    pools: dict[PoolKey, Node] = field(default_factory=dict)
    """A node of each pool that has ever existed."""
    free: list[int] = field(default_factory=list)
    """Rows whose node has left, or that were never used, in the order in which they became free."""
    domains: dict[str, dict[str, str]] = field(default_factory=dict)
    others: dict[str, NodeCounts] = field(default_factory=dict)
    """Pods that belong to no job, by node."""
    named: dict[str, int] = field(default_factory=dict)
    """Queues that jobs have named, in the order of first appearance."""
    now: int = 0
    ends: tuple[int, ...] = ()
    """The ends of months, from an event; without it each month has 30 days."""
    runs: list[HeldRun] = field(default_factory=list)

    @classmethod
    def of(cls, spec: ClusterSpec) -> ReferenceWorld:
        """The cluster before any event."""
        return cls(list(spec.nodes), pools={node.pool: node for node in spec.nodes})

    @property
    def nodes(self) -> list[Node]:
        """The present nodes."""
        return [node for row, node in enumerate(self.rows) if row not in self.free]

    def happen(self, event: ev.Event) -> None:
        """Apply one event. Raises TypeError for a kind that the reference does not model."""
        if not isinstance(event, ev.JobStarted) and getattr(event, "job", "") in self.running:
            for run in self.runs if not isinstance(event, (ev.JobProtected, ev.JobProgressed, ev.JobRuled)) else ():
                if run.job.id == event.job and run.until < 0:  # type: ignore[union-attr]
                    run.until = event.time
        if isinstance(event, ev.JobSubmitted):
            most, job = self.queues.max_time(event.job.queue)[0], event.job
            job = replace(job, limit=most) if most and job.limit < 0 else job
            unwanted = "drain" in self.queue_states(job.queue) or 0 < most < job.limit
            self.waiting[job.id] = LiveJob(job, self.arrivals, event.time, unwanted=unwanted)
            self.arrivals += 1
            self.named.setdefault(event.job.queue, len(self.named))
        elif isinstance(event, ev.JobStarted):
            job = self.waiting[event.job].job
            self.runs.append(HeldRun(job, sum(one.count * one.demand.charged_milli for one in job.groups), event.time))
            live = self.running[event.job] = self.waiting.pop(event.job)
            live.pieces = event.allocation.tolist()
            live.started = live.since = event.time
            live.node_comes = True
        elif isinstance(event, (ev.JobPreempted, ev.JobEvicted, ev.JobFailed)):
            live = self._back(event.job, event.time)
            live.returns = 0 if isinstance(event, ev.JobPreempted) else live.returns + 1
            live.failures += isinstance(event, ev.JobFailed)
        elif isinstance(event, ev.JobRefused):
            live = self._back(event.job, event.time)
            live.returns += not event.blameless
        elif isinstance(event, (ev.JobFinished, ev.JobCancelled, ev.JobRejected)):
            self.running.pop(event.job, None)
            self.waiting.pop(event.job, None)
        elif isinstance(event, ev.JobProtected):
            (self.running.get(event.job) or self.waiting[event.job]).protected = bool(event.by)
        elif isinstance(event, ev.JobAwaitsNode):
            self.waiting[event.job].node_comes = event.awaits
        elif isinstance(event, ev.NodeChanged):
            self.closed.pop(event.node, None)
            if event.status != NodeStatus.IN_SERVICE:
                self.closed[event.node] = NodeStatus(event.status)
        elif isinstance(event, ev.NodesJoined):
            for node in event.nodes:
                self._join(node)
        elif isinstance(event, ev.NodesLeft):
            for name in event.nodes:
                self._leave(name)
        elif isinstance(event, ev.NodeDescribed):
            self.rows[self.rows.index(self._node(event.node.name))] = event.node
            self.pools.setdefault(event.node.pool, event.node)
        elif isinstance(event, ev.NodeSetChanged):
            self.node_sets.setdefault(event.node_set, set()).update(event.added)
            self.node_sets[event.node_set].difference_update(event.removed)
        elif isinstance(event, ev.TopologyChanged):
            own = self.domains.setdefault(event.topology, {})
            own.update(event.domains)
            self.domains[event.topology] = {node: domain for node, domain in own.items() if domain}
        elif isinstance(event, ev.PodsCounted):
            self.others[event.node] = NodeCounts(dict(event.classes), dict(event.amounts))
        elif isinstance(event, ev.JobRuled):
            live = self.running.get(event.job) or self.waiting[event.job]
            live.job = replace(live.job, rules=event.rules)
        elif isinstance(event, ev.QueuesChanged):
            self.queues = event.queue_config
        elif isinstance(event, ev.BudgetsUsed) and not event.used:
            self.ends = event.ends
        elif not isinstance(event, ev.JobProgressed):
            raise TypeError(f"the reference scheduler does not model {type(event).__name__}")

    def _node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def _join(self, node: Node) -> None:
        """Give a node the row that it left, or that an equal one left; else a row never used; else any free one, if
        more than half of the rows are free; otherwise double the rows."""
        choices = (
            [row for row in self.free if self.rows[row].name == node.name],
            [row for row in self.free if replace(self.rows[row], name=node.name) == node],
            [row for row in self.free if self.rows[row] is NO_NODE],
            self.free if 2 * len(self.free) > len(self.rows) else [],
            [len(self.rows)],
        )
        row = next(rows[0] for rows in choices if rows)
        if row == len(self.rows):
            self.free += range(row, 2 * row)
            self.rows += [NO_NODE] * row
        before = self.rows[row]
        for names in self.node_sets.values() if before.name != node.name else ():
            names.discard(before.name)
        self.free.remove(row)
        self.rows[row] = node
        self.pools.setdefault(node.pool, node)

    def _leave(self, name: str) -> None:
        self.free.append(self.rows.index(self._node(name)))
        self.closed.pop(name, None)
        self.others.pop(name, None)
        for own in self.domains.values():
            own.pop(name, None)

    def admitting(self, job: Job) -> list[Node]:
        """A node of each pool that admits a job. A pool that has lost its last node counts, outside of node sets."""
        nodes = self.rows if job.node_set else list(self.pools.values())
        return list({node.pool: node for node in nodes if self.admits(node, job)}.values())

    def admits(self, node: Node, job: Job) -> bool:
        """Whether pods of a job may run on a node at all."""
        return admits(node, job, self.node_sets)

    def _back(self, job: str, since: int) -> LiveJob:
        """Let a running job wait again, from `since` on."""
        live = self.waiting[job] = self.running.pop(job)
        live.since, live.pieces = since, None
        return live

    def queue_states(self, queue: str) -> set[str]:
        """The states of a queue and of its ancestors; `unknown` if queues are declared and this one is not."""
        states = {one.name: str(one.state) for one in self.queues.queues}
        if queue not in states:
            return {"unknown"} if states else set()
        return {states[name] for name in self.queues.lineage(queue)}

    def is_over_budget(self, queue: str, user: str | None, kind: str) -> bool:
        """Whether a queue, an ancestor, or the `user` of one has used up a budget; `kind` is hard or soft."""
        month = 30 * DAY
        began = max([end for end in self.ends if end <= self.now], default=0)
        if not any(end > self.now for end in self.ends):
            began += (self.now - began) // month * month
        for name in self.queues.lineage(queue):
            budget = next((one.budget for one in self.queues.queues if one.name == name), None)
            used = {None: 0, user: 0}
            for run in self.runs if budget is not None else ():
                if name in self.queues.lineage(run.job.queue):
                    spent = run.milli * max((self.now if run.until < 0 else run.until) - max(run.since, began), 0)
                    used[None] += spent
                    used[user] += spent if run.job.user == user is not None else 0
            for most, spent in ((f"{kind}", used[None]), (f"user_{kind}", used[user])) if budget is not None else ():
                limit = getattr(budget, most)
                if limit >= 0 and spent >= limit * HOUR and (user is not None or most == kind):
                    return True
        return False

    def rooms(self) -> list[Room]:
        """The free resources of each node now, recounted from the running jobs."""
        rooms = [
            Room(
                node, [1000] * node.gpus, node.cpu, node.memory, self._opens(row), self.node_sets, self.domains,
                self.others[node.name].copy() if row not in self.free and node.name in self.others else NodeCounts(),
                row not in self.free,
            )
            for row, node in enumerate(self.rows)
        ]  # fmt: skip
        for live in self.running.values():
            for piece in live.pieces or ():
                rooms[piece[NODE]].change(piece, -1, live.job)
        return rooms

    def empty(self) -> list[Room]:
        """The nodes as if empty and in service, including those that have left."""
        rows = self.rows
        return [
            Room(node, [1000] * node.gpus, node.cpu, node.memory, node is not NO_NODE, self.node_sets, self.domains)
            for node in rows
        ]

    def _opens(self, row: int) -> bool:
        return row not in self.free and self.rows[row].name not in self.closed
