"""Victims by node: which candidates have to leave a node so that it takes pods, and which nodes are the cheapest.

A guess is made on a draft of the nodes, with the capacity kernel of the placement. It is fast, so that thousands of
candidates can be weighed; the search proves it on the trial afterwards. Choosing victims for each node and then the
node is how kube-scheduler preempts for one pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.placement import NODE, Allocation
from kant.queueing.ports import Draft, Placer
from kant.queueing.preemption.candidate import members

FEW = 12
"""On a node with at most so many candidates a cheaper set than the greedy one is looked for."""

EVERY = 2 << FEW
"""Enough visits to see every set of `FEW`: for the last pod, and so for the only one, the best node is found."""

VISITS = 500
"""Most visits on one node for one number of pods while more than one pod has no place yet."""

NO_BOUND = 1 << 200
"""Above the weights of all candidates together."""


@dataclass(slots=True)
class Option:
    """A node takes `pods` more pods when `victims` leave. `version` is that of the node for which this holds."""

    pods: int
    victims: int
    weight: int
    version: int

    @property
    def rate(self) -> int:
        """Weight per pod, in parts of 2**20."""
        return (self.weight << 20) // self.pods


class CandidateNodes:
    """The nodes that a job may use, and which candidates hold what on them."""

    def __init__(self, placer: Placer, shape: Shape, nodes: Table, allocations: Sequence[Allocation]) -> None:
        self.placer = placer
        self.table = placer.draft().table  # while all candidates are where they are
        # The largest pods first. Equal groups stay in order.
        self.parts = [shape.parts[group] for group in sorted(
            range(len(shape.parts)),
            key=lambda group: -shape.groups[group].demand.gpus * shape.groups[group].demand.milli,
        )]  # fmt: skip
        self.pieces: dict[int, dict[int, Allocation]] = {node: {} for node in nodes.tolist()}
        self.nodes_of: list[list[int]] = []
        for i, allocation in enumerate(allocations):
            own = sorted(set(allocation[:, NODE].tolist()) & self.pieces.keys())
            self.nodes_of.append(own)
            for node in own:
                self.pieces[node][i] = allocation[allocation[:, NODE] == node] if len(allocation) > 1 else allocation

    def guess(self, weights: list[int], milli: list[int], allowed: int, start: int, cap: int) -> int | None:
        """`start` and those of `allowed` that should leave so that all groups of the job fit; None for none.

        The node with the least weight per pod comes first. After each the others are weighed again, since a job that
        leaves one node leaves all of its nodes. At most `cap` milli-GPUs leave.
        """
        guess = _Guess(self, weights, milli, allowed, cap)
        guess.evict(start)
        if guess.cap < 0 or not all(guess.host(pods, demand) for pods, demand in self.parts):
            return None
        return guess.chosen


class _Guess:
    """One guess under way."""

    def __init__(self, nodes: CandidateNodes, weights: list[int], milli: list[int], allowed: int, cap: int) -> None:
        self.nodes, self.weights, self.milli, self.allowed, self.cap = nodes, weights, milli, allowed, cap
        self.draft = nodes.placer.draft()
        self.draft.table[:] = nodes.table
        self.versions = dict.fromkeys(nodes.pieces, 0)
        self.chosen = 0

    def evict(self, victims: int) -> set[int]:
        """Let them leave all their nodes, and return these."""
        touched = set[int]()
        for i in members(victims):
            self.cap -= self.milli[i]
            for node in self.nodes.nodes_of[i]:
                self.draft.free(self.nodes.pieces[node][i])
                touched.add(node)
        for node in touched:
            self.versions[node] += 1
        self.chosen |= victims
        return touched

    def host(self, left: int, demand: int) -> bool:
        """Free capacity for `left` pods of a demand, node by node."""
        found: dict[int, Option | None] = {}
        bound = NO_BOUND
        for node in self.versions:
            option = found[node] = self._option(node, demand, left, bound)
            if option is not None and left == 1:  # only the best node is taken
                bound = option.weight
        heap = [(option.rate, node) for node, option in found.items() if option is not None]
        heapify(heap)
        while left and heap:
            rate, node = heappop(heap)
            option = found[node]
            if option is None or rate != option.rate:
                continue  # another entry stands for this node
            changed = {node}
            within_cap = sum(self.milli[i] for i in members(option.victims)) <= self.cap
            if option.version == self.versions[node] and option.pods <= left and within_cap:
                changed |= self.evict(option.victims)
                self.draft.put(node, demand, option.pods)
                self.versions[node] += 1
                left -= option.pods
            for other in sorted(changed):
                option = found[other] = self._option(other, demand, left) if left else None
                if option is not None:
                    heappush(heap, (option.rate, other))
        return left == 0

    def _option(self, node: int, demand: int, left: int, bound: int = NO_BOUND) -> Option | None:
        """The least weight per pod at which the node takes 1, 2, 4, … up to `left` pods, all below `bound`."""
        version, draft = self.versions[node], self.draft
        now = min(draft.fitting(node, demand), left)
        if now:
            return Option(now, 0, 0, version)
        there = [i for i in self.nodes.pieces[node] if (self.allowed & ~self.chosen) >> i & 1]
        if not there:
            return None
        there.sort(key=lambda i: (-self.weights[i], -i))
        before = draft.table[node].copy()
        clearing = _Clearing(draft, node, demand, [self.nodes.pieces[node][i] for i in there])
        weights, milli = [self.weights[i] for i in there], [self.milli[i] for i in there]
        most = min(draft.fitting(node, demand), left)
        best: Option | None = None
        pods = 1
        while pods <= most:
            victims = clearing.cheapest(pods, weights, milli, self.cap, bound, EVERY if left == 1 else VISITS)
            if victims is not None:
                mask = sum(1 << there[k] for k in victims)
                option = Option(pods, mask, sum(weights[k] for k in victims), version)
                if best is None or option.rate < best.rate:
                    best = option
            pods = most if pods < most < 2 * pods else 2 * pods
        draft.table[node] = before
        return best


class _Clearing:
    """A node of the draft that all its candidates have left; they come heaviest first."""

    def __init__(self, draft: Draft, node: int, demand: int, pieces: list[Allocation]) -> None:
        self.draft, self.node, self.demand, self.pieces = draft, node, demand, pieces
        for own in pieces:
            draft.free(own)

    def cheapest(
        self, pods: int, weights: list[int], milli: list[int], cap: int, bound: int, visits: int
    ) -> list[int] | None:
        """The places of those of least weight that have to leave for so many pods; the others fit beside these.

        None where the cap, or `bound`, which their weight must be below, is too tight.
        """
        self.pods, self.weights, self.milli = pods, weights, milli
        self.best: list[int] | None = None
        self.least, self.visits = bound, visits
        if len(self.pieces) <= FEW:
            self._branch(0, 0, cap, [])
            return self.best
        stay = [k for k in range(len(self.pieces)) if self._can_stay(k)]
        for k in stay:
            self.draft.free(self.pieces[k])
        leave = [k for k in range(len(self.pieces)) if k not in stay]
        light = sum(weights[k] for k in leave) < bound and sum(milli[k] for k in leave) <= cap
        return leave if light else None

    def _can_stay(self, k: int) -> bool:
        """Whether the pods still fit if candidate `k` takes its place again. If so it has taken it."""
        self.draft.take(self.pieces[k])
        if self.draft.fitting(self.node, self.demand) >= self.pods:
            return True
        self.draft.free(self.pieces[k])
        return False

    def _branch(self, k: int, weight: int, cap: int, out: list[int]) -> None:
        """Branch and bound: candidate `k` stays, if the pods then still fit; or it leaves."""
        self.visits -= 1
        if cap < 0 or weight >= self.least or (self.best is not None and self.visits < 0):
            return
        if k == len(self.pieces):
            self.best, self.least = out.copy(), weight
            return
        if self._can_stay(k):
            self._branch(k + 1, weight, cap, out)
            self.draft.free(self.pieces[k])
        out.append(k)
        self._branch(k + 1, weight + self.weights[k], cap - self.milli[k], out)
        out.pop()
