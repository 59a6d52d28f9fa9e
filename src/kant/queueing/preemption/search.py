"""Search for victims: a minimal set of running jobs that must stop so that a gang fits.

A set of candidates is the bits of one integer. Candidates are put in order once (rank, cost, milli-GPUs, row), so the
jobs up to a rank class are the low bits. Guesses by node are pruned and proven; among few candidates the best set is
found by trying all that could be better.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.placement import NODE, Allocation
from kant.model.status import NodeStatus
from kant.queueing.ports import Placer
from kant.queueing.preemption.by_node import CandidateNodes
from kant.queueing.preemption.candidate import Admits, Candidate, members
from kant.queueing.preemption.proof import Proof, drop_unneeded

TRIALS = 64
"""After this many trial placements the search takes the best set so far instead of looking for a better one."""

GUESS = 32
"""A guess by node counts as one trial placement for every 32 candidates."""

EXACT = 10
"""Up to this many candidates every set that could be better is tried: at most 2**EXACT trial placements."""


def choose(
    placer: Placer,
    shape: Shape,
    job_row: int,
    candidates: Sequence[Candidate],
    cap_milli: int,
    admits: Admits | None = None,
    *,
    exact: int = EXACT,
    trials: int = TRIALS,
) -> tuple[list[Candidate], Allocation] | None:
    """Return the candidates that must stop so that the whole gang fits, and the placement that proves it, or None.

    Of the sets found, the first by (worst rank, cost, milli-GPUs, number, rows) is taken that holds at most
    `cap_milli`, not counting jobs that passed the newcomer. Every member is needed: without it the gang would not fit,
    or `admits` would be false. With at most `exact` candidates it is the first of all sets within the cap. The same
    holds, except for the rows, for a gang of one pod without `admits` if no node has more than `FEW` candidates
    (`placement/clearing.py`). Otherwise refining ends after `trials` placements.

    On success the victims are evicted and the gang is placed on the trial; after None it is unchanged. Victims are in
    the order in which they are to be stopped.
    """
    if admits is not None and admits(()):
        admits = None  # more victims never make it false
    table = placer.trial.table
    own = (table[:, c.STATUS] == NodeStatus.IN_SERVICE) & (shape.pool_bits >> table[:, c.POOL] & 1 == 1)
    if shape.ask.node_sets:
        own &= placer.trial.state.shapes.admitting(shape, table[:, c.POOL])
    admitted = np.flatnonzero(own)
    lacking = shape.gpu_milli - int(table[admitted, c.FREE].sum())
    if lacking > cap_milli + sum([who.milli for who in candidates if who.passed]):
        return None
    ordered = sorted(candidates, key=lambda who: (who.rank, who.cost, who.milli, who.row))
    if (
        admits is None and not shape.has_affinity and not shape.wide
    ):  # jobs that hold nothing on these nodes free nothing
        ordered = [who for who in ordered if own[who.allocation[:, NODE]].any()]
    few = len(ordered) <= exact
    if few and len(shape.parts) == 1:  # a job over the cap is in no set, and one group needs no other
        ordered = [who for who in ordered if who.passed or who.milli <= cap_milli]
    proof = Proof(placer, shape, job_row, ordered, admits)
    best = Search(proof, admitted, lacking, cap_milli, trials).best(few)
    if best is None:
        proof.rollback()
        return None
    return proof.carry_out(best)


Key = tuple[tuple[int, ...], int, int, int, tuple[int, ...]]


class Search:
    """Looks for the cheapest set that suffices: greedily among many candidates, exactly among few."""

    def __init__(self, proof: Proof, admitted: Table, lacking: int, cap_milli: int, trials: int) -> None:
        self.proof = proof
        self.ordered = proof.ordered
        self.lacking = lacking
        self.cap = cap_milli
        self.monotone = len(proof.shape.parts) == 1 and not proof.shape.wide
        self.limit = trials
        self.admitted = admitted
        self.milli = [who.milli for who in self.ordered]
        self.capped = [0 if who.passed else who.milli for who in self.ordered]
        # One integer that sorts like (cost, milli, 1), also when summed over fewer than 2**20 jobs; and milli first.
        self.by_cost = [(who.cost << 60) + (who.milli << 20) + 1 for who in self.ordered]
        self.by_milli = [
            (capped << 100) + (who.cost << 20) + 1 for who, capped in zip(self.ordered, self.capped, strict=True)
        ]

    def best(self, few: bool) -> int | None:
        """Return the best set found (of all sets, with `few` candidates); None if none is found within the cap."""
        if self.proof.suffices(0):
            return 0
        if not self.proof.suffices(self.proof.everyone):
            return None
        if few and self.monotone:
            return self._exactly()
        if self.monotone and not self.proof.suffices(
            sum(1 << i for i, one in enumerate(self.capped) if one <= self.cap)
        ):
            return None
        self.proof.rollback()
        allocations = [who.allocation for who in self.ordered]
        self.nodes = CandidateNodes(self.proof.placer, self.proof.shape, self.admitted, allocations)
        best = self._greedily()
        if few:
            best = self._exactly(best)
        return None if best is None else self._minimal(best)

    def key(self, which: int) -> Key:
        """Return the sort key of a set: the smallest is the best."""
        who = self.proof.chosen(which)
        cost, milli = sum([one.cost for one in who]), sum([one.milli for one in who])
        return who[-1].rank if who else (), cost, milli, len(who), tuple(sorted([one.row for one in who]))

    def _greedily(self) -> int | None:
        """Return the best set in the lowest rank class in which one is found."""
        ranks = [who.rank for who in self.ordered]
        ends = [i + 1 for i, rank in enumerate(ranks) if i + 1 == len(ranks) or rank != ranks[i + 1]]
        top = len(ends) - 1
        low = bisect_left(range(top), True, key=lambda at: self.proof.suffices((1 << ends[at]) - 1))
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
        """Return the best set among the first `end` candidates: the cheapest, or the smallest if over the cap."""
        for weights in (self.by_cost, self.by_milli):
            found = []
            for which in self._constructions(end, weights):
                if sum([self.capped[i] for i in members(which)]) <= self.cap and self.proof.suffices(which):
                    found.append(which)
                if found and self.proof.trials >= self.limit:
                    break
            if found:
                return self._improved(min(found, key=self.key), end, weights)
        return None

    def _improved(self, best: int, end: int, weights: list[int]) -> int:
        """Return `best`, or a better set found by keeping one of its members in place, the heaviest first."""
        heavy = sorted(range(end), key=lambda i: (-weights[i], -i))
        for kept in [i for i in heavy if best >> i & 1]:
            if self.proof.trials >= self.limit:
                break
            self.proof.trials += end // GUESS  # the cost of a guess
            guess = self.nodes.guess(weights, self.capped, end, 0, self.cap, kept)
            if guess is not None and self.proof.suffices(guess):
                best = min(best, self.proof.drop_unneeded(guess, heavy), key=self.key)
        return best

    def _constructions(self, end: int, weights: list[int]) -> Iterator[int]:
        """Yield pruned sets of several greedy methods. They suffice, except for some gangs of several groups."""
        everyone = (1 << end) - 1
        light = sorted(range(end), key=lambda i: (weights[i], i))
        heavy = light[::-1]
        starts = [0]
        if self.proof.admits is not None:
            starts.append(drop_unneeded(everyone, heavy, self.proof.admitted))
        # A gang frees capacity on all of its nodes, so guess also with its weight divided among them.
        shared = [weight // max(len(own), 1) for weight, own in zip(weights, self.nodes.nodes_of, strict=True)]
        for rated in (weights, shared) if shared != weights else (weights,):
            for start in starts:
                guess = self.nodes.guess(rated, self.capped, end, start, self.cap)
                if guess is not None:
                    yield self.proof.drop_unneeded(self._extend(guess, light), heavy)
        yield self.proof.drop_unneeded(everyone, heavy)
        yield self.proof.drop_unneeded(everyone, sorted(heavy, key=lambda i: -(weights[i] // max(self.milli[i], 1))))

    def _extend(self, which: int, light: list[int]) -> int:
        """Return `which` with as few of the lightest others as are needed to suffice."""
        others = [i for i in light if not which >> i & 1]

        def with_first(count: int) -> int:
            return which | sum(1 << i for i in others[:count])

        return with_first(bisect_left(range(len(others)), True, key=lambda n: self.proof.suffices(with_first(n))))

    def _minimal(self, which: int) -> int:
        """Return `which` without unneeded members, pruned until no single member can be left out."""
        while True:
            smaller = self.proof.drop_unneeded(which, sorted(members(which), reverse=True))
            if smaller == which:
                return which
            which = smaller

    def _exactly(self, best: int | None = None) -> int | None:
        """Return the first of all sets by `key` that suffices; sets that are not better than `best` are not tried."""
        limit, needed, sets = None if best is None else self.key(best), 0, np.arange(1, 1 << len(self.ordered))
        if self.monotone:
            for i in range(len(self.ordered)):
                needed |= 0 if self.proof.suffices(self.proof.everyone & ~(1 << i)) else 1 << i
        chosen = sets[:, None] >> np.arange(len(self.ordered)) & 1
        milli, capped = [chosen @ np.array(amounts, dtype=np.int64) for amounts in (self.milli, self.capped)]
        left = sets[(milli >= self.lacking) & (capped <= self.cap) & (sets & needed == needed)]
        if self.monotone:
            for failed in [one for one, answer in self.proof.answers.items() if not answer]:
                left = left[left | failed != failed]
        left = np.array(sorted(left.tolist(), key=self.key), dtype=np.int64)
        while len(left):
            which = int(left[0])
            if limit is not None and self.key(which) >= limit:
                break
            if self.proof.suffices(which):
                return which
            left = left[left | which != which] if self.monotone else left[1:]
        return best
