"""Open space: what a job that is about to start may have of each node, by all that the core knows.

A driver asks for it that has to choose other nodes than the plan did, for rules among the pods of a gang that the core
cannot know. What is promised to others, or booked, is taken; quotas, GPU models and reservations are honoured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from kant.cluster.columns import DEVICES, HBD, POOL, STATUS, Table, devices_of
from kant.cluster.node_sets import admitting
from kant.cluster.shapes import Shape
from kant.model.job import LEVELS
from kant.model.placement import Allocation
from kant.model.status import NodeStatus
from kant.model.units import FOREVER
from kant.queueing.cycle_plan import NOTHING, CyclePlan
from kant.scheduler.cycle import Scheduler


class OpenSpace(NamedTuple):
    """`table` has what is free of each node. `admits` has for each group of the job which nodes take its pods, and
    `domains` the domain of each node of which one has to hold all pods; None where any may.
    """

    table: Table
    admits: tuple[np.ndarray, ...]
    domains: np.ndarray | None

    @property
    def devices(self) -> np.ndarray:
        """Free thousandths of each device of each node; -1 where there is no such device."""
        return self.table[:, DEVICES : DEVICES + devices_of(self.table)]


def open_space(
    scheduler: Scheduler, now: int, row: int, freed: Iterable[Allocation] = (), taken: Iterable[Allocation] = ()
) -> Iterator[OpenSpace]:
    """The space that is open to a waiting job now, once for each GPU model on which its quota lets it start.

    What is `freed` will be given back before it starts, and what is `taken` is somebody's already, or its own.
    """
    cycle = scheduler.begin(now)
    trial, moved = cycle.placer.trial, False
    for allocation in freed:
        trial.evict(allocation)
        moved = True
    for allocation in taken:
        trial.restore(allocation)
    try:
        for shape in _options(cycle, row, moved):
            mark = trial.checkpoint()
            for closed in _closed(cycle, row, shape):
                trial.restore(closed)
            table = trial.table.copy()
            trial.rollback(mark)
            yield OpenSpace(table, tuple(_admitting(cycle, shape, table)), _domains(shape, table))
    finally:  # whoever has found a place asks no further
        trial.rollback(0)


def _options(cycle: CyclePlan, row: int, moved: bool) -> Sequence[Shape]:
    """As what it may start. Where others stop for it their quota is counted as theirs still, and so not asked."""
    shape = cycle.state.shape_of(row)
    if not cycle.limited:
        return [shape]
    if cycle.admission.closed(row) is not None:
        return []
    options = cycle.admission.options(row, shape)
    return options if moved else [one for one in options if cycle.admission.shortage(row, one) is None]


def _closed(cycle: CyclePlan, row: int, shape: Shape) -> Iterator[Allocation]:
    """What is free and others have been promised, or have booked."""
    if cycle.forecast is not None and not shape.ask.reservation:
        duration = cycle.forecast.estimates.duration(cycle.state, row, shape.pods)
        yield cycle.reserved_space(min(cycle.now + duration, FOREVER))
    if cycle.state.books and cycle.booked.has_begun(row):
        pieces = cycle.booked.pieces(row, cycle.placer.trial.table)
        yield pieces if len(pieces) else NOTHING


def _admitting(cycle: CyclePlan, shape: Shape, table: Table) -> Iterator[np.ndarray]:
    for _, demand in shape.parts:
        open_to = admitting(cycle.state.shapes.demands[demand], table[:, POOL])
        yield (table[:, STATUS] == NodeStatus.IN_SERVICE.value) & open_to


def _domains(shape: Shape, table: Table) -> np.ndarray | None:
    if shape.level < 0 or not shape.required:
        return None
    return np.arange(len(table)) if shape.level == LEVELS.index("node") else table[:, HBD + shape.level - 1]
