"""The recorder: collects the raw data of the metrics while the state applies events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.elastic import pods_by_group
from kant.cluster.state import ClusterState
from kant.compiled import compiled
from kant.model.placement import Allocation
from kant.placement.cost.slowdown import SPANS_WIDTH, Slowdowns, SpanRows

if TYPE_CHECKING:
    from kant.metrics.result import Series

# Columns of a sample. Each value holds from its time to the next sample's.
S_TIME, S_ALLOCATED, S_CAPACITY, S_FRAGMENTED, S_NODES, S_WAITING, S_WAITING_MILLI = range(7)
SAMPLE_WIDTH = 7

SPARE = 1 << 13
"""The number of consecutive samples that are packed together."""

# Columns of a pool's integrals: milli-GPU times whole seconds, and the rest in milli-GPU times microseconds. A single
# product of milli-GPUs and microseconds can exceed 64 bits: 10^8 milli-GPUs times 11 days.
I_ALLOCATED, I_CAPACITY, I_FRAGMENTED, I_NODES = 0, 2, 4, 6
INTEGRAL_WIDTH = 8


@compiled
def sample(
    pools: Table, samples: Table, used: int, integrals: Table, held: Table, now: int, waiting: int, milli: int
) -> int:
    """Add the time since the last sample to the integrals, and the present to `samples`; return the rows in use."""
    at = used
    if used > 0:
        span = now - samples[used - 1, S_TIME]
        if span == 0:
            at = used - 1
        seconds, rest = span // 1_000_000, span % 1_000_000
        for p in range(pools.shape[0]):
            for kind in range(held.shape[1]):
                whole = integrals[p, 2 * kind + 1] + held[p, kind] * rest
                integrals[p, 2 * kind] += held[p, kind] * seconds + whole // 1_000_000
                integrals[p, 2 * kind + 1] = whole % 1_000_000
    row = samples[at]
    row[:] = 0
    row[S_TIME] = now
    row[S_WAITING] = waiting
    row[S_WAITING_MILLI] = milli
    for p in range(pools.shape[0]):
        held[p, 0] = pools[p, c.P_ALLOCATED]
        held[p, 1] = pools[p, c.P_CAPACITY]
        held[p, 2] = pools[p, c.P_FRAGMENTED]
        held[p, 3] = pools[p, c.P_NODES]
        row[S_ALLOCATED] += held[p, 0]
        row[S_CAPACITY] += held[p, 1]
        row[S_FRAGMENTED] += held[p, 2]
        row[S_NODES] += held[p, 3]
    return at + 1


def with_pools(table: Table, pools: int) -> Table:
    """Extend a table that has a row for each pool to `pools` rows: nodes that join may belong to new pools."""
    more = pools - len(table)
    return np.vstack([table, np.zeros((more, table.shape[1]), dtype=np.int64)]) if more > 0 else table


def began(state: ClusterState, row: int) -> int:
    """Return the time (µs) since which a running gang has held its current allocation."""
    progress = state.elastic.get(row)
    return int(state.jobs[row, c.J_STARTED]) if progress is None else progress.resized


class Recorder:
    """Follows one `ClusterState`. Call `observe` once at each instant, `started` and `ended` for each allocation."""

    def __init__(self, state: ClusterState, keep_intervals: bool = False) -> None:
        self.state = state
        self.keep_intervals = keep_intervals
        self.samples: Table = np.zeros((4096, SAMPLE_WIDTH), dtype=np.int64)
        self.used = 0
        self._packed: list[list[NDArray[np.int32] | NDArray[np.int64]]] = []  # the columns of earlier samples
        self.integrals: Table = np.zeros((len(state.pools), INTEGRAL_WIDTH), dtype=np.int64)
        self.held: Table = np.zeros((len(state.pools), 4), dtype=np.int64)
        self.spans: SpanRows = np.zeros((1024, SPANS_WIDTH), dtype=np.int32)
        self.model = Slowdowns(state)
        self._intervals: list[tuple[int, Allocation, int, int]] = []
        self._service: list[tuple[int, int, int, int]] = []
        self._there = 0, state.now, state.gpus_there  # GPU time of present nodes until a time, the time, GPUs then
        self.replaced = 0  # gangs that got another node for a lost one, and kept the rest
        self._sized: dict[int, int] = {}  # by row of an elastic gang: the shape of its size
        self.lost_work: dict[int, int] = {}  # by job row: the work that its stops cost, microseconds

    def observe(self, now: int) -> None:
        """Record the state's totals, valid from `now` on."""
        if self.used == len(self.samples):
            self.make_room(1)
        state = self.state
        if len(self.held) < len(state.pools):
            self.meet_pools()
        self.used = sample(
            state.pools, self.samples, self.used, self.integrals, self.held,
            now, len(state.pending), state.waiting_milli,
        )  # fmt: skip

    def make_room(self, rows: int) -> None:
        """Make room for `rows` further samples. Earlier samples are packed, since a run may have a million."""
        if self.used > min(SPARE, len(self.samples) - rows):
            self.pack()
        if self.used + rows > len(self.samples):
            self.samples = c.longer(self.samples, rows + SPARE)

    def pack(self) -> None:
        """Store all samples but the last compactly: four bytes a number if that suffices, a constant column once."""
        rows = self.samples[: self.used - 1]
        if len(rows):
            self._packed.append([
                (column[:1] if low == high else column).astype(np.int32 if -low < high < 1 << 31 else np.int64)
                for column, low, high in zip(rows.T, rows.min(axis=0).tolist(), rows.max(axis=0).tolist(), strict=True)
            ])  # fmt: skip
            self.samples, self.used = self.samples[self.used - 1 : self.used].copy(), 1

    def column(self, which: int) -> NDArray[np.int64]:
        """Return one of the columns S_ of all samples."""
        last = self.samples[: self.used, which]
        if not self._packed:
            return last
        return np.concatenate([*[one[which].repeat(len(one[S_TIME]) // len(one[which])) for one in self._packed], last])

    def meet_pools(self) -> None:
        """Add rows for new pools, after nodes have joined."""
        self.held = with_pools(self.held, len(self.state.pools))
        self.integrals = with_pools(self.integrals, len(self.state.pools))

    def started(self, row: int, allocation: Allocation) -> None:
        """Record that a gang was placed, or has another size."""
        if row >= len(self.spans):
            self.spans = c.longer(self.spans, row + 1)
        self.model.write_spans(allocation, self.spans, row)
        if row in self.state.elastic:
            shape = self.state.shape_of(row)
            counts = pods_by_group(shape, allocation)
            assert counts is not None, "the state takes no other"
            self._sized[row] = self.state.shapes.sized(shape, counts).index

    def shape_at(self, row: int) -> int:
        """Return the index of a gang's latest shape: an elastic one is compared with others of its size."""
        return self._sized.get(row, int(self.state.jobs[row, c.J_SHAPE]))

    def shapes(self) -> Table:
        """Return the latest shapes of all jobs."""
        found: Table = self.state.jobs[: len(self.state.ids), c.J_SHAPE].copy()
        found[list(self._sized)] = list(self._sized.values())
        return found

    def ended(self, row: int, allocation: Allocation, start: int, end: int) -> None:
        """Record that a gang returned its devices (or that the run has ended)."""
        if self.keep_intervals:
            self._intervals.append((row, allocation, start, end))

    def lost(self, row: int, cost: int) -> None:
        """Record that a job was stopped, and has `cost` microseconds more work than before."""
        if cost:
            self.lost_work[row] = self.lost_work.get(row, 0) + cost

    def serviced(self, node: int, now: int) -> None:
        """Record that a node has changed status or lost devices from `now` on, or has joined or left."""
        self.nodes_changed(now)
        if not self.keep_intervals:
            return
        if self._service and self._service[-1][:2] == (now, node):
            self._service.pop()
        lost = self.state.health.lost.get(node, 0)
        status = int(self.state.table[node, c.STATUS])
        self._service.append((now, node, status, lost))

    def nodes_changed(self, now: int) -> None:
        """Record that the set of present nodes may differ from `now` on."""
        self._there = self.gpu_time_there(now), now, self.state.gpus_there

    def gpu_time_there(self, end: int) -> int:
        """Return GPUs of present nodes, in service or not, times microseconds, from the first sample to `end`."""
        spent, since, gpus = self._there
        first = self._packed[0][S_TIME] if self._packed else self.samples[: self.used, S_TIME]
        begin = int(first[0]) if len(first) else end
        return spent + gpus * max(end - max(since, begin), 0)

    def service(self) -> Table:
        """Return rows (time, node, status, bit mask of lost devices), recorded only with `keep_intervals`."""
        return np.array(self._service, dtype=np.int64).reshape(-1, 4)

    def series(self) -> Series:
        """Return the samples by column."""
        from kant.metrics.result import Series  # loaded when a run is over

        return Series(
            time=self.column(S_TIME),
            allocated=self.column(S_ALLOCATED),
            in_service=self.column(S_CAPACITY),
            fragmented=self.column(S_FRAGMENTED),
            nodes=self.column(S_NODES),
            waiting_jobs=self.column(S_WAITING),
            waiting_gpus=self.column(S_WAITING_MILLI),
        )

    def integral(self, kind: int) -> list[float]:
        """Return for each pool one of the I_ integrals up to the last sample, in whole seconds and their fraction."""
        pairs = self.integrals[:, kind : kind + 2].tolist()
        return [seconds + rest / 1_000_000 for seconds, rest in pairs]

    def intervals(self) -> Table:
        """Return rows (job row, node, device mask, milli, start, end), recorded only with `keep_intervals`."""
        if not self._intervals:
            return np.zeros((0, 6), dtype=np.int64)
        pieces = np.concatenate([allocation[:, [0, 2, 3]] for _, allocation, _, _ in self._intervals])
        lengths = [len(allocation) for _, allocation, _, _ in self._intervals]
        ends = np.array([(row, start, end) for row, _, start, end in self._intervals], dtype=np.int64)
        spread = np.repeat(ends, lengths, axis=0)
        return np.column_stack([spread[:, 0], pieces, spread[:, 1], spread[:, 2]])
