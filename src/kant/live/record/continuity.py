"""What a record keeps while its state is being replaced: jobs and pieces that are expected to return."""

from __future__ import annotations

from dataclasses import dataclass, field

from kant.model.units import SECOND

LATE = 10 * SECOND
"""A run from before the state was built counts as the run of the last state if it began at most this much later."""

NodeChange = tuple[int, int, int, int]
"""The index of a node, its status from then on, the time, and its lost devices, as bits."""


@dataclass(slots=True)
class EarlierState:
    """A job's past before the current state, which has it from `entered` on; it waited since `since`, if at all."""

    submit: int
    start: int
    wait: int
    preemptions: int
    entered: int = -1
    since: int = -1


@dataclass(slots=True)
class LeftJob:
    """A job that was live when its state was left, at `seen`: its row, and the pieces that it held."""

    row: int
    pieces: list[int]
    seen: int


@dataclass(slots=True)
class Change:
    """A change of states in progress. The last state was left at `seen`; it ends once the new one has all that existed.

    By row of the new state: the pieces that a job held, and their rows in the record.
    """

    seen: int
    pieces: dict[int, list[int]] = field(default_factory=dict)
    was: dict[int, list[int]] = field(default_factory=dict)
