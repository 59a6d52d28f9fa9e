"""Placement in two steps: a domain of the topology first, then nodes inside it.

A gang that requests a level of the topology, or whose policy prefers one, is placed in one domain of that level
(`gang.py`). The same holds for a gang that is divided into segments (`segments.py`), or that has affinity or
anti-affinity to its affinity group (`anti_affinity.py`).
"""

from __future__ import annotations

from typing import Protocol

from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Trial
from kant.model.decision import NoFit
from kant.model.placement import NODE, Allocation
from kant.placement.pieces import PieceBuffer
from kant.placement.topology.domain_policy import DomainPolicy
from kant.placement.topology.gang import GangPlacement
from kant.placement.topology.segments import in_rank_order


class Zone(Protocol):
    """Nodes that other jobs should avoid: those with 1 in `closed`, which `refresh` updates."""

    closed: Table

    def refresh(self) -> None: ...


class DomainPlacement:
    """Places jobs of one shape by domains.

    If `outside` has a zone, jobs that fit outside it are placed outside, other jobs on any nodes. With `alone` no job
    of its affinity group runs.
    """

    def __init__(
        self,
        anywhere: DomainPolicy,
        outside: tuple[DomainPolicy, Zone] | None,
        shape: Shape,
        trial: Trial,
        pieces: PieceBuffer,
        alone: bool,
    ) -> None:
        self.shape = shape
        self.trial = trial
        self.topology = anywhere.topology
        self.affinity_group = shape.affinity.group if shape.affinity is not None else ""
        self._asks_members = bool(self.affinity_group) and shape.has_affinity and not alone
        self._zone = outside[1] if outside is not None else None
        policies = (outside[0], anywhere) if outside is not None else (anywhere,)
        self._gangs = [gang for policy in policies for gang in _ways(policy, shape, pieces)]
        """The ways to place the gang, in order: the first that finds a place is used."""

    def place(self, job_row: int, held: Allocation | None = None) -> Allocation | NoFit:
        """Place and take the whole gang, in the order of the topology; or return why it does not fit.

        `held` is what an elastic gang already holds. With it, the shape is that of the additional pods. They are placed
        near `held`, in its domain if the gang requires one.
        """
        members = self.trial.held_by(self.affinity_group) if self._asks_members else ()
        if self._zone is not None:
            self._zone.refresh()
            self._gangs[0].capacity.close(self._zone.closed)
        failure: NoFit | None = None
        for gang in self._gangs:
            result = gang.place(job_row, members) if held is None else gang.extend(job_row, held)
            if isinstance(result, NoFit):
                failure = result
                continue
            allocation = gang.pieces.rows[:result]
            if gang.at_once:
                allocation = allocation.copy()
            elif self.shape.cuts:
                allocation = in_rank_order(gang.table, gang.parts(), self.shape.cuts)
            else:
                allocation = allocation[self.topology.ranks[allocation[:, NODE]].argsort(kind="stable")]
            self.trial.placed(allocation, self.affinity_group)
            return allocation
        assert failure is not None
        return failure

    def at_once(self) -> GangPlacement | None:
        """Return the placement that needs one compiled call; None if gangs of this shape need more."""
        return self._gangs[0] if len(self._gangs) == 1 and self._gangs[0].at_once and not self._asks_members else None

    def may_fit(self) -> bool:
        """Return whether some domain of the required level, or the cluster, holds each group alone."""
        return self._gangs[-1].may_fit()

    def missing(self) -> int | None:
        """Return how many pods the cluster cannot hold; None if that does not decide whether the gang fits."""
        shape = self.shape
        if len(shape.parts) > 1 or shape.required or shape.cuts or (shape.affinity and shape.has_affinity):
            return None
        return self._gangs[-1].missing()


def _ways(policy: DomainPolicy, shape: Shape, pieces: PieceBuffer) -> list[GangPlacement]:
    """Return the ways to place a gang, with a fallback: pods that only prefer to be apart may share a domain."""
    affinity = shape.affinity
    if affinity is None or affinity.apart < 0:
        return [GangPlacement(policy, shape, pieces)]
    from kant.placement.topology.anti_affinity import AntiAffinityPlacement  # loaded with the first such shape

    ways = (True,) if affinity.apart_required else (True, False)
    return [AntiAffinityPlacement(policy, shape, pieces, strict) for strict in ways]
