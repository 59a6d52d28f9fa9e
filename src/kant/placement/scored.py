"""Placement by score: the best of all nodes, wherever they are."""

from __future__ import annotations

from typing import Protocol

from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial, move
from kant.model.decision import NoFit
from kant.model.placement import GROUP, Allocation
from kant.placement.capacity import NodeScores
from kant.placement.fits import mixed
from kant.placement.group_order import PLACED, place_groups
from kant.placement.kernels import COUNT_ALL
from kant.placement.pieces import PieceBuffer


class Route(Protocol):
    """How jobs of one shape are placed."""

    def place(self, job_row: int) -> Allocation | NoFit:
        """Place and take the whole gang, or return why it does not fit."""
        ...

    def may_fit(self) -> bool:
        """Return False if `place` is known to fail."""
        ...

    def missing(self) -> int | None:
        """Return how many pods do not fit, if this can be counted without placing; otherwise None."""
        ...


class ScoredPlacement:
    """Places jobs of one shape on the nodes that its policy scores highest.

    `groups` has, for each group, its node scores and whether a node is filled before the next is chosen.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        trial: Trial,
        shape: Shape,
        groups: list[tuple[NodeScores, bool]],
        seed: int,
        pieces: PieceBuffer,
    ) -> None:
        self.snapshot, self.trial = snapshot, trial
        self.shapes = snapshot.state.shapes
        self.numbers = shape.numbers
        self.groups = [(*part, *how) for part, how in zip(shape.parts, groups, strict=True)]
        self.seed = seed
        self.pieces = pieces
        self.affinity_group = shape.affinity.group if shape.affinity is not None else ""
        self._job_row = 0
        self._used = 0
        self._failure: NoFit | None = None

    def place(self, job_row: int) -> Allocation | NoFit:
        """Place and take the whole gang, or return the first group that does not fit and how many of its pods do."""
        if len(self.groups) == 1:
            used = self._place_group(0, job_row, 0)
            if used < 0:
                return NoFit(0, self.groups[0][0], -1 - used)
            if self.numbers[0]:
                self.pieces.rows[:used, GROUP] = self.numbers[0]
        else:
            self._job_row = job_row
            if not place_groups(len(self.groups), self._attempt):
                assert self._failure is not None
                return self._failure
            used = self._used
        allocation = self.pieces.rows[:used].copy()
        self.trial.placed(allocation, self.affinity_group)
        return allocation

    def may_fit(self) -> bool:
        """Return whether each group, taken alone, finds as many free places as it has pods."""
        for group, (pods, *_) in enumerate(self.groups):
            if -1 - self._place_group(group, 0, 0, COUNT_ALL) < pods:
                return False
        return True

    def missing(self) -> None:
        """Return None: counting would visit every node, while placing stops once the gang is placed."""
        return None

    def _attempt(self, order: list[int]) -> int:
        used = 0
        for group in order:
            result = self._place_group(group, self._job_row, used)
            if result < 0:
                if used:
                    move(self.snapshot.table, self.snapshot.log, self.pieces.rows[:used], self.shapes.demands, False)
                self._failure = NoFit(group, self.groups[group][0], -1 - result)
                return group
            self.pieces.rows[used:result, GROUP] = self.numbers[group]
            used = result
        self._used = used
        return PLACED

    def _place_group(self, group: int, job_row: int, used: int, asked: int = 0) -> int:
        """Return the rows of pieces used once the group is placed, or -1 - f if only f pods fit.

        `asked` overrides the number of pods.
        """
        pods, demand, nodes, by_node = self.groups[group]
        slot = nodes.slot_of.get(demand)
        if slot is None:
            (slot,) = nodes.slots([demand])
        snapshot = self.snapshot
        return nodes.kernel(
            snapshot.table, snapshot.log, self.shapes.demands, demand, nodes.typical_pods, nodes.params, nodes.order,
            nodes.index, nodes.marks, slot, asked or pods, by_node, mixed(self.seed, job_row) if nodes.fresh else 0,
            self.pieces.rows, used,
        )  # fmt: skip
