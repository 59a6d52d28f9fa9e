"""Candidates for eviction. A set of them is the bits of one integer, as devices are in an allocation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from kant.model.placement import Allocation


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A running job that may be stopped, with the jobs that stop with it; or the surplus of an elastic gang."""

    row: int
    allocation: Allocation  # what it holds
    milli: int  # milli-GPUs
    cost: int  # milli-GPU-seconds of work that stopping it now would lose, never negative
    rank: tuple[int, ...]  # smaller ranks are evicted first
    surplus: bool = False  # only what an elastic gang has above its floor; it runs on
    passed: bool = False  # it started while the newcomer of higher priority waited: exempt from the cap

    @property
    def capped(self) -> int:
        """The milli-GPUs that count towards the most that victims may hold."""
        return 0 if self.passed else self.milli


Admits = Callable[[Collection[Candidate]], bool]
"""Whether the quota admits the newcomer once these have left. More victims never make it false."""


def members(chosen: int) -> list[int]:
    """Return the places of the bits that are set, the lowest first."""
    places = []
    while chosen:
        low = chosen & -chosen
        places.append(low.bit_length() - 1)
        chosen ^= low
    return places
