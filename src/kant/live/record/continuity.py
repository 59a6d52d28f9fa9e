"""What a record keeps while its state is being replaced: jobs and held devices that are expected in the next state."""

from __future__ import annotations

from dataclasses import dataclass, field

from kant.model.units import SECOND

LATE = 10 * SECOND
"""A run in a new state counts as the same as in the state before if it began at most this many microseconds later."""

NodeChange = tuple[int, int, int, int]
"""A change of a node: its index, its new status, the time, and a bit mask of its lost devices."""


@dataclass(slots=True)
class EarlierState:
    """A job's past before the current state, which has the job from `entered` on; it waited from `since` (-1: not)."""

    submit: int
    start: int
    wait: int
    preemptions: int
    entered: int = -1
    since: int = -1


@dataclass(slots=True)
class LeftJob:
    """A job that was live when its state was left, at `seen`: its row in the record, and the rows of its pieces."""

    row: int
    pieces: list[int]
    seen: int


@dataclass(slots=True)
class Change:
    """A change to a new state, in progress until that has all that existed before. The old state was left at `seen`.

    `pieces` and `was` have, by a job's row in the new state, the pieces that it held and its old row of the record.
    """

    seen: int
    pieces: dict[int, list[int]] = field(default_factory=dict)
    was: dict[int, list[int]] = field(default_factory=dict)
