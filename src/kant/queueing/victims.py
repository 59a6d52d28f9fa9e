"""Victim sets: which running jobs have to stop so that a gang fits; proven on the trial, and nobody stops in vain.

A set of candidates is the bits of one integer, as devices are in an allocation. Candidates are put in order once
(rank, price, milli-GPUs, row), so the jobs up to a rank class are the low bits.

Feasibility is asked of the placer and of nobody else. For a gang of one group it is monotone: whoever leaves more
room never makes it fit less. Groups of one gang are placed one after the other, so for several groups it is not
quite; hence every set that is returned, and that none of its members can be spared, has been seen on the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus
from kant.queueing.turn import Placer
from kant.queueing.victims_by_node import Hosts
from kant.queueing.victims_proof import Admits, Candidate, Proof, members

__all__ = ["Admits", "Candidate", "choose"]

TRIALS = 64
"""After so many trial placements the search takes the best set it has, instead of looking for a better one."""

GUESS = 32
"""A guess by node among so many candidates counts like one trial placement."""

EXACT = 10
"""Up to so many candidates every set that could be better is tried: at most 2**EXACT trial placements."""


def choose(
    placer: Placer,
    shape: Shape,
    salt: int,
    candidates: Sequence[Candidate],
    cap_milli: int,
    admits: Admits | None = None,
    *,
    exact: int = EXACT,
    trials: int = TRIALS,
) -> tuple[list[Candidate], Allocation] | None:
    """Who has to stop so that the whole gang fits, and the placement that proves it; None where nobody is found.

    Of the sets found it is the first by (worst rank, price, milli-GPUs, number, rows) that holds no more than
    `cap_milli`. Without any one of its members the gang would not fit, or `admits` would say no. With at most
    `exact` candidates it is the first of all sets within the cap; and so it is, but for the rows, for a gang of one pod
    without `admits`, where no node has more than `FEW` candidates. Otherwise refining ends after `trials` placements.

    On the trial the victims are then evicted and the gang is placed; after None it is as it was. Victims come in the
    order in which they are to be stopped.
    """
    if admits is not None and admits(()):
        admits = None  # more victims never make it false
    table = placer.trial.table
    admitted = np.flatnonzero((table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (shape.pool_bits >> table[:, c.POOL]) & 1)
    if shape.gpu_milli - int(table[admitted, c.FREE].sum()) > cap_milli:
        return None
    ordered = sorted(candidates, key=lambda who: (who.rank, who.price, who.milli, who.row))
    if admits is None:  # whoever holds nothing on these nodes makes no room there
        own = np.zeros(len(table), dtype=np.bool_)
        own[admitted] = True
        ordered = [who for who in ordered if own[who.allocation[:, NODE]].any()]
    proof = Proof(placer, shape, salt, ordered, admits)
    best = Search(proof, admitted, cap_milli, trials).best(exact)
    return proof.close(best)


Key = tuple[tuple[int, ...], int, int, int, tuple[int, ...]]


class Search:
    """Looks for the cheapest set that suffices: greedily among many candidates, exactly among few."""

    def __init__(self, proof: Proof, admitted: Table, cap_milli: int, trials: int) -> None:
        self.proof = proof
        self.ordered = proof.ordered
        self.cap = cap_milli
        self.limit = trials
        self.admitted = admitted
        self.milli = [who.milli for who in self.ordered]
        # One integer that sorts like (price, milli, 1), also when summed over fewer than 2**20 jobs; and milli first.
        self.by_price = [(who.price << 60) + (who.milli << 20) + 1 for who in self.ordered]
        self.by_milli = [(who.milli << 100) + (who.price << 20) + 1 for who in self.ordered]

    def best(self, exact: int) -> int | None:
        """The best set found; None where no set is found that suffices within the cap."""
        if self.proof.suffices(0):
            return 0
        if not self.proof.suffices((1 << len(self.ordered)) - 1):
            return None
        self.proof.restore()
        table, allocations = self.proof.placer.trial.table, [who.allocation for who in self.ordered]
        self.hosts = Hosts(table, self.admitted, allocations)
        best = self._greedily()
        if len(self.ordered) <= exact:
            best = self._exactly(best)
        return None if best is None else self._minimal(best)

    def key(self, chosen: int) -> Key:
        """What makes one set better than another: the smaller, the better."""
        who = [self.ordered[i] for i in members(chosen)]
        price, milli = sum(one.price for one in who), sum(one.milli for one in who)
        return who[-1].rank if who else (), price, milli, len(who), tuple(sorted(one.row for one in who))

    def _greedily(self) -> int | None:
        """The best set in the lowest rank class in which one is found."""
        ranks = [who.rank for who in self.ordered]
        ends = [i + 1 for i, rank in enumerate(ranks) if i + 1 == len(ranks) or rank != ranks[i + 1]]
        low, top = 0, len(ends) - 1
        high = top
        while low < high:  # the lowest class that suffices when all up to it stop
            middle = (low + high) // 2
            if self.proof.suffices((1 << ends[middle]) - 1):
                high = middle
            else:
                low = middle + 1
        best = self._up_to(ends[low])
        if best is not None or low == top:
            return best
        best, high = self._up_to(ends[top]), top
        while best is not None and high - low > 1 and self.proof.trials < self.limit:
            middle = (low + high) // 2
            found = self._up_to(ends[middle])
            if found is None:
                low = middle
            else:
                best, high = found, middle
        return best

    def _up_to(self, end: int) -> int | None:
        """The best set among the first `end` candidates: the cheapest, or where the cap forbids it the smallest."""
        for weights in (self.by_price, self.by_milli):
            found = []
            for chosen in self._constructions(end, weights):
                if sum(self.milli[i] for i in members(chosen)) <= self.cap and self.proof.suffices(chosen):
                    found.append(chosen)
                if found and self.proof.trials >= self.limit:
                    break
            if found:
                return self._improved(min(found, key=self.key), end, weights)
        return None

    def _improved(self, best: int, end: int, weights: list[int]) -> int:
        """`best`, or what is better when one of its members, the heaviest first, may not stop."""
        everyone = (1 << end) - 1
        heavy = sorted(range(end), key=lambda i: (-weights[i], -i))
        for spared in [i for i in heavy if best >> i & 1]:
            if self.proof.trials >= self.limit:
                break
            self.proof.trials += end // GUESS  # what a guess takes
            guess = self.hosts.guess(
                self.proof.shape.groups, weights, self.milli, everyone & ~(1 << spared), 0, self.cap
            )
            if guess is not None and self.proof.suffices(guess):
                chosen = self._prune(guess, heavy)
                if self.key(chosen) < self.key(best):
                    best = chosen
        return best

    def _constructions(self, end: int, weights: list[int]) -> Iterator[int]:
        """Sets that have been pruned, by several greedy ways. They suffice, but for some gangs of several groups."""
        everyone = (1 << end) - 1
        light = sorted(range(end), key=lambda i: (weights[i], i))
        heavy = light[::-1]
        starts = [0]
        if self.proof.admits is not None:
            starts.append(_spare(everyone, heavy, self.proof.admitted))
        # A gang that leaves several nodes makes room on all: also with its weight divided among them.
        shared = [weight // max(nodes, 1) for weight, nodes in zip(weights, self.hosts.counts(), strict=True)]
        for priced in (weights, shared) if shared != weights else (weights,):
            for start in starts:
                guess = self.hosts.guess(self.proof.shape.groups, priced, self.milli, everyone, start, self.cap)
                if guess is not None:
                    yield self._prune(self._extend(guess, light), heavy)
        yield self._prune(everyone, heavy)
        yield self._prune(everyone, sorted(heavy, key=lambda i: -(weights[i] // max(self.milli[i], 1))))

    def _extend(self, chosen: int, light: list[int]) -> int:
        """`chosen` and as few of the lightest others as suffice with them."""
        others = [i for i in light if not chosen >> i & 1]
        low, high = 0, len(others)
        while low < high:
            middle = (low + high) // 2
            if self.proof.suffices(chosen | sum(1 << i for i in others[:middle])):
                high = middle
            else:
                low = middle + 1
        return chosen | sum(1 << i for i in others[:high])

    def _prune(self, chosen: int, order: list[int]) -> int:
        return _spare(chosen, [i for i in order if chosen >> i & 1], self.proof.suffices)

    def _minimal(self, chosen: int) -> int:
        """`chosen` without whom it can do without, until leaving out any one has been seen to be too much."""
        while True:
            smaller = self._prune(chosen, sorted(members(chosen), reverse=True))
            if smaller == chosen:
                return chosen
            chosen = smaller

    def _exactly(self, best: int | None) -> int | None:
        """The first set of all by `key` that suffices; a set that is not better than `best` is not tried."""
        limit = None if best is None else self.key(best)
        keys = {chosen: self.key(chosen) for chosen in range(1, 1 << len(self.ordered))}
        better = [one for one, key in keys.items() if key[2] <= self.cap and (limit is None or key < limit)]
        monotone = len(self.proof.shape.parts) == 1
        failed = [one for one, verdict in self.proof.verdicts.items() if not verdict]
        for chosen in sorted(better, key=keys.__getitem__):
            if monotone and any(chosen | other == other for other in failed):
                continue
            if self.proof.suffices(chosen):
                return chosen
        return best


def _spare(chosen: int, order: list[int], suffices: Callable[[int], bool]) -> int:
    """`chosen` without those that can be spared, asked in this order; as many at once as have been spared before.

    Where sufficing is monotone, the result is that of asking one by one, in about k log(n / k) questions for k
    members of n: the idea of U. Junker, QuickXplain, AAAI 2004.
    """
    place, batch = 0, 1
    while place < len(order):
        fewer = chosen & ~sum(1 << i for i in order[place : place + batch])
        if suffices(fewer):
            chosen, place, batch = fewer, place + batch, 2 * batch
        elif batch > 1:
            batch //= 2
        else:
            place += 1
    return chosen
