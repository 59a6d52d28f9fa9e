"""Chooses the cores of a run: as many as its job requests, and the least used ones."""

from __future__ import annotations

from collections.abc import Iterable

from kant.model.placement import CPU

Place = list[list[int]]


def counted(place: Place) -> int:
    """Return the thousandths of a core that count for a place; 0: cores are not limited."""
    return sum(piece[CPU] for piece in place)


def share(cores: tuple[int, ...], milli: int, others: Iterable[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Return cores for `milli` thousandths; each of the `others` is cores with the total of thousandths held on them.

    While all jobs request whole cores and fit, no two share one. Empty if nothing is requested, or more than there are.
    """
    wanted = -(-milli // 1000)
    if not 0 < wanted <= len(cores):
        return ()
    load = dict.fromkeys(cores, 0)
    for held, used in others:
        for core in held:
            if core in load:
                load[core] += used // len(held)
    return tuple(sorted(sorted(cores, key=lambda core: (load[core], core))[:wanted]))
