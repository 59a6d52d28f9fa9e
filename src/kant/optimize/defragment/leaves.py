"""Partly used leaves, and the nodes whose jobs would have to move so that some of the leaves become idle.

A gang that requires one leaf cannot start while the idle nodes are spread over many leaves. This is the problem of
`leftovers` one level higher, and `empty_nodes` solves both: leaves take the role of nodes, nodes that of GPUs, and all
jobs of a node, which move together to an idle node of another leaf, that of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.placement import CPU, MEMORY, NODE
from kant.optimize.defragment.leftovers import Emptied, Leftovers, Lodger
from kant.optimize.defragment.wanted import is_idle, nodes_of_leaves
from kant.optimize.packing.snapshot import asks_for_whole_gpus


@dataclass(slots=True)
class LeftoverLeaves:
    """The partly used leaves of one pool.

    `leaves` describes leaves and their nodes as Leftovers describes nodes and their GPUs. Each lodger stands for one
    node, by the row of the node's job that started first. `idle` has the idle nodes of each leaf, and `rows` the jobs
    of a node.
    """

    leaves: Leftovers
    idle: dict[int, list[int]] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)


def leftover_leaves(
    state: ClusterState, price: Callable[[int], int], may_move: Callable[[int], bool], taken: Set[int]
) -> list[LeftoverLeaves]:
    """The partly used leaves of each pool.

    `price` returns the price of moving a job, by row; `may_move` says which jobs may move. No job enters or leaves the
    nodes in `taken`.
    """
    on = dict[int, list[int]]()
    for row, held in state.running.items():
        for node in dict.fromkeys(held[:, NODE].tolist()):
            on.setdefault(node, []).append(row)
    found: dict[int, LeftoverLeaves] = {}
    for (pool, leaf), nodes in nodes_of_leaves(state).items():
        idle = [node for node in nodes if is_idle(state, node) and node not in taken]
        if not idle or len(idle) == len(nodes):
            continue
        own = found.setdefault(pool, LeftoverLeaves(Leftovers(pool)))
        own.idle[leaf] = idle
        own.leaves.gpus[leaf] = sum(int(state.table[node, c.GPUS]) for node in nodes)
        own.leaves.free[leaf] = (len(idle), 0, 0)
        own.leaves.lodgers[leaf] = []
        for node in nodes:
            if node in idle:
                continue
            rows = own.rows[node] = on.get(node, [])
            if not rows or node in taken or not all(_moves_alone(state, row, may_move) for row in rows):
                own.leaves.fixed.add(leaf)
                continue
            first = min(rows, key=lambda row: (int(state.jobs[row, c.J_STARTED]), row))
            cost = sum(price(row) for row in rows)
            own.leaves.lodgers[leaf].append(Lodger(first, leaf, (1, 0, 0), cost, len(rows)))
    return [found[pool] for pool in sorted(found)]


def moves_of(state: ClusterState, own: LeftoverLeaves, found: Emptied) -> list[tuple[int, int]]:
    """The new node of each job that moves, by row. Empty if a node has too little CPU or memory for its jobs."""
    sources = {who.row: int(state.running[who.row][0, NODE]) for who, _ in found.moves}
    free = {leaf: list(nodes) for leaf, nodes in own.idle.items()}
    for who, _ in found.moves:
        free[who.node].append(sources[who.row])  # used last: the jobs of this node must leave first
    moves = list[tuple[int, int]]()
    for who, leaf in found.moves:
        rows = own.rows[sources[who.row]]
        cpu, memory = (sum(int(state.running[row][:, column].sum()) for row in rows) for column in (CPU, MEMORY))
        table = state.table
        fits = (n for n in free[leaf] if table[n, c.CPU] >= cpu and table[n, c.MEMORY] >= memory)
        target = next(fits, None)
        if target is None or table[target, c.GPUS] < table[sources[who.row], c.GPUS]:
            return []
        free[leaf].remove(target)
        moves += [(row, target) for row in rows]
    return moves


def _moves_alone(state: ClusterState, row: int, may_move: Callable[[int], bool]) -> bool:
    """Whether a job is on one node, may move, and can move to any other node."""
    on_one = len(set(state.running[row][:, NODE].tolist())) == 1
    return on_one and may_move(row) and asks_for_whole_gpus(state, row, state.live[row])
