"""What a packer found: an assignment, and how far from the best possible it can be at most."""

from __future__ import annotations

from dataclasses import dataclass

from kant.optimize.packing.problem import Assignment, Problem


@dataclass(frozen=True, slots=True)
class Packing:
    """An assignment with its certificate.

    `proven`: no assignment is better in the order of the model. `bounds` has the most pods of each tier that can be
    placed while every higher tier keeps as many as here. `least` is a number of pods that every assignment which places
    as many in each tier moves or evicts. `spent` is what the solver took, in deterministic seconds.
    """

    assignment: Assignment
    proven: bool
    bounds: tuple[int, ...]
    least: int
    spent: float


def trivial_bounds(problem: Problem) -> list[int]:
    """All pods of each tier."""
    return [problem.tier.count(t) for t in range(len(problem.priorities))]
