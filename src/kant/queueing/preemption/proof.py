"""The proof on the trial that evicting a set of candidates frees enough.

Only the placer decides feasibility. For a gang of one group it is monotone: more room never makes it fit less. The
groups of one gang are placed one after the other, so for several groups it is not quite monotone. Hence every returned
set has been tried on the trial.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.queueing.ports import Placer
from kant.queueing.preemption.candidate import Admits, Candidate, members


class Proof:
    """Tries sets of candidates on the trial. It remembers the answers and counts the placements."""

    def __init__(
        self, placer: Placer, shape: Shape, job_row: int, ordered: Sequence[Candidate], admits: Admits | None = None
    ) -> None:
        self.placer, self.shape, self.job_row = placer, shape, job_row
        self.ordered = ordered
        self.admits = admits
        self.counts: Table = np.zeros(2, dtype=np.int64)  # first the trial placements
        self.which: Table = np.zeros(len(ordered), dtype=np.int64)
        self.answers: dict[int, bool] = {}
        self._out = 0  # the candidates that are evicted on the trial at the moment
        self._mark = placer.trial.checkpoint()

    @property
    def everyone(self) -> int:
        """The set of all candidates."""
        return (1 << len(self.ordered)) - 1

    def chosen(self, which: int) -> list[Candidate]:
        """Return the candidates of a set, in order."""
        return [self.ordered[i] for i in members(which)]

    def suffices(self, which: int) -> bool:
        """Return whether the gang fits, and the quota admits it, once the candidates of a set have left."""
        answer = self.answers.get(which)
        if answer is None:
            answer = self.answers[which] = self.admitted(which) and self._fits(which)
        return answer

    def admitted(self, which: int) -> bool:
        """Return whether the quota admits the job once the candidates of a set have left."""
        return self.admits is None or self.admits(self.chosen(which))

    def shortest_prefix(self) -> int | None:
        """Return the shortest prefix of the candidates that suffices, by doubling and bisection; None if none does."""
        count = 1
        while count < len(self.ordered) and not self.suffices((1 << count) - 1):
            count *= 2
        count = min(count, len(self.ordered))
        if count == 0 or not self.suffices((1 << count) - 1):
            return None
        return (1 << bisect_left(range(count), True, count // 2 + 1, key=lambda n: self.suffices((1 << n) - 1))) - 1

    def drop_unneeded(self, which: int, order: Iterable[int]) -> int:
        """Return the set without unneeded candidates, tested in this order."""
        return drop_unneeded(which, [i for i in order if which >> i & 1], self.suffices)

    def _fits(self, which: int) -> bool:
        trial = self.placer.trial
        for i in members(self._out & ~which):
            trial.restore(self.ordered[i].allocation)
        for i in members(which & ~self._out):
            trial.evict(self.ordered[i].allocation)
        self._out = which
        self.counts[0] += 1
        return self.placer.missing(self.shape, self.job_row) == 0

    def rollback(self) -> None:
        """Restore all candidates on the trial."""
        self.placer.trial.rollback(self._mark)
        self._out = 0

    def carry_out(self, which: int) -> tuple[list[Candidate], Allocation]:
        """Evict a set that suffices, and place the gang. The trial then has exactly these changes."""
        self.rollback()
        victims = self.chosen(which)
        for victim in victims:
            self.placer.trial.evict(victim.allocation)
        placed = self.placer.place(self.shape, self.job_row)
        assert not isinstance(placed, NoFit), "the same nodes gave another answer"
        return victims, placed


def drop_unneeded(which: int, order: Sequence[int], suffices: Callable[[int], bool]) -> int:
    """Return `which` without unneeded members, tested in this order.

    Members are tested in batches that double after each success. If `suffices` is monotone, the result is that of
    testing one by one, in about k log(n / k) tests for k members of n: the idea of U. Junker, QuickXplain, AAAI 2004.
    """
    place, batch = 0, 1
    while place < len(order):
        fewer = which & ~sum([1 << i for i in order[place : place + batch]])
        if suffices(fewer):
            which, place, batch = fewer, place + batch, 2 * batch
        elif batch > 1:
            batch //= 2
        else:
            place += 1
    return which


def keep_in_place(
    placer: Placer, shape: Shape, placed: Allocation, victims: Sequence[Candidate], admits: Admits | None = None
) -> list[Candidate]:
    """Return the victims without those whose place is still free next to the placed gang. These are restored, last
    first.

    Call it with the victims evicted and the gang placed on the trial. It makes no further placement.
    """
    trial, needed = placer.trial, list(victims)
    for victim in reversed(victims):
        others = [other for other in needed if other is not victim]
        if trial.is_free(victim.allocation) and (admits is None or admits(others)):
            trial.restore(victim.allocation)
            if trial.keeps_apart(shape, placed):
                needed = others
            else:
                trial.evict(victim.allocation)
    return needed
