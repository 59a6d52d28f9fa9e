"""Candidates for stopping, and the proof on the trial that a set of them makes room.

A set of candidates is the bits of one integer, as devices are in an allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from kant.cluster.shapes import Shape
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.queueing.turn import Placer


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A running job that may be stopped, or several that only stop together: a whole unit."""

    row: int
    allocation: Allocation  # what it holds
    milli: int  # milli-GPUs
    price: int  # milli-GPU-seconds of work that stopping it now would lose, never negative
    rank: tuple[int, ...]  # the smaller, the sooner it has to be the victim
    spare: bool = False  # only what an elastic gang has above its floor; it runs on


Admits = Callable[[Collection[Candidate]], bool]
"""Whether the quota lets the newcomer in when these have left. More victims never make it false."""


def members(chosen: int) -> Iterator[int]:
    """The places of the bits that are set, the lowest first."""
    while chosen:
        low = chosen & -chosen
        yield low.bit_length() - 1
        chosen ^= low


class Proof:
    """Tries sets on the trial: do they suffice? It remembers the verdicts and counts the placements."""

    def __init__(
        self, placer: Placer, shape: Shape, salt: int, ordered: Sequence[Candidate], admits: Admits | None
    ) -> None:
        self.placer, self.shape, self.salt = placer, shape, salt
        self.ordered = ordered
        self.admits = admits
        self.trials = 0
        self.verdicts: dict[int, bool] = {}
        self._out = 0  # who is evicted on the trial at the moment
        self._mark = placer.trial.checkpoint()

    def suffices(self, chosen: int) -> bool:
        """Whether the gang fits, and the quota admits it, once `chosen` have left."""
        verdict = self.verdicts.get(chosen)
        if verdict is None:
            verdict = self.verdicts[chosen] = self.admitted(chosen) and self._fits(chosen)
        return verdict

    def admitted(self, chosen: int) -> bool:
        return self.admits is None or self.admits([self.ordered[i] for i in members(chosen)])

    def _fits(self, chosen: int) -> bool:
        trial = self.placer.trial
        for i in members(self._out & ~chosen):
            trial.restore(self.ordered[i].allocation)
        for i in members(chosen & ~self._out):
            trial.evict(self.ordered[i].allocation)
        self._out = chosen
        self.trials += 1
        mark = trial.checkpoint()
        result = self.placer.place(self.shape, self.salt)
        trial.rollback(mark)
        return not isinstance(result, NoFit)

    def restore(self) -> None:
        """Leave everyone on the trial where he is."""
        for i in members(self._out):
            self.placer.trial.restore(self.ordered[i].allocation)
        self._out = 0

    def close(self, chosen: int | None) -> tuple[list[Candidate], Allocation] | None:
        """Leave the trial with `chosen` evicted and the gang placed, or as it was."""
        trial = self.placer.trial
        trial.rollback(self._mark)
        if chosen is None:
            return None
        victims = [self.ordered[i] for i in members(chosen)]
        for victim in victims:
            trial.evict(victim.allocation)
        placed = self.placer.place(self.shape, self.salt)
        assert not isinstance(placed, NoFit), "the same nodes gave another answer"
        return victims, placed
