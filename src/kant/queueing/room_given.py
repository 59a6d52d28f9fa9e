"""An upper bound on the room that jobs free when they stop, from their columns alone, without looking at any node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kant.cluster.columns import J_MILLI, J_PODS, J_SHAPE, devices_of
from kant.cluster.shapes import S_ELASTIC, S_SHARED, Shape
from kant.cluster.state import ClusterState
from kant.model.units import GPU

UNBOUNDED = 1 << 40
"""More pods than any gang has: the bound is unknown."""


def room_given(state: ClusterState, shape: Shape, rows: Sequence[int]) -> int:
    """Return an upper bound on the additional pods of a shape that fit once the jobs `rows` have stopped.

    It is `UNBOUNDED` for shares of a GPU, several groups, segments and affinity, and if one of `rows` is elastic.
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
    room = pods * max(devices_of(state.table) // demand.gpus, 1)  # each pod may have blocked a whole node
    if not (demand.cpu or demand.memory or demand.island):
        # Only GPUs count: k freed ones on a node serve at most ceil(k / gpus) pods. A share may free a whole GPU.
        devices = jobs[:, J_MILLI] // GPU + facts[:, S_SHARED] * pods
        room = np.minimum(room, (devices + pods * (demand.gpus - 1)) // demand.gpus)
    return int(room.sum())
