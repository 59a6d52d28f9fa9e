"""Which nodes and domains of the fabric a gang spans, the fewest that it could span, and its resulting slowdown."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.compiled import compiled
from kant.model.placement import NODE, PODS, TAG, Allocation
from kant.model.training import Training
from kant.model.units import FOREVER, GPU
from kant.placement.cost.communication import FULL, Spans, default_model, slowdown

# Columns of a gang's spans. The first two count all its pods, the others only pods that compute together. Pods with
# whole GPUs count by their GPUs, a pod with a share of a GPU counts as one, and a pod without GPUs does not count.
T_NODES, T_LEAVES = 0, 1
T_GPUS, T_GPU_NODES, T_GPU_HBDS = 2, 3, 4
T_LARGEST = 5  # the largest number of these in one node, HBD, leaf, spine, superspine
SPANS_WIDTH = 10

SpanRows = NDArray[np.int32]

COLUMNS = (c.HBD, c.LEAF, c.SPINE, c.SUPERSPINE)
DEPTH = 1 + len(COLUMNS)
AT_ONCE = 1 << 14
"""Number of gangs whose spans are Python integers at a time: in that form they take ten times the memory."""
_LEAF = 2  # index of the leaf among the DEPTH levels


@compiled
def write_spans(table: Table, pieces: Table, seen: Table, stamp: int, spans: SpanRows, row: int) -> None:
    """Write the spans of the gang with these `pieces` into a row of `spans`, in the columns above.

    `seen` is scratch: for each level and domain a stamp and the GPUs there. `stamp` must differ from all before it.
    """
    for column in range(SPANS_WIDTH):
        spans[row, column] = 0
    for i in range(pieces.shape[0]):
        node, tag = pieces[i, NODE], pieces[i, TAG]
        gpus = pieces[i, PODS] * max(tag, 1) if tag != -1 else 0
        spans[row, T_GPUS] += gpus
        for level in range(DEPTH):
            domain = node if level == 0 else table[node, c.HBD + level - 1]
            if seen[level, domain, 0] != stamp:
                seen[level, domain, 0] = stamp
                seen[level, domain, 1] = 0
                if level == 0:
                    spans[row, T_NODES] += 1
                elif level == _LEAF:
                    spans[row, T_LEAVES] += 1
            if level < 2 and gpus > 0 and seen[level, domain, 1] == 0:
                spans[row, T_GPU_NODES + level] += 1
            seen[level, domain, 1] += gpus
            spans[row, T_LARGEST + level] = max(spans[row, T_LARGEST + level], seen[level, domain, 1])


def best_spans(shape: Shape, demands: Table, empty: Table) -> Table:
    """Return bounds on the spans of `shape` in the empty cluster, in the columns above; all 0 if it never fits.

    Each column is a separate bound: the fewest nodes, the fewest leaves, the most in one node and so on. No single
    placement may attain all bounds.
    """
    best: Table = np.zeros(SPANS_WIDTH, dtype=np.int64)
    open_nodes = np.zeros(len(empty), dtype=np.bool_)
    held = np.zeros((DEPTH, len(empty)), dtype=np.int64)
    for (count, d), group in zip(shape.parts, shape.groups, strict=True):
        fits = pods_per_node(empty, demands[d])
        open_nodes |= fits > 0
        most_first = np.cumsum(np.sort(fits)[::-1])
        if most_first[-1] < count:
            return np.zeros_like(best)
        fewest = int(np.searchsorted(most_first, count)) + 1
        best[T_NODES] += fewest
        each = group.demand.gpus if group.demand.milli == GPU else min(group.demand.gpus, 1)
        best[T_GPUS] += count * each
        if each:
            best[T_GPU_NODES] = max(best[T_GPU_NODES], fewest)
        for level in range(DEPTH):
            there = fits if level == 0 else np.bincount(empty[:, COLUMNS[level - 1]], fits, len(empty)).astype(np.int64)
            held[level] += np.minimum(there, count) * each
    best[T_LEAVES] = _fewest(np.bincount(empty[open_nodes, c.LEAF]), int(best[T_NODES]))
    if all(group.demand.milli == GPU for group in shape.groups):
        gpus = np.where(open_nodes, empty[:, c.GPUS], 0)
        best[T_GPU_NODES] = max(best[T_GPU_NODES], _fewest(gpus, int(best[T_GPUS])))
        for level in range(DEPTH):
            room = gpus if level == 0 else np.bincount(empty[:, COLUMNS[level - 1]], gpus, len(empty)).astype(np.int64)
            held[level] = np.minimum(held[level], room)
        best[T_GPU_HBDS] = _fewest(np.bincount(empty[:, c.HBD], gpus).astype(np.int64), int(best[T_GPUS]))
    by_nodes = _fewest(np.bincount(empty[open_nodes, c.HBD]), int(best[T_GPU_NODES]))
    best[T_GPU_HBDS] = max(best[T_GPU_HBDS], by_nodes)
    best[T_LARGEST:] = held.max(axis=1)
    return best


def pods_per_node(table: Table, demand: Table) -> Table:
    """Return how many pods of one demand fit on each node when it is empty."""
    gpus, milli, cpu, memory, pools = (int(value) for value in demand[:5])
    fits = np.full(len(table), FOREVER, dtype=np.int64)
    if gpus:
        joined = np.where(demand[c.D_ISLAND] == 1, table[:, c.ISLAND], table[:, c.GPUS])  # GPUs that one pod can use
        fits = joined * (GPU // milli) // gpus * (table[:, c.GPUS] // np.maximum(joined, 1))
        fits = np.where(joined >= gpus, fits, 0)
        if demand[c.D_SLICES]:
            fits = table[:, c.GPUS] * int(demand[c.D_STARTS]).bit_count()
    if cpu:
        fits = np.minimum(fits, table[:, c.CPU] // cpu)
    if memory:
        fits = np.minimum(fits, table[:, c.MEMORY] // memory)
    admitted = (pools >> table[:, c.POOL]) & 1
    admitted_fits: Table = np.minimum(fits, 1 << 32) * admitted
    return admitted_fits


def _fewest(sizes: Table, wanted: int) -> int:
    """Return the fewest domains of these sizes that together have `wanted`; 0 if none are wanted."""
    return int(np.searchsorted(np.cumsum(np.sort(sizes)[::-1]), wanted)) + 1 if wanted else 0


class Slowdowns:
    """The run time of gangs in their present placement relative to that in their best placement, in thousandths.

    Results are cached: gangs of one shape have few different placements.
    """

    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self._best: dict[int, Table] = {}
        self._trainings: dict[int, Training] = {}  # of the shapes in `_best` whose jobs declare a training
        self._known: dict[tuple[int, ...], int] = {}
        self.seen: Table = np.full((DEPTH, len(state.table), 2), -1, dtype=np.int64)
        self.stamp = 0
        self._fleet = state.fleet_version

    def spans(self, allocation: Allocation) -> SpanRows:
        """Return the spans of a gang, in the columns above."""
        spans: SpanRows = np.empty((1, SPANS_WIDTH), dtype=np.int32)
        self.write_spans(allocation, spans, 0)
        return spans.reshape(-1)

    def write_spans(self, allocation: Allocation, spans: SpanRows, row: int) -> None:
        """Write the spans of a gang into a row of `spans`, which the caller allocates: Numba is slow at allocation."""
        self.stamp += 1
        if self.seen.shape[1] < len(self.state.table):
            self.seen = np.full((DEPTH, len(self.state.table), 2), -1, dtype=np.int64)
        write_spans(self.state.table, allocation, self.seen, self.stamp, spans, row)

    def best(self, shape: int) -> Table:
        """Return the best spans of a shape, by its index."""
        if self._fleet != self.state.fleet_version:
            self._begin_anew()
        found = self._best.get(shape)
        if found is None:
            shapes = self.state.shapes
            own = shapes.at(shape)
            found = self._best[shape] = best_spans(own, shapes.demands, self.state.empty)
            if own.ask.training is not None:
                self._trainings[shape] = own.ask.training
        return found

    def of(self, shape: int, spans: SpanRows) -> int:
        """Return the slowdown of a gang of this shape with these spans."""
        if self._fleet != self.state.fleet_version:
            self._begin_anew()
        key = (shape, *spans[T_GPUS:].tolist())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._slowdown(shape, spans)
        return found

    def of_all(self, shapes: Table, spans: SpanRows, rows: Table) -> Table:
        """Return the slowdowns of the gangs in `rows`, which index both `shapes` and `spans`."""
        found: Table = np.zeros(len(rows), dtype=np.int64)
        for first in range(0, len(rows), AT_ONCE):
            own = rows[first : first + AT_ONCE]
            keys = zip(shapes[own].tolist(), *spans[own, T_GPUS:].T.tolist(), strict=True)
            known = self._known if self._fleet == self.state.fleet_version else {}
            found[first : first + AT_ONCE] = [
                known[key] if key in known else self.of(key[0], spans[row])
                for row, key in zip(own.tolist(), keys, strict=True)
            ]
        return found

    def _begin_anew(self) -> None:
        """Clear the caches after the nodes have changed: the best spans depend on them."""
        self._fleet = self.state.fleet_version
        self._best.clear()
        self._known.clear()

    def _slowdown(self, shape: int, spans: SpanRows) -> int:
        gpus = int(spans[T_GPUS])
        if gpus <= 1:
            return FULL
        best = self.best(shape)
        training = self._trainings.get(shape)
        if training is not None:
            from kant.placement.perf.step import step_slowdown  # imported once a training job needs it

            return step_slowdown(training, self.state.spec.fabric, _named(spans), _named(best))
        return slowdown(default_model(gpus), self.state.spec.fabric, _named(spans), _named(best))


def _named(spans: Table | SpanRows) -> Spans:
    gpus, nodes, hbds, node, hbd, leaf, spine, superspine = spans[T_GPUS:].tolist()
    return Spans(gpus, nodes, hbds, (node, hbd, leaf, spine, superspine))
