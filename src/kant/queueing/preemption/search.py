"""Search for victims: a minimal set of running jobs that must stop so that a gang fits.

Candidates are sorted once by rank, cost, milli-GPUs and row. `placement/victims.py` searches: it guesses sets node by
node, removes what is not needed and proves the result. Among few candidates it tries every set that could be better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import Candidates, in_columns
from kant.cluster.quota_condition import NO_CONDITION
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit
from kant.model.placement import NODE, Allocation
from kant.queueing.ports import Placer
from kant.queueing.preemption.candidate import Admits, Candidate, Pool, members
from kant.queueing.preemption.rules import QuotaRule

TRIALS = 64
"""After this many trial placements the search takes the best set so far instead of looking for a better one."""

EXACT = 10
"""Up to this many candidates every set that could be better is tried: at most 2**EXACT trial placements."""


Chosen = tuple[list[Candidate], Allocation]
"""Victims, and the placement of the newcomer."""


class _Asked:
    """Asks the placer, on the trial, whether a set of candidates suffices. Remembers and counts the answers.

    For a gang of one group this is monotone: more room never makes it fit less. The groups of one gang are placed one
    after the other, so for several groups it is not quite monotone.
    """

    def __init__(self, placer: Placer, shape: Shape, job_row: int, pool: Pool, admits: Admits | None) -> None:
        self.placer, self.shape, self.job_row = placer, shape, job_row
        self.pool, self.admits = pool, admits
        self.counts: Table = np.zeros(2, dtype=np.int64)  # at index 0, the number of trial placements
        self.which: Table = np.zeros(len(pool.held), dtype=np.int64)
        self.answers: dict[int, bool] = {}
        self._out = 0  # the set of candidates that are evicted on the trial now, as bits
        self._mark = placer.trial.checkpoint()

    def chosen(self, which: int) -> list[Candidate]:
        """Return the candidates of a set, in order."""
        return [self.pool[i] for i in members(which)]

    def suffices(self, which: int) -> bool:
        """Return whether the gang fits, and the quota admits it, once the candidates of a set have left."""
        answer = self.answers.get(which)
        if answer is None:
            answer = self.answers[which] = self.admitted(which) and self._fits(which)
        return answer

    def admitted(self, which: int) -> bool:
        """Return whether the quota admits the job once the candidates of a set have left."""
        return self.admits is None or self.admits(self.chosen(which))

    def _fits(self, which: int) -> bool:
        trial = self.placer.trial
        for i in members(self._out & ~which):
            trial.restore(self.pool.held[i])
        for i in members(which & ~self._out):
            trial.evict(self.pool.held[i])
        self._out = which
        self.counts[0] += 1
        return self.placer.missing(self.shape, self.job_row) == 0

    def rollback(self) -> None:
        """Restore all candidates on the trial."""
        self.placer.trial.rollback(self._mark)
        self._out = 0

    def carry_out(self, which: int) -> Chosen:
        """Evict a set that suffices and place the gang, on the trial. Call `rollback` first."""
        return _carry_out(self.placer, self.shape, self.job_row, self.chosen(which))


def _carry_out(placer: Placer, shape: Shape, job_row: int, victims: list[Candidate]) -> Chosen:
    """Evict victims that suffice, and place the gang, on the trial."""
    for victim in victims:
        placer.trial.evict(victim.allocation)
    placed = placer.place(shape, job_row)
    assert not isinstance(placed, NoFit), "the same nodes gave another answer"
    return victims, placed


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
) -> Chosen | None:
    """Search among `candidates`; for the result see `search`."""
    return search(placer, shape, job_row, Pool.of(candidates), cap_milli, admits, exact=exact, trials=trials)[0]


def search(
    placer: Placer,
    shape: Shape,
    job_row: int,
    pool: Pool,
    cap_milli: int,
    admits: Admits | None = None,
    *,
    exact: int = EXACT,
    trials: int = TRIALS,
) -> tuple[Chosen | None, bool]:
    """Return the candidates that must stop so that the whole gang fits, and the placement that proves it, or None; and
    whether the search was exact, so that None proves that there is no such set.

    A set may hold at most `cap_milli`, without jobs that passed the newcomer. Of the sets found, the first by (worst
    rank, cost, milli-GPUs, number, rows) is taken. Every member is needed: without it the gang would not fit, or
    `admits` would be False. With at most `exact` candidates the result is the first of all sets; also for a gang of one
    pod without `admits` if no node has too many candidates (`on_one_node`). Otherwise the search ends after `trials`
    trial placements with the best set so far.

    If victims are found, they are evicted and the gang is placed on the trial; else the trial is unchanged. Victims are
    in the order in which they are to be stopped.
    """
    own = placer.nodes_of(shape)
    condition = NO_CONDITION if admits is None else admits.condition(pool) if isinstance(admits, QuotaRule) else None
    domains = None if condition is None else placer.counted_domains(shape)
    if condition is not None and domains is not None:
        chosen, found, proven = placer.draft().counted_victims(
            _groups(shape), shape.gpu_milli, own, domains, pool.columns(), condition, cap_milli, exact, trials
        )
        return _carry_out(placer, shape, job_row, [pool[i] for i in chosen.tolist()]) if found else None, proven
    if admits is not None and admits(()):  # more victims never make it false
        admits = None
    if admits is not None and not admits(pool):
        return None, True
    admitted = np.flatnonzero(own)
    lacking = shape.gpu_milli - int(placer.trial.table[admitted, c.FREE].sum())
    if lacking > cap_milli + int(pool.milli[pool.passed].sum()):
        return None, True
    order, monotone = np.lexsort((pool.rows, pool.milli, pool.cost, *pool.ranks.T[::-1])), len(shape.parts) == 1
    if admits is None and not shape.has_affinity and not shape.wide and pool.held:
        begin = np.array([0, *map(len, pool.held)], dtype=np.int64).cumsum()  # without pieces on `own` a job is no help
        near = np.logical_or.reduceat(own[np.concatenate(pool.held)[:, NODE]], begin[:-1])
        order = order[near[order]]
    few = len(order) <= exact
    if few and monotone:  # a job that alone exceeds the cap is in no permitted set
        order = order[pool.capped[order] <= cap_milli]
    pool, monotone = pool.take(order), monotone and not shape.wide
    asked = _Asked(placer, shape, job_row, pool, admits)
    draft, columns = placer.draft(), _columns(pool, admitted, few and monotone)
    if shape.pods == 1 and not few and admits is None and not shape.has_affinity:
        alone = draft.on_one_node(_groups(shape), columns, cap_milli)
        best = None if alone is None else _as_bits(alone)
        if best is not None and (best == 0 or asked.suffices(best)):
            proven = best > 0 or asked.suffices(0)
            asked.rollback()
            return asked.carry_out(best) if proven else None, True
    which = draft.victims(_groups(shape), columns, cap_milli, trials, few and monotone, asked, monotone)
    best = None if which is None else _as_bits(which)
    if few and not monotone:
        best = _of_all_sets(asked, best, lacking, cap_milli)
    asked.rollback()
    return None if best is None else asked.carry_out(best), few


def _as_bits(which: Table) -> int:
    return sum([1 << i for i in which.nonzero()[0].tolist()])


def _columns(pool: Pool, nodes: Table, few: bool) -> Candidates:
    """Return sorted candidates as the columns that compiled code takes."""
    rank = np.zeros(len(pool.held), dtype=np.int64)
    rank[1:] = (pool.ranks[1:] != pool.ranks[:-1]).any(axis=1).cumsum()
    rows, pieces, begin, milli, cost, *_ = pool.columns()
    return in_columns(pieces, begin, rank, cost, milli, pool.capped, rows, nodes, few)


def _groups(shape: Shape) -> Table:
    """Return pods and demand of each group, the group with the largest pods first. Equal groups stay in order."""
    sizes = [group.demand.gpus * group.demand.milli for group in shape.groups]
    return np.array([shape.parts[i] for i in sorted(range(len(sizes)), key=lambda i: -sizes[i])], dtype=np.int64)


Key = tuple[tuple[int, ...], int, int, int, tuple[int, ...]]


def _of_all_sets(asked: _Asked, best: int | None, lacking: int, cap: int) -> int | None:
    """Return the first of all sets within the cap that suffices, or `best` if that one comes first.

    For gangs of several groups, which may fit better with less room.
    """

    def key(which: int) -> Key:
        who = asked.chosen(which)
        cost, milli = sum([one.cost for one in who]), sum([one.milli for one in who])
        return who[-1].rank if who else (), cost, milli, len(who), tuple(sorted([one.row for one in who]))

    limit, everyone = None if best is None else key(best), range(1, 1 << len(asked.pool))
    within = [
        which for which, who in zip(everyone, map(asked.chosen, everyone), strict=True)
        if sum([one.milli for one in who]) >= lacking and sum([one.capped for one in who]) <= cap
    ]  # fmt: skip
    for which in sorted(within, key=key):
        if limit is not None and key(which) >= limit:
            break
        if asked.suffices(which):
            return which
    return best
