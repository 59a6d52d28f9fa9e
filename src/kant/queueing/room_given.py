"""How much room jobs give when they stop: a bound from their columns alone, without looking at any node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster.columns import J_MILLI, J_PODS, J_SHAPE, devices_of
from kant.cluster.shapes import S_ELASTIC, S_SHARED, Shape
from kant.cluster.state import ClusterState
from kant.model.units import GPU

UNBOUNDED = 1 << 40
"""More pods than any gang has."""


def room_given(state: ClusterState, shape: Shape, rows: Sequence[int]) -> int:
    """For how many more pods of a shape there is room, at most, once the jobs `rows` have stopped.

    It is `UNBOUNDED` where that cannot be told: for shares of a GPU, segments and affinity, and of elastic jobs.
    """
    demand = shape.groups[0].demand
    if (
        demand.gpus == 0
        or demand.milli < GPU
        or len(shape.parts) > 1
        or shape.cuts
        or (shape.affinity and shape.has_affinity)
    ):
        return UNBOUNDED if rows else 0
    jobs = state.jobs.take(rows, axis=0)
    facts, pods = state.shapes.facts[jobs[:, J_SHAPE]], jobs[:, J_PODS]
    if facts[:, S_ELASTIC].any():
        return UNBOUNDED
    room = pods * max(devices_of(state.table) // demand.gpus, 1)  # each pod may have kept a whole node from being used
    if not (demand.cpu or demand.memory or demand.island):
        # Only GPUs count: k of a node serve ceil(k / gpus) pods. A share may be all that kept its GPUs from being free.
        devices = jobs[:, J_MILLI] // GPU + facts[:, S_SHARED] * pods
        room = np.minimum(room, (devices + pods * (demand.gpus - 1)) // demand.gpus)
    return int(room.sum())
