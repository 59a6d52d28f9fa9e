"""Victims by node: which candidates must leave a node so that pods fit there, and which nodes are the cheapest.

A guess is made on a draft of the nodes, with a kernel of the placement (`placement/clearing.py`). It is fast enough for
thousands of candidates; the search then proves it on the trial. kube-scheduler preempts for one pod in the same way: it
chooses victims for each node, and then the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.holders import Holders, Weights
from kant.cluster.shapes import Shape
from kant.model.placement import NODE, WIDTH, Allocation
from kant.queueing.ports import Placer
from kant.queueing.preemption.candidate import members

NO_RATE = 1 << 200
"""More than any weight."""


@dataclass(slots=True)
class Option:
    """A node has room for `pods` more pods once `victims` leave. It holds for this `version` of the node."""

    pods: int
    victims: list[int]
    version: int
    rate: int
    """Weight per pod, in parts of 2**20."""


class Weighed(NamedTuple):
    """The candidates by node under some weights: in the kernel's format, and as lists.

    `options` caches the options of the untouched nodes, by (demand, pods, among, cap), for many guesses.
    """

    holders: Holders
    first: list[int]
    who: list[int]
    options: dict[tuple[int, ...], dict[int, Option]]


class CandidateNodes:
    """The nodes that a job may use, and what the candidates hold on them."""

    def __init__(self, placer: Placer, shape: Shape, nodes: Table, allocations: Sequence[Allocation]) -> None:
        self.draft = placer.draft()  # with all candidates in place
        # The largest pods first. Equal groups stay in order.
        self.parts = [shape.parts[group] for group in sorted(
            range(len(shape.parts)),
            key=lambda group: -shape.groups[group].demand.gpus * shape.groups[group].demand.milli,
        )]  # fmt: skip
        self.nodes = nodes
        place_of = {node: place for place, node in enumerate(nodes.tolist())}
        self.nodes_of: list[list[int]] = []  # of each candidate, as places in `nodes`
        self.pieces: list[Allocation] = []  # of each candidate, on these nodes
        entries: list[tuple[int, int, int, int]] = []  # place of the node, candidate, where its pieces begin and end
        end = 0
        for i, allocation in enumerate(allocations):
            places = np.array([place_of.get(node, -1) for node in allocation[:, NODE].tolist()], dtype=np.int64)
            by_node = np.argsort(places, kind="stable")[np.count_nonzero(places < 0) :]
            own, first = np.unique(places[by_node], return_index=True)
            bounds = [*(end + first).tolist(), end + len(by_node)]
            entries += zip(own.tolist(), repeat(i), bounds, bounds[1:], strict=False)
            end = bounds[-1]
            self.nodes_of.append(own.tolist())
            self.pieces.append(allocation[by_node])
        self.entries = np.array(entries, dtype=np.int64).reshape(-1, 4)
        self.rows = np.concatenate([np.zeros((0, WIDTH), dtype=np.int64), *self.pieces])
        self._weighed: dict[tuple[int, ...], Weighed] = {}

    def weighed(self, weights: list[int]) -> Weighed:
        """Return the candidates by node, the heaviest of each node first."""
        found = self._weighed.get(tuple(weights))
        if found is None:
            heavy = sorted(range(len(weights)), key=lambda i: (-weights[i], -i))
            rank: Table = np.empty(len(heavy), dtype=np.int64)
            rank[heavy] = np.arange(len(heavy))
            place, who, start, end = self.entries[np.lexsort((rank[self.entries[:, 1]], self.entries[:, 0]))].T
            first = np.searchsorted(place, np.arange(len(self.nodes) + 1))
            widest = int(np.diff(first).max(initial=0))
            holders = Holders(self.nodes, first, who.copy(), start.copy(), end.copy(), self.rows, widest)
            found = self._weighed[tuple(weights)] = Weighed(holders, first.tolist(), who.tolist(), {})
        return found

    def guess(
        self, weights: list[int], milli: list[int], among: int, start: int, cap: int, kept: int = -1
    ) -> int | None:
        """Return `start` and those of the first `among` candidates that should leave so that the job fits, or None.

        `kept` is a candidate that may not leave, -1 for none. The node with the least weight per pod comes first. After
        each node the others are weighed again, since a job that leaves one node leaves all of its nodes. At most `cap`
        milli-GPUs leave.
        """
        guess = _Guess(self, weights, milli, among, cap)
        if start:
            guess.evict(members(start))
        if guess.cap < 0:
            return None
        for group, (pods, demand) in enumerate(self.parts):
            if group == 0 and not start:
                key = demand, pods, among, cap
                if key not in guess.weighed.options:
                    guess.weighed.options[key] = guess.options(range(len(self.nodes)), demand, pods)
                options = dict(guess.weighed.options[key])
                if kept >= 0:
                    guess.keep(kept, options, demand, pods)
            else:
                options = guess.options(range(len(self.nodes)), demand, pods)
            if not guess.host(pods, demand, options):
                return None
        return guess.chosen


class _Guess:
    """The state of one guess. Nodes are places in `nodes.nodes`."""

    def __init__(self, nodes: CandidateNodes, weights: list[int], milli: list[int], among: int, cap: int) -> None:
        self.nodes, self.weights, self.milli, self.cap = nodes, weights, milli, cap
        self.draft = nodes.draft.copy()
        self.versions = [0] * len(nodes.nodes)
        self.chosen = 0
        self.weighed = nodes.weighed(weights)
        self.costs = Weights.of(weights, milli, [i < among for i in range(len(weights))])

    def keep(self, kept: int, found: dict[int, Option], demand: int, left: int) -> None:
        """Keep one candidate in place, and compute the options of its nodes again in `found`."""
        self.costs.may_leave[kept] = False
        for place in self.nodes.nodes_of[kept]:
            found.pop(place, None)
        found.update(self.options(self.nodes.nodes_of[kept], demand, left))

    def evict(self, victims: Iterable[int]) -> set[int]:
        """Evict the victims from all their nodes on the draft, and return these nodes."""
        touched = set[int]()
        for i in victims:
            self.chosen |= 1 << i
            self.cap -= self.milli[i]
            self.costs.may_leave[i] = False
            self.draft.free(self.nodes.pieces[i])
            touched.update(self.nodes.nodes_of[i])
        for place in touched:
            self.versions[place] += 1
        return touched

    def host(self, left: int, demand: int, found: dict[int, Option]) -> bool:
        """Free capacity for `left` pods of a demand, node by node. Updates `found`, the options of the nodes."""
        heap = [(option.rate, place) for place, option in found.items()]
        heapify(heap)
        while left and heap:
            rate, place = heappop(heap)
            option = found.get(place)
            if option is None or rate != option.rate:
                continue  # a newer entry replaces this one
            changed = {place}
            within_cap = sum([self.milli[i] for i in option.victims]) <= self.cap
            if option.version == self.versions[place] and option.pods <= left and within_cap:
                changed |= self.evict(option.victims)
                self.draft.put(int(self.nodes.nodes[place]), demand, option.pods)
                self.versions[place] += 1
                left -= option.pods
            for other in changed:
                found.pop(other, None)
            again = self.options(sorted(changed), demand, left) if left else {}
            for other, option in again.items():
                found[other] = option
                heappush(heap, (option.rate, other))
        return left == 0

    def options(self, places: Sequence[int], demand: int, left: int) -> dict[int, Option]:
        """Return for each node the option of least weight per pod among those for 1, 2, 4, … up to `left` pods.

        For the last pod only the best node matters, so a node no better than those before it has no option.
        """
        found: dict[int, Option] = {}
        at = np.array(places, dtype=np.int64)
        pods, leaving = self.draft.clear(at, demand, left, self.weighed.holders, self.costs, self.cap)
        for k in pods[:, 0].nonzero()[0].tolist():
            place, best = places[k], NO_RATE
            for level, count in enumerate(pods[k].tolist()):
                if count == 0:
                    break
                entry = self.weighed.first[place]
                victims = [self.weighed.who[entry + e] for e in leaving[k, level].nonzero()[0].tolist()]
                rate = (sum([self.weights[i] for i in victims]) << 20) // count
                if rate < best:
                    best = rate
                    found[place] = Option(count, victims, self.versions[place], rate)
        return found
