"""What fits, said again as plainly as possible: slow, without indexes, and independent of the placement engine."""

from __future__ import annotations

from kant.cluster.columns import CPU_FREE, DEVICES, MEMORY_FREE, STATUS, Table
from kant.model.job import Demand, Job
from kant.model.node import ClusterSpec, Node
from kant.model.placement import CPU, MASK, MEMORY, MILLI, NODE, PODS, TAG, Allocation
from kant.model.status import NodeStatus


def admits(node: Node, job: Job) -> bool:
    """Whether the node's GPU model and queues admit the job."""
    return (not job.models or node.model in job.models) and (not node.queues or job.queue in node.queues)


def free_devices(node: Node, row: Table) -> list[int]:
    """Free thousandths of each device of the node; none of one that is lost."""
    return [max(int(free), 0) for free in row[DEVICES : DEVICES + node.gpus]]


def pods_that_fit(node: Node, row: Table, demand: Demand) -> int:
    """How many pods of `demand` a node in service takes, by its row of the node table."""
    if row[STATUS] != NodeStatus.IN_SERVICE:
        return 0
    most = 1 << 40
    if demand.gpus:
        # k pods fit when every device offers itself to at most k of them and to no more than it has room for.
        room = [free // demand.milli for free in free_devices(node, row)]
        most = 0
        while sum(min(pods, most + 1) for pods in room) >= demand.gpus * (most + 1):
            most += 1
    if demand.cpu:
        most = min(most, int(row[CPU_FREE]) // demand.cpu)
    if demand.memory:
        most = min(most, int(row[MEMORY_FREE]) // demand.memory)
    return most


def pods_that_fit_anywhere(spec: ClusterSpec, table: Table, job: Job, demand: Demand) -> int:
    """How many pods of `demand` of this job the whole cluster takes now."""
    return sum(
        pods_that_fit(node, row, demand) for node, row in zip(spec.nodes, table, strict=True) if admits(node, job)
    )


def domains_of(spec: ClusterSpec, level: str) -> list[list[int]]:
    """The nodes of each domain of a level of the fabric, in order of their first nodes."""
    depth = {"superspine": 1, "spine": 2, "leaf": 3, "node": 4}[level]
    found: dict[tuple[str, ...], list[int]] = {}
    for index, node in enumerate(spec.nodes):
        found.setdefault((node.superspine, node.spine, node.leaf, node.name)[:depth], []).append(index)
    return list(found.values())


def pods_that_fit_in_one(spec: ClusterSpec, table: Table, job: Job, demand: Demand, level: str) -> int:
    """How many pods of `demand` of this job the domain of a level takes that takes the most."""
    fits = [
        pods_that_fit(node, row, demand) if admits(node, job) else 0
        for node, row in zip(spec.nodes, table, strict=True)
    ]
    return max(sum(fits[node] for node in domain) for domain in domains_of(spec, level))


def wrong_with(spec: ClusterSpec, table: Table, job: Job, allocation: Allocation) -> str:
    """What is wrong with giving `allocation` to `job` on the node table as it stands; empty where nothing is."""
    free = {int(node): free_devices(spec.nodes[int(node)], table[int(node)]) for node in allocation[:, NODE]}
    cpu = {node: int(table[node, CPU_FREE]) for node in free}
    memory = {node: int(table[node, MEMORY_FREE]) for node in free}
    for piece in allocation.tolist():
        node = piece[NODE]
        if table[node, STATUS] != NodeStatus.IN_SERVICE:
            return f"node {node} is not in service"
        if not admits(spec.nodes[node], job):
            return f"node {node} does not admit the job"
        if piece[MASK] < 0 or piece[MASK] >> spec.nodes[node].gpus:
            return f"node {node} has no such devices: {piece[MASK]:b}"
        for device in range(spec.nodes[node].gpus):
            if piece[MASK] >> device & 1:
                free[node][device] -= piece[MILLI]
        cpu[node] -= piece[CPU]
        memory[node] -= piece[MEMORY]
        if min([*free[node], cpu[node], memory[node]]) < 0:
            return f"node {node} does not have what piece {piece} takes"
    used = set(free)
    if job.within_required and job.within and not any(used <= set(d) for d in domains_of(spec, job.within)):
        return f"nodes {sorted(used)} are not in one {job.within}"
    return _not_as_asked(job, allocation)


def _not_as_asked(job: Job, allocation: Allocation) -> str:
    """What differs between what the job asked for and what it gets."""
    asked: dict[tuple[int, int], list[int]] = {}
    for group in job.groups:
        demand = group.demand
        tag = -1 if demand.gpus == 0 else demand.gpus if demand.milli == 1000 else 0
        sums = asked.setdefault((tag, demand.milli if demand.gpus else 0), [0, 0, 0, 0])
        parts = (1, demand.gpus, demand.cpu, demand.memory)
        sums[:] = [have + group.count * part for have, part in zip(sums, parts, strict=True)]
    got: dict[tuple[int, int], list[int]] = {}
    for piece in allocation.tolist():
        sums = got.setdefault((piece[TAG], piece[MILLI]), [0, 0, 0, 0])
        parts = (piece[PODS], piece[MASK].bit_count(), piece[CPU], piece[MEMORY])
        sums[:] = [have + part for have, part in zip(sums, parts, strict=True)]
        if piece[TAG] > 0 and piece[MASK].bit_count() != piece[PODS] * piece[TAG]:
            return f"piece {piece} has {piece[MASK].bit_count()} devices for {piece[PODS]} pods of {piece[TAG]}"
        if len(job.groups) == 1:
            demand = job.groups[0].demand
            if (piece[CPU], piece[MEMORY]) != (piece[PODS] * demand.cpu, piece[PODS] * demand.memory):
                return f"piece {piece} takes other CPU or memory than its pods ask for"
    return "" if asked == got else f"asked for (pods, devices, CPU, memory) {asked}, got {got}"
