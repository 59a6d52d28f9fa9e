"""Placement under affinity rules that look beyond one node, or that concern other pods of the same gang.

If every rule concerns one node and one group, capacity covers it, and any placement satisfies it. Otherwise the best
nodes are chosen as by score (`scored.py`), with a kernel that skips nodes closed by pods elsewhere. This is exact for
one group with one such rule; other gangs that find no place in this way are searched pod by pod (`rule_search.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from kant.cluster.asks import is_entangled, is_wide
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial
from kant.model.decision import NoFit
from kant.model.job import LEVELS
from kant.model.placement import NODE, Allocation
from kant.model.rules import PodRules
from kant.placement.capacity import NodeScores
from kant.placement.pieces import PieceBuffer
from kant.placement.scored import Route, ScoredPlacement
from kant.placement.topology.index import COLUMNS


def needs_search(rules: tuple[PodRules, ...]) -> bool:
    """Return whether choosing the best nodes one after the other may miss an existing place."""
    wide = [len(one.affinity) + len(one.spread) + len(one.anti_affinity) for one in rules if is_wide(one)]
    return any(one.affinity for one in rules) or len(wide) > 1 or max(wide, default=0) > 1 or is_entangled(rules)


class RuledPlacement:
    """Places jobs of one shape subject to affinity rules."""

    def __init__(
        self,
        snapshot: Snapshot,
        trial: Trial,
        shape: Shape,
        groups: list[tuple[NodeScores, bool]],
        seed: int,
        pieces: PieceBuffer,
    ) -> None:
        self.trial, self.shape, self.pieces = trial, shape, pieces
        self.greedy: Route = ScoredPlacement(snapshot, trial, shape, groups, seed, pieces)
        self._searches = needs_search(shape.ask.rules)

    def place(self, job_row: int, held: Allocation | None = None) -> Allocation | NoFit:
        """Place and take the whole gang, or return the first group that does not fit and how many of its pods do.

        `held` is what an elastic gang already holds. With it, the shape is that of the additional pods.
        """
        shape, best = self.shape, None
        for nodes in self._domains(held) if shape.level >= 0 else ():
            with self.trial.within(nodes):
                result = self._place(job_row)
            if not isinstance(result, NoFit):
                return result
            if best is None or result.pods - result.fits < best.pods - best.fits:
                best = result
        if best is not None and shape.required:
            return NoFit(best.group, best.pods, best.fits, LEVELS[shape.level])
        return self._place(job_row)

    def _domains(self, held: Allocation | None) -> Iterator[Collection[int]]:
        """Yield the nodes of each domain of the requested level, first those that hold pods of the gang."""
        table, level = self.trial.table, self.shape.level
        domains = table[:, COLUMNS[level - 1]] if level else np.arange(len(table))
        order = np.unique(domains).tolist()
        if held is not None:
            own = domains[held[:, NODE]].tolist()
            order = (
                sorted(set(own), key=own.index)
                if self.shape.required
                else sorted(order, key=lambda one: one not in own)
            )
        for domain in order:
            yield np.flatnonzero(domains == domain).tolist()

    def _place(self, job_row: int) -> Allocation | NoFit:
        result = self.greedy.place(job_row)
        if not isinstance(result, NoFit) or not self._searches:
            return result
        from kant.placement.rule_search import search_places  # few gangs need it

        used = search_places(self.trial, self.shape, self.pieces.rows)
        if used < 0:
            return result
        allocation = self.pieces.rows[:used].copy()
        self.trial.placed(allocation, "")
        return allocation

    def may_fit(self) -> bool:
        """Return whether each group alone has as many free places as it has pods, ignoring rules beyond one node."""
        return self.greedy.may_fit()

    def missing(self) -> None:
        """Return None: the gang must be placed to find out."""
        return None
