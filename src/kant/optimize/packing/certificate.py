"""The result of a packer: an assignment, and its maximum distance from the optimum."""

from __future__ import annotations

from dataclasses import dataclass

from kant.optimize.packing.problem import Assignment, Problem


@dataclass(frozen=True, slots=True)
class Packing:
    """An assignment with its certificate.

    `proven`: no assignment is better in the order of the model. `bounds` has, for each tier, the maximum number of pods
    that can be placed while higher tiers keep as many as in `assignment`. `least` is a lower bound on the pods that an
    assignment moves or evicts if it places as many of each tier. `spent` is in the solver's deterministic seconds.
    """

    assignment: Assignment
    proven: bool
    bounds: tuple[int, ...]
    least: int
    spent: float


def trivial_bounds(problem: Problem) -> list[int]:
    """The number of pods of each tier."""
    return [problem.tier.count(t) for t in range(len(problem.priorities))]
