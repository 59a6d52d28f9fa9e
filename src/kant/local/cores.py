"""Chooses the CPU cores of a run: as many as its job requests, the least used cores first."""

from __future__ import annotations

from collections.abc import Iterable

from kant.model.placement import CPU

Place = list[list[int]]


def counted(place: Place) -> int:
    """Return the milli-cores allocated at a place; 0: the run is not limited to certain cores."""
    return sum(piece[CPU] for piece in place)


def share(cores: tuple[int, ...], milli: int, others: Iterable[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """Return the least used `cores` for `milli` milli-cores. `others` has the cores and milli-cores of each other run.

    No two runs share a core if all request whole cores and fit. Empty if no cores, or more than exist, are requested.
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
