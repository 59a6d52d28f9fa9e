"""Victims by node: which candidates would make a node host a pod, and which nodes do so at the least price.

This is arithmetic on a copy of the node rows, and only a guess at what the placer will say: fast, so that thousands
of candidates can be weighed, and proven afterwards on the trial (`victims_proof`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.model import placement as pl
from kant.model.job import Demand, PodGroup
from kant.model.mig import windows
from kant.model.placement import Allocation
from kant.model.units import GPU
from kant.queueing.victims_proof import members

FEW = 12
"""On a node with at most so many candidates a cheaper set than the greedy one is looked for."""

EVERY = 2 << FEW
"""Enough visits to see every set of `FEW`: for the last pod, and so for the only one, the best node is found."""

VISITS = 500
"""Most visits on one node for one number of pods while more than one pod has no place yet."""

NO_LIMIT = 1 << 40
NO_BOUND = 1 << 200
"""Above the weights of all candidates together."""


@dataclass(slots=True)
class Room:
    """What is free on a node: thousandths of each device (-1: there is none), thousandths of a core, MiB.

    `island` is how many of its devices, one after the other, NVLink joins; `slices` the MIG slices in use, as bits.
    """

    free: list[int]
    cpu: int
    memory: int
    island: int
    slices: list[int]

    def give(self, pieces: Allocation | list[list[int]], sign: int = 1) -> None:
        """Give back what `pieces` hold, or with `sign` -1 take it again."""
        for piece in pieces:
            slices = pl.slices_of_tag(int(piece[pl.TAG]))
            for device in members(int(piece[pl.MASK])):
                self.free[device] += sign * piece[pl.MILLI]
                self.slices[device] ^= slices
            self.cpu += sign * piece[pl.CPU]
            self.memory += sign * piece[pl.MEMORY]

    def pods(self, demand: Demand) -> int:
        """How many pods of `demand` fit: the most k for which no device serves more than k of them."""
        pods = NO_LIMIT
        if demand.mig:
            pods = len(self._places(demand))
        elif demand.gpus:
            pods = sum(_served(free, demand) for free in self._islands(demand))
        if demand.cpu:
            pods = min(pods, self.cpu // demand.cpu)
        if demand.memory:
            pods = min(pods, self.memory // demand.memory)
        return max(pods, 0)

    def host(self, demand: Demand, pods: int) -> None:
        """Take the room of `pods` that are known to fit: the tightest devices, for shares of several the loosest."""
        sign = -1 if demand.gpus > 1 and demand.milli < GPU else 1
        for device, window in self._places(demand)[:pods]:
            self.free[device] -= demand.milli
            self.slices[device] |= window
        for _ in range(pods if demand.gpus and not demand.mig else 0):
            first, last = 0, len(self.free)
            if demand.island:
                rooms = [_served(free, demand) for free in self._islands(demand)]
                tightest = min((room, i) for i, room in enumerate(rooms) if room)[1]
                first, last = tightest * self.island, (tightest + 1) * self.island
            fitting = [device for device in range(first, last) if self.free[device] >= demand.milli]
            for device in sorted(fitting, key=lambda device: (sign * self.free[device], device))[: demand.gpus]:
                self.free[device] -= demand.milli
        self.cpu -= pods * demand.cpu
        self.memory -= pods * demand.memory

    def _places(self, demand: Demand) -> list[tuple[int, int]]:
        """(device, slices) of every MIG instance of the profile that fits; those of one profile do not overlap."""
        found = windows(demand.mig, demand.milli) if demand.mig else ()
        return [
            (device, window)
            for device, free in enumerate(self.free)
            for window in found
            if free >= 0 and not self.slices[device] & window
        ]

    def _islands(self, demand: Demand) -> list[list[int]]:
        """What is free, by sets of devices in which a pod must lie."""
        if not demand.island or not self.island:
            return [self.free]
        return [self.free[first : first + self.island] for first in range(0, len(self.free), self.island)]


def _served(room: list[int], demand: Demand) -> int:
    """How many pods devices with so much free serve."""
    shares = [free // demand.milli for free in room if free >= demand.milli]
    pods = sum(shares) // demand.gpus
    while demand.gpus > 1 and pods and sum(min(one, pods) for one in shares) < demand.gpus * pods:
        pods -= 1
    return pods


@dataclass(slots=True)
class Option:
    """A node hosts `pods` more pods when `victims` leave; `turn` says for which state of the node that was found."""

    pods: int
    victims: int
    weight: int
    turn: int


class Hosts:
    """The admitted nodes and which candidates hold what on them."""

    def __init__(self, table: Table, admitted: Table, allocations: Sequence[Allocation]) -> None:
        self._slices = c.slices_at(table)
        self._rows = {int(node): table[node].tolist() for node in admitted}
        self._slots = c.devices_of(table)
        self._on: dict[int, dict[int, list[list[int]]]] = {node: {} for node in self._rows}
        self._nodes: list[list[int]] = []  # of each candidate
        for i, allocation in enumerate(allocations):
            own = []
            for piece in allocation.tolist():
                on = self._on.get(piece[pl.NODE])
                if on is not None:
                    on.setdefault(i, []).append(piece)
                    own.append(piece[pl.NODE])
            self._nodes.append(sorted(set(own)))

    def guess(
        self, groups: Sequence[PodGroup], weights: list[int], milli: list[int], allowed: int, start: int, cap: int
    ) -> int | None:
        """`start` and those of `allowed` that should leave so that all groups fit.

        Node by node: the one with the least weight per pod first, anew after each, since a job that has left one
        node has left its others as well. At most `cap` milli-GPUs leave; None where that is not enough. Choosing
        victims for each node and then the node is how kube-scheduler preempts for one pod.
        """
        return _Guess(self, weights, milli, allowed, cap).run(groups, start)

    def rooms(self) -> dict[int, Room]:
        """A fresh copy of what is free on each node."""
        return {
            node: Room(
                row[c.DEVICES : c.DEVICES + self._slots],
                row[c.CPU_FREE],
                row[c.MEMORY_FREE],
                row[c.ISLAND],
                row[self._slices : self._slices + self._slots],
            )
            for node, row in self._rows.items()
        }

    def on(self, node: int) -> dict[int, list[list[int]]]:
        """The candidates on a node, and their pieces there."""
        return self._on[node]

    def counts(self) -> list[int]:
        """On how many of the nodes each candidate lies."""
        return [len(nodes) for nodes in self._nodes]

    def nodes_of(self, candidate: int) -> list[int]:
        return self._nodes[candidate]


class _Guess:
    """One guess under way."""

    def __init__(self, hosts: Hosts, weights: list[int], milli: list[int], allowed: int, cap: int) -> None:
        self.hosts, self.weights, self.milli, self.allowed, self.cap = hosts, weights, milli, allowed, cap
        self.rooms = hosts.rooms()
        self.turns = dict.fromkeys(self.rooms, 0)
        self.chosen = 0

    def run(self, groups: Sequence[PodGroup], start: int) -> int | None:
        self._evict(start)
        if self.cap < 0:
            return None
        for group in sorted(groups, key=lambda group: -group.demand.gpus * group.demand.milli):
            if not self._host(group.demand, group.count):
                return None
        return self.chosen

    def _evict(self, victims: int) -> list[int]:
        """Let them leave all their nodes, and return these."""
        touched = set()
        for i in members(victims):
            self.cap -= self.milli[i]
            for node in self.hosts.nodes_of(i):
                self.rooms[node].give(self.hosts.on(node)[i])
                touched.add(node)
        for node in touched:
            self.turns[node] += 1
        self.chosen |= victims
        return sorted(touched)

    def _host(self, demand: Demand, left: int) -> bool:
        """Make room for `left` pods, node by node."""
        found: dict[int, Option | None] = {}
        bound = NO_BOUND
        for node in self.rooms:
            option = found[node] = self._option(node, demand, left, bound)
            if option is not None and left == 1:  # only the best node will be taken
                bound = option.weight
        heap = [(_rate(option), node) for node, option in found.items() if option is not None]
        heapify(heap)
        while left and heap:
            rate, node = heappop(heap)
            option = found[node]
            if option is None or rate != _rate(option):
                continue  # another entry stands for this node
            anew = [node]
            fits_cap = sum(self.milli[i] for i in members(option.victims)) <= self.cap
            if option.turn == self.turns[node] and option.pods <= left and fits_cap:
                anew = sorted({node, *self._evict(option.victims)})
                self.rooms[node].host(demand, option.pods)
                self.turns[node] += 1
                left -= option.pods
            for other in anew:
                option = found[other] = self._option(other, demand, left) if left else None
                if option is not None:
                    heappush(heap, (_rate(option), other))
        return left == 0

    def _option(self, node: int, demand: Demand, left: int, bound: int = NO_BOUND) -> Option | None:
        """The least weight per pod at which the node hosts 1, 2, 4, … up to `left` pods, all below `bound`."""
        room, turn = self.rooms[node], self.turns[node]
        now = min(room.pods(demand), left)
        if now:
            return Option(now, 0, 0, turn)
        loose = [i for i in self.hosts.on(node) if (self.allowed & ~self.chosen) >> i & 1]
        loose.sort(key=lambda i: (-self.weights[i], -i))
        pieces = [self.hosts.on(node)[i] for i in loose]
        cleared = Room(room.free.copy(), room.cpu, room.memory, room.island, room.slices.copy())
        for own in pieces:
            cleared.give(own)
        most = min(cleared.pods(demand), left)
        best: Option | None = None
        pods = 1
        while pods <= most:
            few = _Few(cleared, demand, pods, [self.weights[i] for i in loose], [self.milli[i] for i in loose], pieces)
            victims = few.search(self.cap, bound, EVERY if left == 1 else VISITS)
            if victims is not None:
                mask = sum(1 << loose[k] for k in victims)
                option = Option(pods, mask, sum(self.weights[loose[k]] for k in victims), turn)
                if best is None or _rate(option) < _rate(best):
                    best = option
            pods = most if pods < most < 2 * pods else 2 * pods
        return best


def _rate(option: Option) -> int:
    """Weight per pod, in parts of 2**20."""
    return (option.weight << 20) // option.pods


class _Few:
    """The victims of least weight on one node that make it host `pods`; candidates come heaviest first."""

    def __init__(
        self,
        cleared: Room,
        demand: Demand,
        pods: int,
        weights: list[int],
        milli: list[int],
        pieces: list[list[list[int]]],
    ) -> None:
        self.room, self.demand, self.pods = cleared, demand, pods
        self.weights, self.milli, self.pieces = weights, milli, pieces
        self.best: list[int] | None = None
        self.visits = 0

    def search(self, cap: int, bound: int, visits: int) -> list[int] | None:
        """Their places, or None where the cap or `bound`, which their weight must be below, is too tight.

        The room is left cleared.
        """
        self.least, self.limit = bound, visits
        if len(self.pieces) <= FEW:
            self._walk(0, 0, cap, [])
            return self.best
        spared = []
        for k, own in enumerate(self.pieces):
            self.room.give(own, -1)
            if self.room.pods(self.demand) >= self.pods:
                spared.append(k)
            else:
                self.room.give(own)
        for k in spared:
            self.room.give(self.pieces[k])
        kept = [k for k in range(len(self.pieces)) if k not in spared]
        light = sum(self.weights[k] for k in kept) < bound and sum(self.milli[k] for k in kept) <= cap
        return kept if light else None

    def _walk(self, k: int, weight: int, cap: int, out: list[int]) -> None:
        """Branch and bound: candidate `k` stays, if the pods then still fit; or it leaves."""
        self.visits += 1
        if cap < 0 or weight >= self.least or (self.best is not None and self.visits > self.limit):
            return
        if k == len(self.pieces):
            self.best, self.least = out.copy(), weight
            return
        own = self.pieces[k]
        self.room.give(own, -1)
        if self.room.pods(self.demand) >= self.pods:
            self._walk(k + 1, weight, cap, out)
        self.room.give(own)
        out.append(k)
        self._walk(k + 1, weight + self.weights[k], cap - self.milli[k], out)
        out.pop()
