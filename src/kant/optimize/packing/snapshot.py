"""A cluster's state as an instance of the packer: waiting jobs, movable jobs, and the capacity left for both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.job import LEVELS, Job
from kant.model.placement import CPU, MEMORY, NODE, PODS, TAG, Allocation
from kant.model.status import NodeStatus
from kant.model.units import FOREVER
from kant.optimize.packing.instance import MOST, PackingInstance, PackingNode, PackingPod

LEVEL_COLUMNS = dict(zip(LEVELS[1:], (c.HBD, c.LEAF, c.SPINE, c.SUPERSPINE), strict=True))
AMOUNTS = ("gpu", "cpu", "memory")


@dataclass(frozen=True, slots=True)
class PackingSnapshot:
    """The instance, and the jobs that are not part of it: waiting jobs (`left_out`) and running jobs (`fixed`)."""

    instance: PackingInstance
    left_out: tuple[str, ...]
    fixed: tuple[str, ...]


def anybody(row: int) -> bool:
    """Let every preemptible job move."""
    return True


def snapshot_of(
    state: ClusterState, waiting: Iterable[int] | None = None, may_move: Callable[[int], bool] = anybody
) -> PackingSnapshot:
    """Nodes in service, waiting jobs and running preemptible jobs, with whole GPUs, CPU and memory.

    `waiting` restricts the waiting jobs to these rows, and `may_move` the running ones. A running job stays where it is
    if it is not preemptible, or needs something that the format cannot express (shares of a GPU, MIG slices, NVLink
    islands, segments, elastic gangs, spreading, burst replicas); nodes offer only the capacity that such jobs leave.
    Waiting jobs with such needs are left out. A running job that names GPU models keeps its present one; a waiting job
    gets its most preferred one. Quotas are ignored.
    """
    names = _pool_names(state)
    pods: list[PackingPod] = []
    fixed, left_out = [], []
    offered = {
        n: [int(state.table[n, c.IDLE]), int(state.table[n, c.CPU_FREE]), int(state.table[n, c.MEMORY_FREE])]
        for n in range(len(state.nodes))
        if state.table[n, c.STATUS] == NodeStatus.IN_SERVICE
    }
    for row, held in state.running.items():
        job = state.live[row]
        free = job.preemptible and is_plain(state, row, job) and may_move(row)
        if not (free and set(held[:, NODE].tolist()) <= offered.keys()):
            fixed.append(job.id)
            continue
        pods += _running(state, row, job, held, names)
        for piece in held.tolist():
            node = offered[piece[NODE]]
            for r, amount in enumerate((max(piece[TAG], 0) * piece[PODS], piece[CPU], piece[MEMORY])):
                node[r] += amount
    for row in state.pending if waiting is None else waiting:
        job = state.live[row]
        if is_plain(state, row, job):
            pods += _waiting(state, row, job, names)
        else:
            left_out.append(job.id)
    enough = min(sum(sum(pod.requests.values()) for pod in pods), MOST)
    nodes = tuple(
        PackingNode(
            state.nodes[n].name,
            {name: enough if amount >= FOREVER // 2 else amount for name, amount in zip(AMOUNTS, amounts, strict=True)},
            names[int(state.table[n, c.POOL])],
            {level: str(int(state.table[n, column])) for level, column in LEVEL_COLUMNS.items()},
        )
        for n, amounts in offered.items()
    )
    return PackingSnapshot(PackingInstance(nodes, tuple(pods)), tuple(left_out), tuple(fixed))


def _pool_names(state: ClusterState) -> list[str]:
    """A unique name for each pool: its GPU model and its other distinguishing attributes."""
    names = [
        " ".join(filter(None, (model, *queues, mig, flavor))) for model, queues, mig, flavor in state.shapes.pool_keys
    ]
    return [name if names.count(name) == 1 else f"{name} {pool}" for pool, name in enumerate(names)]


def is_plain(state: ClusterState, row: int, job: Job) -> bool:
    """Whether a job only requests nodes, whole GPUs, CPU, memory and one domain for all pods."""
    return not job.base_job and row not in state.burst_replicas and asks_for_whole_gpus(state, row, job)


def asks_for_whole_gpus(state: ClusterState, row: int, job: Job) -> bool:
    """Whether a job only requests whole GPUs, CPU and memory of nodes, and one domain for all pods.

    Amounts of other resources are checked when the plan is carried out: the core gives no node more pods than allowed.
    """
    if any(one.classes or one.anti_affinity or one.affinity or one.spread for one in job.rules):
        return False
    demands = [group.demand for group in job.groups]
    return (
        row not in state.elastic
        and not (job.apart and job.apart_required)
        and all(not group.within and group.floor in (0, group.count) for group in job.groups)
        and all(not (one.mig or one.island) and (one.gpus == 0 or one.milli == 1000) for one in demands)
    )


def _models(state: ClusterState, row: int, model: str | None, names: list[str]) -> tuple[str, ...]:
    """The names of the pools that admit a job, for one GPU model (None: for any)."""
    pools = state.shape_of(row).pools
    return tuple(names[pool] for pool in pools if model in (None, state.shapes.pool_keys[pool][0]))


def _running(state: ClusterState, row: int, job: Job, held: Allocation, names: list[str]) -> list[PackingPod]:
    """The pods of a running job; a job that names GPU models keeps its present one."""
    has = {state.shapes.pool_keys[int(state.table[n, c.POOL])][0] for n in held[:, NODE].tolist()}
    models = _models(state, row, has.pop() if job.models and len(has) == 1 else None, names)
    found = []
    for piece in held.tolist():
        requests = {"gpu": max(piece[TAG], 0), "cpu": piece[CPU] // piece[PODS], "memory": piece[MEMORY] // piece[PODS]}
        node = state.nodes[piece[NODE]].name
        found += [(requests, node)] * piece[PODS]
    return [_pod(job, k, requests, models, node) for k, (requests, node) in enumerate(found)]


def _waiting(state: ClusterState, row: int, job: Job, names: list[str]) -> list[PackingPod]:
    """The pods of a waiting job; a job that names GPU models gets the first available one."""
    there = {state.shapes.pool_keys[pool][0] for pool in state.shape_of(row).pools}
    liked = next((model for model in job.models if model in there), None)
    models = _models(state, row, liked, names) or (f"none for {job.id}",)
    requests = [
        {"gpu": group.demand.gpus, "cpu": group.demand.cpu, "memory": group.demand.memory}
        for group in job.groups
        for _ in range(group.count)
    ]
    return [_pod(job, k, one, models, None) for k, one in enumerate(requests)]


def _pod(job: Job, k: int, requests: dict[str, int], models: tuple[str, ...], node: str | None) -> PackingPod:
    several = job.pods > 1
    within = job.within if job.within_required and several and job.within in LEVEL_COLUMNS else ""
    name = f"{job.id}/{k}" if several else job.id
    asked = {name: amount for name, amount in requests.items() if amount}
    return PackingPod(name, asked, job.priority, node, job.id if several else "", models, within)
