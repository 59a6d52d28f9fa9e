"""Additional nodes that would start a waiting job: empty nodes are added to a copy of the cluster to place the job.

It has been verified that this number of nodes suffices and one node fewer does not. The answer serves as an autoscaling
request: any quota that the job also lacks is named too, and the job is assumed to be next in order.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.insight.starts_now import Raise, raise_sentence, raised
from kant.model.event import DevicesChanged, JobStarted, JobSubmitted, NodeChanged, NodesLeft, TypicalPodsGiven
from kant.model.growth import with_more
from kant.model.job import Demand, Job, PodGroup
from kant.model.node import Node
from kant.model.status import NodeStatus
from kant.scheduler.cycle import Scheduler

MOST_KINDS = 4
"""Maximum number of kinds of nodes that are tried. The kinds with the most existing nodes are tried."""

MOST_NODES = 1024
"""Maximum number of nodes added."""

OUT = int(NodeStatus.CORDONED)


class MoreNodes(Struct, frozen=True):
    """`count` more nodes like the existing node named `like`, each with `gpus` GPUs of `model`."""

    count: int
    like: str
    gpus: int
    model: str
    quotas: tuple[Raise, ...] = ()
    """Quota increases that the job needs as well."""


def more_nodes(diagnosis: Diagnosis, row: int) -> tuple[MoreNodes, ...]:
    """Return, for each kind, the fewest additional nodes that start the job now. Kinds with fewest GPUs come first.

    Empty if the job already fits, if no number of nodes helps, or if it cannot be determined: for a burst replica, a
    job with a reservation, any job while reservations hold GPUs, and a job in a closed queue.
    """
    state = diagnosis.state
    job = state.live[row]
    if job.base_job or job.reservation or state.bookings or diagnosis.missing_place(row, state.shape_of(row)) is None:
        return ()
    if diagnosis.gating_reason(row) is not None:
        return ()
    found = []
    for like in _kinds(state, row):
        quotas = _quotas(diagnosis, row, like.model)
        if quotas is None:
            continue
        most = min(MOST_NODES, max(state.shape_of(row).pods, 1))
        larger = _Larger(diagnosis, job, like, most)
        if larger.starts(most):
            count = bisect_left(range(1, most), True, key=larger.starts) + 1
            found.append(MoreNodes(count, like.name, like.gpus, like.model, quotas))
    return tuple(sorted(found, key=lambda one: (one.count * max(one.gpus, 1), one.count, one.like)))


def _quotas(diagnosis: Diagnosis, row: int, model: str) -> tuple[Raise, ...] | None:
    """Return the quota increases with which the job may start on a GPU model; None if no increase suffices."""
    shape = diagnosis.state.shape_of(row)
    if not diagnosis.uses_quotas:
        return ()
    options = diagnosis.admission.options(row, shape)
    option = next((one for one in options if one.model in (None, model)), shape)
    quotas = raised(diagnosis, row, option)
    return None if not quotas and diagnosis.admission.shortage(row, option) is not None else quotas


def _kinds(state: ClusterState, row: int) -> list[Node]:
    """Return an example node of each kind that the job may use: at most MOST_KINDS, the most frequent kinds first."""
    pools = state.table[:, c.POOL]
    open_to = state.shapes.admitting(state.shape_of(row), pools)
    kinds: dict[tuple[object, ...], list[Node]] = {}
    for node, pool, may in zip(state.nodes, pools.tolist(), open_to, strict=True):
        if may and node.name in state.node_index:
            kinds.setdefault((pool, node.gpus, node.cpu, node.memory), []).append(node)
    ranked = sorted(kinds.values(), key=lambda nodes: (-len(nodes), nodes[0].name))
    return [nodes[0] for nodes in ranked[:MOST_KINDS]]


class _Larger:
    """A copy of a diagnosed cluster with `most` more nodes like `like`. `starts` puts some of these in service."""

    def __init__(self, diagnosis: Diagnosis, job: Job, like: Node, most: int) -> None:
        self.profile, self.now = diagnosis.profile, diagnosis.now
        state = diagnosis.state
        rows = [node if node.name else replace(node, name=f"row {row}") for row, node in enumerate(state.nodes)]
        spec = with_more(replace(state.spec, nodes=tuple(rows)), like, most)
        self.names = [node.name for node in spec.nodes[-most:]]
        self.state = self.profile.new_state(spec)
        self.in_service = most
        _occupy(self.state, diagnosis.state, self.now)
        self.job = replace(job, id=f"{job.id} on more nodes")
        self.state.apply(JobSubmitted(self.now, self.job))

    def starts(self, count: int) -> bool:
        """Return whether the job has a place with `count` of the additional nodes."""
        low, high = sorted((count, self.in_service))
        for name in self.names[low:high]:
            self.state.apply(NodeChanged(self.now, name, NodeStatus.IN_SERVICE if count == high else OUT))
        self.in_service = count
        diagnosis = Diagnosis(Scheduler(self.state, self.profile, 0), self.now)
        row = self.state.rows[self.job.id]
        return diagnosis.missing_place(row, self.state.shape_of(row)) is None


def _occupy(larger: ClusterState, state: ClusterState, now: int) -> None:
    """Occupy in `larger` what running jobs hold: one job for each with affinity or rules, one for all others."""
    if state.given_pods is not None:
        larger.apply(TypicalPodsGiven(now, state.given_pods))
    pieces = []
    for row, allocation in state.running.items():
        job = state.live[row]
        if state.shape_of(row).affinity is None and not job.rules:
            pieces.append(allocation)
        else:
            larger.apply(JobSubmitted(now, replace(job, base_job="")))
            larger.apply(JobStarted(now, job.id, allocation))
    if pieces:
        rest = Job("all others", 0, (PodGroup(1, Demand()),), preemptible=False)
        larger.apply(JobSubmitted(now, rest))
        larger.apply(JobStarted(now, rest.id, np.concatenate(pieces)))
    for node, lost in state.health.lost.items():
        larger.apply(DevicesChanged(now, state.nodes[node].name, lost))
    gone = [row for row in range(len(state.nodes)) if state.table[row, c.STATUS] == NodeStatus.RETIRED]
    if gone:
        larger.apply(NodesLeft(now, tuple(larger.nodes[row].name for row in gone)))
    for node in np.flatnonzero(state.table[:, c.STATUS] != NodeStatus.IN_SERVICE).tolist():
        if node in gone:
            continue
        larger.apply(NodeChanged(now, state.nodes[node].name, int(state.table[node, c.STATUS])))


def more_nodes_sentence(one: MoreNodes) -> str:
    """Return the additional nodes as text for people, such as `4 more nodes like n1 (8 H100)`."""
    what = f"{one.gpus} {one.model or 'GPU' + 's' * (one.gpus != 1)}" if one.gpus else "no GPU"
    return f"{one.count:,} more node{'s' * (one.count > 1)} like {one.like} ({what})"


def more_nodes_remedy(one: MoreNodes) -> str:
    """Return text for people that says that these nodes join, and which quota increases are also needed."""
    come = f"{more_nodes_sentence(one)} come{'s' * (one.count == 1)}"
    return " and ".join((come, *map(raise_sentence, one.quotas)))
