"""Which cores a run may use: as many as its job counts, and of these the ones that others use least."""

from __future__ import annotations

from collections.abc import Iterable

from kant.model.placement import CPU

Place = list[list[int]]


def counted(place: Place) -> int:
    """Thousandths of a core that a place takes; 0: they are not counted."""
    return sum(piece[CPU] for piece in place)


def share(cores: tuple[int, ...], milli: int, others: Iterable[tuple[tuple[int, ...], int]]) -> tuple[int, ...]:
    """The cores for `milli` thousandths, where the `others` have these cores for so many thousandths each.

    While all have whole cores, and no more than there are, no two share one. Empty where nothing is counted, or there
    are not so many cores.
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
