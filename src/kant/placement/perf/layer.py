"""What one layer of a transformer computes and sends in a step, and how long its two halves take.

A layer is attention, then experts. With S GPUs of a node sharing each part of the layer (tensor and expert-sharding
parallelism), the experts' half is, chunk by chunk: dispatch (all to all between nodes), all-gather inside the node, the
experts' GEMMs, reduce-scatter inside the node, combine (all to all back). It is cut into `degree` chunks, so that the
streams overlap (Pan et al., FSMoE, ASPLOS 2025, sections 3 and 4). The attention half gathers, computes and scatters.
Gradients of other layers are summed between nodes meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import compiled_at_once, inlined
from kant.placement.perf.streams import COMPUTE, INTER, INTRA, Floats, StreamTask, StreamTimes, play, run

DEGREES = (1, 2, 4, 8)
"""Numbers of chunks into which the experts' half may be cut, as in FSMoE."""

CONTENTION = 0.68
"""Relative speed of each message stream while both run, fitted to FSMoE's table 5, for nodes with GPUs on PCIe."""


class Cost(NamedTuple):
    """The cost of an operation: `alpha` seconds, and `beta` seconds for each unit (a byte, or a multiply-add)."""

    alpha: float
    beta: float

    def of(self, units: float, calls: int = 1) -> float:
        """Return the seconds for `units` units in `calls` calls; 0 for no units."""
        return calls * self.alpha + units * self.beta if units > 0 else 0.0


class OperationCosts(NamedTuple):
    """The costs of a job's operations under its placement. `contention` is as in `streams.py`."""

    all_to_all: Cost
    all_gather: Cost
    reduce_scatter: Cost
    all_reduce: Cost
    gemm: Cost
    contention: float = 1.0


class Volumes(NamedTuple):
    """Units sent, multiply-adds and number of GEMMs of one GPU in one forward pass of a layer.

    `gradient` are the units of the layer that are summed over the replicas in each step.
    """

    exchanged: float
    gathered: float
    scattered: float
    expert_macs: float
    expert_gemms: int
    attention_gathered: float
    attention_scattered: float
    attention_macs: float
    attention_gemms: int
    gradient: float


class Half(NamedTuple):
    """Costs of half a layer in one direction: `alpha` has the seconds of a call, `beta` those of all its units."""

    dispatch: Cost
    gather: Cost
    compute: Cost
    scatter: Cost

    def at(self, degree: int) -> tuple[float, float, float, float]:
        """Return the seconds of one chunk of each operation: dispatch (and combine), gather, compute, scatter."""
        return tuple(cost.of(1.0 / degree) for cost in self)  # type: ignore[return-value]


def _of(cost: Cost, units: float, calls: int = 1) -> Cost:
    """Return the cost of `units` units in `calls` calls: `alpha` seconds for all calls, `beta` for all units."""
    return Cost(calls * cost.alpha, units * cost.beta) if units > 0 else Cost(0.0, 0.0)


def experts_half(volumes: Volumes, costs: OperationCosts, backward: bool) -> Half:
    """Return the costs of a layer's experts. Backward each GEMM becomes two (Shoeybi et al., arXiv 1909.08053)."""
    compute = _of(costs.gemm, volumes.expert_macs, volumes.expert_gemms)
    return Half(
        _of(costs.all_to_all, volumes.exchanged),
        _of(costs.all_gather, volumes.gathered),
        Cost(2.0 * compute.alpha, 2.0 * compute.beta) if backward else compute,
        _of(costs.reduce_scatter, volumes.scattered),
    )


def attention_half(volumes: Volumes, costs: OperationCosts, backward: bool) -> Half:
    """Return the costs of a layer's attention, which exchanges nothing between nodes."""
    compute = _of(costs.gemm, volumes.attention_macs, volumes.attention_gemms)
    return Half(
        Cost(0.0, 0.0),
        _of(costs.all_gather, volumes.attention_gathered),
        Cost(2.0 * compute.alpha, 2.0 * compute.beta) if backward else compute,
        _of(costs.reduce_scatter, volumes.attention_scattered),
    )


# --- the tasks -------------------------------------------------------------------------------------------------------

NAMES = ("dispatch", "gather", "compute", "scatter", "combine", "gradients")
MOST_TASKS = 5 * max(DEGREES) + 1


@inlined
def lay_out(
    half: Floats, degree: int, gradient: float, apart: bool, work: Floats, stream: Table, after: Table, kind: Table
) -> int:
    """Write the tasks of a half of a layer, and the kind of each (index in NAMES); return their number.

    `half` has a row for each of dispatch, gather, compute and scatter: the fixed seconds of a call, and the seconds of
    all units. Between nodes the order is all dispatches, then the gradients, then all combines. With `apart` False,
    messages inside nodes use the same stream as those between nodes, as in schedules that do not separate them.
    """
    inner = INTRA if apart else INTER
    chunk = np.zeros(4)
    for k in range(4):
        chunk[k] = half[k, 0] + half[k, 1] / degree
    count = 0
    gathered, computed, scattered = np.zeros(8, np.int64), np.zeros(8, np.int64), np.zeros(8, np.int64)
    for i in range(degree):
        work[count], stream[count], after[count], kind[count] = chunk[0], INTER, -1, 0
        count += 1
        work[count], stream[count], after[count], kind[count] = chunk[1], inner, count - 1, 1
        gathered[i] = count
        count += 1
    work[count], stream[count], after[count], kind[count] = gradient, INTER, -1, 5
    count += 1
    for i in range(degree):
        work[count], stream[count], after[count], kind[count] = chunk[2], COMPUTE, gathered[i], 2
        computed[i] = count
        count += 1
    for i in range(degree):
        work[count], stream[count], after[count], kind[count] = chunk[3], inner, computed[i], 3
        scattered[i] = count
        count += 1
        work[count], stream[count], after[count], kind[count] = chunk[0], INTER, scattered[i], 4
        count += 1
    return count


@compiled_at_once
def _write_half(
    half: Floats, degree: int, gradient: float, apart: bool, work: Floats, stream: Table, after: Table, kind: Table
) -> int:
    return lay_out(half, degree, gradient, apart, work, stream, after, kind)


@compiled_at_once
def seconds_by(half: Floats, degrees: Table, gradients: Floats, apart: bool, contention: float, found: Floats) -> None:
    """Write the seconds of a half of a layer for each degree (rows) and each time to sum gradients (columns)."""
    work, start, end = np.zeros(48), np.zeros(48), np.zeros(48)
    stream, after, kind = np.zeros(48, np.int64), np.zeros(48, np.int64), np.zeros(48, np.int64)
    for i in range(len(degrees)):
        for j in range(len(gradients)):
            count = lay_out(half, degrees[i], gradients[j], apart, work, stream, after, kind)
            found[i, j] = play(work, stream, after, count, contention, start, end)


def _table(half: Half) -> Floats:
    return np.array(half, dtype=np.float64)


def half_seconds(
    half: Half, degrees: tuple[int, ...], gradients: Floats, contention: float, apart: bool = True
) -> Floats:
    """Return the seconds of a half of a layer, a row for each degree and a column for each time to sum gradients."""
    found: Floats = np.zeros((len(degrees), len(gradients)))
    seconds_by(_table(half), np.array(degrees, dtype=np.int64), gradients, apart, contention, found)
    return found


def half_run(half: Half, degree: int, gradient: float, contention: float, apart: bool = True) -> StreamTimes:
    """Run the streams for a half of a layer."""
    work = np.zeros(MOST_TASKS)
    stream, after, kind = (np.zeros(MOST_TASKS, np.int64) for _ in range(3))
    count = _write_half(_table(half), degree, gradient, apart, work, stream, after, kind)
    rows = zip(work[:count].tolist(), stream.tolist(), after.tolist(), kind.tolist(), strict=False)
    return run(tuple(StreamTask(NAMES[which], on, much, before) for much, on, before, which in rows), contention)
