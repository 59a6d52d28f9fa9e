"""What a record keeps while its state is replaced by another: jobs and pieces that it expects to see again."""

from __future__ import annotations

from dataclasses import dataclass, field

from kant.model.units import SECOND

LATE = 10 * SECOND
"""A run that a state has from before it was built is the one of the last state, if it began this late at most."""

NodeChange = tuple[int, int, int, int]
"""The index of a node, its status from then on, since when, and the devices that it lacks, as bits."""


@dataclass(slots=True)
class EarlierState:
    """What a job had been through before the state that has it now. A state has it from `entered` on; if the job
    went on waiting through the change of states it had waited since `since`."""

    submit: int
    start: int
    wait: int
    preemptions: int
    entered: int = -1
    since: int = -1


@dataclass(slots=True)
class Left:
    """A job that lived when its state was left, at `seen`: its row, and the pieces that it held."""

    row: int
    pieces: list[int]
    seen: int


@dataclass(slots=True)
class Change:
    """A change of states that is going on, the last one left at `seen`, until all that was there is in the new one.

    By its rows: the pieces that jobs held, and their rows in the record, as they were.
    """

    seen: int
    pieces: dict[int, list[int]] = field(default_factory=dict)
    was: dict[int, list[int]] = field(default_factory=dict)
