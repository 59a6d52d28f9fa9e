"""Candidates for eviction for one waiting job, the newcomer. A set of candidates is the bits of one integer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.holders import PoolColumns
from kant.model.placement import WIDTH, Allocation


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A running job that may be stopped, with the jobs that stop with it; or the surplus of an elastic gang."""

    row: int
    allocation: Allocation  # what the job holds, or what the gang would give back
    milli: int  # milli-GPUs
    cost: int  # milli-GPU-seconds of work that stopping it now would lose, never negative
    rank: tuple[int, ...]  # smaller ranks are evicted first
    surplus: bool = False  # only what an elastic gang has above its floor; the gang runs on
    passed: bool = False  # the job started while the newcomer of higher priority waited: exempt from the cap

    @property
    def capped(self) -> int:
        """The milli-GPUs that count towards the cap of what victims may hold."""
        return 0 if self.passed else self.milli


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Candidates as columns, for the search. A `Candidate` object is created only when it is asked for.

    `ranks` has a row for each candidate: the numbers of its rank.
    """

    rows: Table
    held: Sequence[Allocation]
    milli: Table
    cost: Table
    ranks: Table
    passed: NDArray[np.bool_]
    made: Sequence[Candidate] = ()  # all candidates, if the pool was created from such objects

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Pool:
        """Create a pool from candidates."""
        columns = np.array([(who.row, who.milli, who.cost, who.passed) for who in candidates], dtype=np.int64)
        rows, milli, cost, passed = columns.reshape(-1, 4).T
        width = len(candidates[0].rank) if candidates else 0
        ranks = np.array([who.rank for who in candidates], dtype=np.int64).reshape(len(candidates), width)
        return cls(rows, [who.allocation for who in candidates], milli, cost, ranks, passed == 1, candidates)

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, place: int) -> Candidate:
        if self.made:
            return self.made[place]
        row, milli, cost = self.rows.item(place), self.milli.item(place), self.cost.item(place)
        rank, passed = tuple(self.ranks[place].tolist()), self.passed.item(place)
        return Candidate(row, self.held[place], milli, cost, rank, passed=passed)

    def __iter__(self) -> Iterator[Candidate]:
        return map(self.__getitem__, range(len(self)))

    def columns(self) -> PoolColumns:
        """Return the columns in the form that compiled code takes."""
        begin = np.array([0, *map(len, self.held)], dtype=np.int64).cumsum()
        pieces = np.concatenate([np.zeros((0, WIDTH), dtype=np.int64), *self.held])
        line = np.ascontiguousarray
        return PoolColumns(
            line(self.rows), pieces, begin, line(self.milli), line(self.cost), line(self.ranks), line(self.passed)
        )

    def take(self, places: Table) -> Pool:
        """Return a pool of the candidates at these indices, in this order."""
        at = places.tolist()
        return Pool(
            self.rows[places], [self.held[i] for i in at], self.milli[places], self.cost[places], self.ranks[places],
            self.passed[places], [self.made[i] for i in at] if self.made else (),
        )  # fmt: skip

    @property
    def capped(self) -> Table:
        """The milli-GPUs that count towards the cap of what victims may hold."""
        counted: Table = np.where(self.passed, 0, self.milli)
        return counted


Admits = Callable[[Iterable[Candidate]], bool]
"""Whether the quota admits the newcomer once these candidates have left. More victims never make it False."""


def members(chosen: int) -> list[int]:
    """Return the indices of the candidates in the set `chosen` (its bits that are 1), the lowest first."""
    places = []
    while chosen:
        low = chosen & -chosen
        places.append(low.bit_length() - 1)
        chosen ^= low
    return places
