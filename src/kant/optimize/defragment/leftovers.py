"""Leftover GPUs: partly used nodes, and the jobs that would have to move so that some of these nodes become idle.

A node with some free GPUs cannot take a pod that needs all GPUs of a node. To empty it, its jobs move into gaps on
other such nodes. The best gap is one that they fill completely, since one move then ends the fragmentation of two
nodes. Only jobs on a single node move. Gangs on several nodes, and jobs that need more than whole GPUs, CPU and memory,
stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from kant.cluster import columns as c
from kant.cluster.state import ClusterState
from kant.model.placement import CPU, MEMORY, NODE, PODS, TAG
from kant.model.status import NodeStatus
from kant.optimize.packing.snapshot import asks_for_whole_gpus

Room = tuple[int, int, int]
"""GPUs, milli-cores and MiB."""

TOGETHER = 4
"""The maximum number of nodes whose jobs are redistributed together."""

LOOKED_AT = 10
"""The number of nodes of a pool among which all groups of up to TOGETHER nodes are tried."""

STEPS = 600
"""The maximum number of steps for the redistribution of one group of nodes."""


@dataclass(frozen=True, slots=True)
class Lodger:
    """A running job on one partly used node. `price` is the cost of a move in milli-GPU-seconds.

    A lodger may stand for several `jobs` that move together.
    """

    row: int
    node: int
    asks: Room
    price: int
    jobs: int = 1


@dataclass(slots=True)
class Leftovers:
    """The partly used nodes of a pool, their free resources and movable jobs. `fixed`: nodes with immovable jobs."""

    pool: int
    gpus: dict[int, int] = field(default_factory=dict)
    free: dict[int, Room] = field(default_factory=dict)
    lodgers: dict[int, list[Lodger]] = field(default_factory=dict)
    fixed: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Emptied:
    """The jobs that move, each with its new node, so that the nodes `emptied` become idle. `price`: of all moves."""

    moves: tuple[tuple[Lodger, int], ...]
    emptied: tuple[int, ...]
    price: int


def leftovers(
    state: ClusterState, price: Callable[[int], int], may_move: Callable[[int], bool]
) -> list[Leftovers]:  # fmt: skip
    """The leftovers of each pool. `price` is the price of moving a job, by row; `may_move` says which jobs may move."""
    found: dict[int, Leftovers] = {}
    table = state.table
    partial = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (table[:, c.FREE] > 0)
    partial &= table[:, c.FREE] < table[:, c.GPUS] * 1000
    for node in partial.nonzero()[0].tolist():
        own = found.setdefault(int(table[node, c.POOL]), Leftovers(int(table[node, c.POOL])))
        own.gpus[node] = int(table[node, c.GPUS])
        own.free[node] = (int(table[node, c.IDLE]), int(table[node, c.CPU_FREE]), int(table[node, c.MEMORY_FREE]))
        own.lodgers[node] = []
    of = {node: own for own in found.values() for node in own.gpus}
    for row, held in state.running.items():
        nodes = dict.fromkeys(held[:, NODE].tolist())
        here = [node for node in nodes if node in of]
        if not here:
            continue
        job = state.live[row]
        if len(nodes) > 1 or not may_move(row) or not asks_for_whole_gpus(state, row, job):
            for node in here:
                of[node].fixed.add(node)
            continue
        gpus = sum(max(int(piece[TAG]), 0) * int(piece[PODS]) for piece in held)
        asks = (gpus, int(held[:, CPU].sum()), int(held[:, MEMORY].sum()))
        of[here[0]].lodgers[here[0]].append(Lodger(row, here[0], asks, price(row)))
    return sorted(found.values(), key=lambda own: own.pool)


def empty_nodes(own: Leftovers, budget: int, worth: Callable[[int, Sequence[Lodger]], int]) -> Emptied:
    """Empty nodes by at most `budget` moves, each time the node with the largest gain relative to the price.

    `worth` is the value of an idle node, given the jobs that leave it, in the unit of prices. A node is emptied only if
    it is worth more than the moves cost.
    """
    search = _Search(own, budget)
    while search.step(worth):
        pass
    return search.result()


class _Search:
    """The tentative places of the lodgers, and the resulting free resources."""

    def __init__(self, own: Leftovers, budget: int) -> None:
        self.own, self.budget = own, budget
        self.free = dict(own.free)
        self.here = {node: list(who) for node, who in own.lodgers.items()}
        self.emptied: list[int] = []

    def step(self, worth: Callable[[int, Sequence[Lodger]], int]) -> bool:
        """Empty one more node if the gain exceeds the cost. Returns whether a node was emptied."""
        gone = [node for node in self.here if node not in self.own.fixed and self.here[node]]
        gone.sort(key=lambda node: (sum(who.price for who in self.here[node]), len(self.here[node]), node))
        gone = gone[:LOOKED_AT]
        plans = [found for node in gone if (found := self.best_fit(node)) is not None]
        best = self.best_of(plans, worth)
        if best is None:
            groups = (group for size in range(2, TOGETHER + 1) for group in combinations(self.near(gone), size))
            plans = [found for group in groups for node in group if (found := self.dealt(group, node)) is not None]
            best = self.best_of(plans, worth)
        if best is None:
            return False
        node, places = best
        for who, target in places:
            at = next(n for n, lodgers in self.here.items() if who in lodgers)
            if at != target:
                self.here[at].remove(who)
                self.here[target].append(who)
                self.free[at] = _plus(self.free[at], who.asks, 1)
                self.free[target] = _plus(self.free[target], who.asks, -1)
        self.emptied.append(node)
        del self.here[node], self.free[node]
        return True

    def best_of(
        self, plans: Sequence[tuple[int, list[tuple[Lodger, int]]]], worth: Callable[[int, Sequence[Lodger]], int]
    ) -> tuple[int, list[tuple[Lodger, int]]] | None:
        """Of the plans within the budget that have a positive gain, the one with the largest gain."""
        best, before = None, self.cost({})
        for node, places in plans:
            count, price = self.cost({who.row: target for who, target in places})
            gain = worth(node, self.here[node]) - (price - before[1])
            rank = (-gain, count, node)
            if count <= self.budget and gain > 0 and (best is None or rank < best[0]):
                best = rank, node, places
        return None if best is None else best[1:]

    def cost(self, other: dict[int, int]) -> tuple[int, int]:
        """The number and the total price of the jobs that move, if some jobs (by row) get the nodes in `other`."""
        moved = [who for node, lodgers in self.here.items() for who in lodgers if other.get(who.row, node) != who.node]
        return sum(who.jobs for who in moved), sum(who.price for who in moved)

    def near(self, gone: Sequence[int]) -> list[int]:
        """The nodes whose jobs are redistributed together: those cheap to empty first, then those with most room."""
        roomy = sorted(self.free, key=lambda node: (-self.free[node][0], node))
        return list(dict.fromkeys([*gone[: LOOKED_AT // 2], *roomy]))[:LOOKED_AT]

    def best_fit(self, gone: int) -> tuple[int, list[tuple[Lodger, int]]] | None:
        """Place the jobs of a node in the narrowest gaps of the other nodes, the largest job first."""
        free = {node: room for node, room in self.free.items() if node != gone}
        places = []
        for who in sorted(self.here[gone], key=lambda who: (who.asks, -who.row), reverse=True):
            fits = [node for node, room in free.items() if _fits(who.asks, room)]
            if not fits:
                return None
            target = min(fits, key=lambda node: (free[node], node))
            free[target] = _plus(free[target], who.asks, -1)
            places.append((who, target))
        return gone, places

    def dealt(self, group: tuple[int, ...], gone: int) -> tuple[int, list[tuple[Lodger, int]]] | None:
        """Redistribute all jobs of a group of nodes over all of these nodes but one, at the least price."""
        if gone in self.own.fixed or gone not in self.here:
            return None
        rest = [node for node in group if node != gone]
        if sum(who.asks[0] for who in self.here[gone]) > sum(self.free[node][0] for node in rest):
            return None
        jobs = sorted((who for node in group for who in self.here[node]), key=lambda who: (who.asks, -who.row))[::-1]
        free = {node: self.free[node] for node in rest}
        for node in rest:
            for who in self.here[node]:
                free[node] = _plus(free[node], who.asks, 1)
        found = _deal(jobs, free)
        return None if found is None else (gone, list(zip(jobs, found, strict=True)))

    def result(self) -> Emptied:
        done = [(who, node) for node, lodgers in self.here.items() for who in lodgers if who.node != node]
        done.sort(key=lambda move: move[0].row)
        return Emptied(tuple(done), tuple(self.emptied), sum(who.price for who, _ in done))


def _deal(jobs: Sequence[Lodger], free: Mapping[int, Room]) -> list[int] | None:
    """A node for each job, at the least price that branch and bound finds in STEPS steps; None if it finds none."""
    room, places = dict(free), list[int]()
    best: list[int] | None = None
    least, steps = -1, 0

    def place(k: int, price: int) -> None:
        nonlocal best, least, steps
        steps += 1
        if steps > STEPS or (best is not None and price >= least):
            return
        if k == len(jobs):
            best, least = list(places), price
            return
        who = jobs[k]
        for node in sorted(room, key=lambda node: (node != who.node, room[node], node)):
            if _fits(who.asks, room[node]):
                room[node] = _plus(room[node], who.asks, -1)
                places.append(node)
                place(k + 1, price + (who.price if node != who.node else 0))
                places.pop()
                room[node] = _plus(room[node], who.asks, 1)

    place(0, 0)
    return best


def _fits(asks: Room, room: Room) -> bool:
    return asks[0] <= room[0] and asks[1] <= room[1] and asks[2] <= room[2]


def _plus(room: Room, asks: Room, sign: int) -> Room:
    return (room[0] + sign * asks[0], room[1] + sign * asks[1], room[2] + sign * asks[2])
