"""What waiting jobs lack: more idle nodes of a pool, or more idle nodes in one leaf."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.job import LEVELS
from kant.model.status import NodeStatus
from kant.model.units import GPU

LOOKED_AT = 200
"""The number of waiting jobs considered."""

AT_LEAF = LEVELS.index("leaf")


def wanted_nodes(state: ClusterState) -> list[bool]:
    """For each pool, whether a waiting job needs more idle nodes than there are."""
    table = state.table
    gpus = [0] * len(state.pools)
    idle = [0] * len(state.pools)
    whole = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.GPUS] > 0)
    for pool in range(len(state.pools)):
        mine = whole & (table[:, c.POOL] == pool)
        gpus[pool] = int(table[mine, c.GPUS].max(initial=0))
        idle[pool] = int((mine & (table[:, c.FREE] == table[:, c.GPUS] * GPU)).sum())
    found = [False] * len(state.pools)
    for row in list(state.pending)[:LOOKED_AT]:
        shape = state.shape_of(row)
        for pool in shape.pools:
            pods = sum(
                count for count, demand in ((g.count, g.demand) for g in shape.groups) if 0 < gpus[pool] <= demand.gpus
            )
            found[pool] = found[pool] or pods > idle[pool]
    return found


def wanted_leaves(state: ClusterState) -> list[bool]:
    """For each pool, whether a waiting gang that fits into a leaf needs more idle nodes in one leaf than any has."""
    found = [False] * len(state.pools)
    shapes = {shape.index: shape for shape in map(state.shape_of, list(state.pending)[:LOOKED_AT])}
    gangs = [shape for shape in shapes.values() if shape.required and shape.level == AT_LEAF]
    if not gangs:
        return found
    idle, most, gpus = ([0] * len(state.pools) for _ in range(3))
    for (pool, _), nodes in nodes_of_leaves(state).items():
        idle[pool] = max(idle[pool], sum(is_idle(state, node) for node in nodes))
        most[pool] = max(most[pool], len(nodes))
        gpus[pool] = max(gpus[pool], *(int(state.table[node, c.GPUS]) for node in nodes))
    for shape in gangs:
        for pool in shape.pools:
            whole = sum(group.count for group in shape.groups if 0 < gpus[pool] <= group.demand.gpus)
            found[pool] = found[pool] or idle[pool] < whole <= most[pool]
    return found


def nodes_of_leaves(state: ClusterState) -> dict[tuple[int, int], list[int]]:
    """The nodes in service that have GPUs, by pool and leaf."""
    table, found = state.table, dict[tuple[int, int], list[int]]()
    there = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.GPUS] > 0)
    for node in there.nonzero()[0].tolist():
        found.setdefault((int(table[node, c.POOL]), int(table[node, c.LEAF])), []).append(node)
    return found


def is_idle(state: ClusterState, node: int) -> bool:
    """Whether no job holds a GPU of a node."""
    return bool(state.table[node, c.FREE] == state.table[node, c.GPUS] * GPU)
