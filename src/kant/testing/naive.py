"""What fits, defined again as plainly as possible: slow, without indexes, independent of the placement engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from kant.cluster.columns import CPU_FREE, DEVICES, MEMORY_FREE, STATUS, Table
from kant.model.job import LEVELS, Demand, Job, Level, PodGroup
from kant.model.mig import GEOMETRIES, MigProfile
from kant.model.node import ClusterSpec, Node
from kant.model.placement import CPU, GROUP, MASK, MEMORY, MILLI, NODE, PODS, TAG, Allocation, slices_of_tag
from kant.model.status import NodeStatus

NO_SETS: Mapping[str, Collection[str]] = {}


def admits(node: Node, job: Job, sets: Mapping[str, Collection[str]] = NO_SETS) -> bool:
    """Return whether the node's GPU model, flavor, queues and MIG mode admit the job or, if its groups differ, one of
    these groups.

    `sets` has the names of the nodes of each node set.
    """
    if job.roles:
        return any(admits(node, one, sets) for one in alone(job))
    if job.node_set and node.name not in sets.get(job.node_set, ()):
        return False
    offered = {(profile.name, size) for profile, size in _profiles(node)}
    asked = {(group.demand.mig, group.demand.milli) for group in job.groups if group.demand.profile}
    if bool(node.mig) != bool(asked) or not asked <= offered:
        return False
    if job.flavors and node.flavor not in job.flavors:
        return False
    return (not job.models or node.model in job.models) and (not node.queues or job.queue in node.queues)


def alone(job: Job) -> list[Job]:
    """Return each group as a job, with the constraints of its role; the job itself if its groups do not differ."""
    if not job.roles:
        return [job]
    return [
        replace(
            job,
            groups=(group,),
            models=role.models or job.models,
            flavors=role.flavors or job.flavors,
            node_set=role.node_set or job.node_set,
            roles=(),
        )
        for group, role in zip(job.groups, job.roles, strict=True)
    ]


def _profiles(node: Node) -> list[tuple[MigProfile, int]]:
    """Return the MIG profiles of the node's GPUs, and the thousandths of a GPU of each."""
    geometry = GEOMETRIES.get(node.mig)
    return [(profile, profile.size * 1000 // geometry.slices) for profile in geometry.profiles] if geometry else []


def free_slices(node: Node, row: Table, demand: Demand) -> list[tuple[int, int]]:
    """(device, slices as bits) of each MIG instance of the demand's profile that could be created now."""
    found = []
    for device in range(node.gpus):
        occupied = int(row[len(row) - (len(row) - DEVICES - 1) // 3 + device])
        for profile, _ in _profiles(node):
            for start in range(8):
                window = (1 << profile.size) - 1 << start
                if profile.name == demand.mig and profile.starts >> start & 1 and not occupied & window:
                    found.append((device, window))
    return found


def free_devices(node: Node, row: Table) -> list[int]:
    """The free thousandths of each device of the node; 0 for a lost one."""
    return [max(int(free), 0) for free in row[DEVICES : DEVICES + node.gpus]]


def islands_of(node: Node) -> list[range]:
    """The devices of each NVLink island."""
    size = node.nvlink or node.gpus
    return [range(first, first + size) for first in range(0, node.gpus, size or 1)]


def pods_that_fit(node: Node, row: Table, demand: Demand) -> int:
    """Return how many pods of `demand` fit on a node in service, by its row of the node table."""
    if row[STATUS] != NodeStatus.IN_SERVICE:
        return 0
    most = 1 << 40
    if demand.profile:
        most = len(free_slices(node, row, demand))
    elif demand.gpus:
        free, most = free_devices(node, row), 0
        for island in islands_of(node) if demand.island else [range(node.gpus)]:
            most += _pods_on([free[device] // demand.milli for device in island], demand.gpus)
    if demand.cpu:
        most = min(most, int(row[CPU_FREE]) // demand.cpu)
    if demand.memory:
        most = min(most, int(row[MEMORY_FREE]) // demand.memory)
    return most


def _pods_on(room: list[int], gpus: int) -> int:
    """Return how many pods of `gpus` devices fit. k pods fit if all devices together take gpus * k parts of pods: each
    device takes at most k, and no more than it has room for.
    """
    most = 0
    while sum(min(pods, most + 1) for pods in room) >= gpus * (most + 1):
        most += 1
    return most


def pods_that_fit_anywhere(spec: ClusterSpec, table: Table, job: Job, demand: Demand) -> int:
    """How many pods of `demand` of this job fit in the whole cluster now."""
    return sum(
        pods_that_fit(node, row, demand) for node, row in zip(spec.nodes, table, strict=True) if admits(node, job)
    )


def domains_of(spec: ClusterSpec, level: str) -> list[list[int]]:
    """The nodes of each domain of a level of the fabric, in order of their first nodes."""
    depth = {"superspine": 1, "spine": 2, "leaf": 3, "hbd": 4, "node": 5}[level]
    found: dict[tuple[str, ...], list[int]] = {}
    for index, node in enumerate(spec.nodes):
        path = (node.superspine, node.spine, node.leaf, f"in {node.hbd}" if node.hbd else node.name, node.name)
        found.setdefault(path[:depth], []).append(index)
    return list(found.values())


def pods_that_fit_in_one(spec: ClusterSpec, table: Table, job: Job, demand: Demand, level: str) -> int:
    """How many pods of `demand` of this job fit in the best domain of a level."""
    fits = [
        pods_that_fit(node, row, demand) if admits(node, job) else 0
        for node, row in zip(spec.nodes, table, strict=True)
    ]
    return max(sum(fits[node] for node in domain) for domain in domains_of(spec, level))


def wrong_with(spec: ClusterSpec, table: Table, job: Job, allocation: Allocation) -> str:
    """The error in giving `allocation` to `job` on the present node table; empty if it is valid."""
    free = {int(node): free_devices(spec.nodes[int(node)], table[int(node)]) for node in allocation[:, NODE]}
    made: dict[tuple[int, int], int] = {}
    cpu = {node: int(table[node, CPU_FREE]) for node in free}
    memory = {node: int(table[node, MEMORY_FREE]) for node in free}
    for piece in allocation.tolist():
        node = piece[NODE]
        if table[node, STATUS] != NodeStatus.IN_SERVICE:
            return f"node {node} is not in service"
        if not 0 <= piece[GROUP] < len(job.groups):
            return f"piece {piece} is of no group"
        if not admits(spec.nodes[node], alone(job)[piece[GROUP]] if job.roles else job):
            return f"node {node} does not admit the pods of {piece}"
        if piece[MASK] < 0 or piece[MASK] >> spec.nodes[node].gpus:
            return f"node {node} has no such devices: {piece[MASK]:b}"
        for device in range(spec.nodes[node].gpus):
            if piece[MASK] >> device & 1:
                free[node][device] -= piece[MILLI]
                slices = slices_of_tag(piece[TAG])
                demand = job.groups[piece[GROUP]].demand
                places = free_slices(spec.nodes[node], table[node], demand) if demand.profile else []
                if bool(demand.profile) != bool(slices) or (slices and (device, slices) not in places):
                    return f"piece {piece} takes other slices than its profile may have"
                if made.get((node, device), 0) & slices:
                    return f"piece {piece} takes slices twice"
                made[node, device] = made.get((node, device), 0) | slices
        cpu[node] -= piece[CPU]
        memory[node] -= piece[MEMORY]
        if min([*free[node], cpu[node], memory[node]]) < 0:
            return f"node {node} does not have what piece {piece} takes"
    used = set(free)
    if job.within_required and job.within and not any(used <= set(d) for d in domains_of(spec, job.within)):
        return f"nodes {sorted(used)} are not in one {job.within}"
    return (
        _cut_wrongly(spec, job, allocation) or _island_broken(spec, job, allocation) or _not_as_asked(job, allocation)
    )


def _tag(demand: Demand) -> int:
    """The TAG of a piece with pods of the demand; MIG slices have other tags."""
    return -1 if demand.gpus == 0 else demand.gpus if demand.milli == 1000 and not demand.mig else 0


def _island_broken(spec: ClusterSpec, job: Job, allocation: Allocation) -> str:
    """The piece that spreads a pod over NVLink islands although its group forbids that; empty if there is none."""
    for piece in allocation.tolist():
        demand = job.groups[piece[GROUP]].demand
        for island in islands_of(spec.nodes[piece[NODE]]) if demand.gpus and demand.island else []:
            inside = sum(piece[MASK] >> device & 1 for device in island)
            if inside % demand.gpus:
                return f"piece {piece} has {inside} devices of island {island} for pods of {demand.gpus}"
    return ""


def pods_that_fit_as_asked(spec: ClusterSpec, table: Table, job: Job, affinity_members: list[Allocation]) -> int:
    """Return how many pods of a job of one group fit under its requirements, given these members of its affinity
    group.
    """
    (group,) = job.groups
    required = bool(job.within and job.within_required and job.pods > 1)
    places: list[list[int] | None] = [*domains_of(spec, job.within)] if required else [None]
    if job.apart and job.apart_required and (job.pods > 1 or job.affinity_group):
        return max(pods_that_fit_apart(spec, table, job, affinity_members, place) for place in places)
    if group.within and min(group.segment or group.count, group.count) > 1:
        return max(pods_that_fit_in_segments(spec, table, job, group, place) for place in places)
    if required:
        return pods_that_fit_in_one(spec, table, job, group.demand, job.within)
    return pods_that_fit_anywhere(spec, table, job, group.demand)


def too_close(spec: ClusterSpec, job: Job, allocation: Allocation, affinity_members: list[Allocation]) -> str:
    """Return where two pods are in one domain although the job requires them apart; empty if nowhere."""
    if not job.apart_required or not job.apart:
        return ""
    pods = [
        piece[NODE] for held in (allocation, *affinity_members) for piece in held.tolist() for _ in range(piece[PODS])
    ]
    own = set(allocation[:, NODE].tolist())
    for domain in domains_of(spec, job.apart):
        if own & set(domain) and sum(node in domain for node in pods) > 1:
            return f"{sum(node in domain for node in pods)} pods are in the {job.apart} of nodes {domain}"
    return ""


def pods_that_fit_apart(
    spec: ClusterSpec, table: Table, job: Job, affinity_members: list[Allocation], inside: list[int] | None = None
) -> int:
    """How many pods of a job of one group fit, each in a domain of its own. `inside` restricts the nodes."""
    taken = {int(node) for held in affinity_members for node in held[:, NODE]}
    fits = 0
    for domain in domains_of(spec, job.apart):
        able = [
            i
            for i in domain
            if (inside is None or i in inside)
            and admits(spec.nodes[i], job)
            and pods_that_fit(spec.nodes[i], table[i], job.groups[0].demand)
        ]
        fits += bool(able) and not taken & set(domain)
    return fits


def fits_anywhere_of(spec: ClusterSpec, table: Table, job: Job, inside: set[int]) -> int:
    """Return how many pods of a job of one group fit on these nodes."""
    demand = job.groups[0].demand
    return sum(pods_that_fit(spec.nodes[i], table[i], demand) for i in inside if admits(spec.nodes[i], job))


def _cut_wrongly(spec: ClusterSpec, job: Job, allocation: Allocation) -> str:
    """The segment that lies in more than one domain; empty if there is none. Pods count from the first row on."""
    nodes = [piece[NODE] for piece in allocation.tolist() for _ in range(piece[PODS])]
    first = 0
    for number, group in enumerate(job.groups):
        own, first = nodes[first : first + group.count], first + group.count
        for level, length in ((group.within, group.segment or group.count), *group.inner) if group.within else ():
            domains = [set(domain) for domain in domains_of(spec, level)]
            for begin in range(0, group.count, length):
                if not any(set(own[begin : begin + length]) <= domain for domain in domains):
                    return f"pods {begin} on of group {number} are on {own[begin : begin + length]}, not in one {level}"
    return ""


def pods_that_fit_in_segments(
    spec: ClusterSpec, table: Table, job: Job, group: PodGroup, inside: list[int] | None = None
) -> int:
    """Return how many pods of a segmented group fit in whole segments (and the last, shorter one), by exhaustive
    search.

    `inside` restricts the nodes. A job that requires a domain no wider than that of its segments is not segmented.
    """
    cut = group.within
    narrowest = group.inner[-1][0] if group.inner else cut
    if job.within_required and job.within and LEVELS.index(job.within) <= LEVELS.index(narrowest):
        return min(pods_that_fit_in_one(spec, table, job, group.demand, job.within), group.count)
    rooms = []
    for domain in domains_of(spec, cut):
        nodes = [node for node in domain if inside is None or node in inside]
        rooms.append(
            sum(pods_that_fit(spec.nodes[i], table[i], group.demand) for i in nodes if admits(spec.nodes[i], job))
        )
    length = min(group.segment or group.count, group.count)
    if group.inner:
        free = [pods_that_fit(node, row, group.demand) for node, row in zip(spec.nodes, table, strict=True)]
        free = [room * admits(node, job) for node, room in zip(spec.nodes, free, strict=True)]
        return length * _most_nested(
            spec, free, ((cut, length), *group.inner), inside or [*range(len(free))], group.count // length
        )
    if length == group.count:
        return min(max(rooms), group.count)
    many, rest = divmod(group.count, length)
    found = [min(sum(room // length for room in rooms), many) * length]
    for at, room in enumerate(rooms):
        if rest and room >= rest:  # the last, shorter segment in this domain
            others = [*rooms[:at], room - rest, *rooms[at + 1 :]]
            found.append(min(sum(room // length for room in others), many) * length + rest)
    return max(found)


Sizes = Sequence[tuple[Level, int]]
"""Levels at which a group is segmented, from outside to inside, with the pods of a segment."""


def _most_nested(spec: ClusterSpec, free: list[int], cuts: Sizes, inside: list[int], most: int) -> int:
    """Return how many of `most` segments, nested by the further cuts, fit on these nodes, by exhaustive search."""
    found = {tuple(free)}
    for number in range(most):
        found = {left for rooms in found for left in _after_one(spec, rooms, cuts, inside)}
        if not found:
            return number
    return most


def _after_one(spec: ClusterSpec, rooms: tuple[int, ...], cuts: Sizes, inside: list[int]) -> set[tuple[int, ...]]:
    """Return how many pods still fit on each node after one segment is placed on `inside`, for each way to do so."""
    (level, length), *further = cuts
    found = set[tuple[int, ...]]()
    for domain in domains_of(spec, level):
        nodes, left = [node for node in domain if node in inside], {rooms}
        for _ in range(length // further[0][1] if further else 0):
            left = {after for one in left for after in _after_one(spec, one, further, nodes)}
        if not further:
            left = _without(rooms, nodes, length)
        found |= left
    return found


def _without(rooms: tuple[int, ...], nodes: list[int], pods: int) -> set[tuple[int, ...]]:
    """Return how many pods still fit on each node after `nodes` have taken the pods; empty if they cannot."""
    left = list(rooms)
    for node in nodes:
        taken = min(left[node], pods)
        left[node], pods = left[node] - taken, pods - taken
    return set() if pods else {tuple(left)}


def _not_as_asked(job: Job, allocation: Allocation) -> str:
    """The difference between the job's request and its allocation; empty if there is none."""
    got = [0] * len(job.groups)
    for piece in allocation.tolist():
        demand, pods = job.groups[piece[GROUP]].demand, piece[PODS]
        got[piece[GROUP]] += pods
        milli = demand.milli if demand.gpus else demand.charged_milli
        tag = piece[TAG] if demand.profile else _tag(demand)
        asked = [pods * demand.gpus, pods * demand.cpu, pods * demand.memory, milli, tag]
        own = [piece[MASK].bit_count(), piece[CPU], piece[MEMORY], piece[MILLI], piece[TAG]]
        if own != asked:
            return f"piece {piece} has (devices, CPU, memory, thousandths, tag) {own} for pods that ask for {asked}"
    asked_pods = [group.count for group in job.groups]
    return "" if got == asked_pods else f"asked for {asked_pods} pods of its groups, got {got}"
