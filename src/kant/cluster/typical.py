"""The typical pods of recent submissions. Older submissions count less and less."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import D_CPU, D_GPUS, D_MILLI, D_POOLS, J_PRIORITY, J_SHAPE, Table
from kant.cluster.shapes import Shape, Shapes

FIRST = 32
"""The number of jobs before the first result. The result is computed again each time that number has doubled."""

PERIOD = 8192
"""The number of jobs after which all counts are halved. From then on the result is computed anew at each halving."""

SHARE = 950
"""The most frequent pods that make up this share of all, in permille, are the typical ones (Weng et al., ATC 2023)."""

MOST = 64
"""The maximum number of kinds of typical pods, since a score looks at each of them."""


class TypicalPods:
    """Follows the submissions. The result depends only on these, so every scheduler of a state has the same result.

    Each pod of a job counts, by its request except memory. Jobs of negative priority fill gaps and do not count: no
    capacity is kept for their shape. The result is a new table object whenever it changes. Changes are rare, since each
    may change every score.
    """

    def __init__(self) -> None:
        self._rows: Table = np.zeros((0, 5), dtype=np.int64)  # rows (cpu, gpus, milli, pool mask, weight)
        self._pods: dict[int, int] = {}  # by row of the demand table
        self._seen = 0  # number of counted submissions
        self._jobs = 0
        self._next = FIRST

    def steady_for(self, submitted: int) -> int:
        """Return how many more jobs may arrive after `submitted` ones without changing the result."""
        return self._next - self._jobs - (submitted - self._seen) - 1

    def rows_of(self, submitted: Table, shapes: Shapes) -> Table:
        """Return the typical pods of these submissions, given as job rows. Only new submissions cost time."""
        if self._seen < len(submitted):
            new = submitted[self._seen :]
            for index in new[new[:, J_PRIORITY] >= 0, J_SHAPE].tolist():
                self._count(shapes.shapes[index], shapes.demands)
            self._seen = len(submitted)
        return self._rows

    def _count(self, shape: Shape, demands: Table) -> None:
        pods = self._pods
        for count, demand in shape.parts:
            pods[demand] = pods.get(demand, 0) + count
        self._jobs += 1
        if self._jobs == self._next:
            self._rows = self._typical(demands)
            self._next *= 2
        if self._jobs == PERIOD:
            self._pods = {demand: count // 2 for demand, count in pods.items() if count > 1}
            self._jobs, self._next = PERIOD // 2, PERIOD

    def _typical(self, demands: Table) -> Table:
        kinds: dict[tuple[int, int, int, int], int] = {}
        for demand, count in self._pods.items():
            row = demands[demand]
            gpus = int(row[D_GPUS])
            kind = (int(row[D_CPU]), gpus, int(row[D_MILLI]) if gpus else 0, int(row[D_POOLS]))
            kinds[kind] = kinds.get(kind, 0) + count
        ranked = sorted(kinds.items(), key=lambda entry: (entry[1], entry[0]), reverse=True)[:MOST]
        rows, seen, total = [], 0, sum(kinds.values())
        for kind, count in ranked:
            if 1000 * seen >= SHARE * total:
                break
            rows.append((*kind, count))
            seen += count
        return np.array(rows, dtype=np.int64).reshape(-1, 5)
