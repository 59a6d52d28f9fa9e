"""Node faults in simulated time: read from a table, or drawn at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace

import numpy as np

from kant.model.node import ClusterSpec
from kant.model.status import NodeStatus
from kant.model.units import FOREVER, SECOND
from kant.sim.options import SimOptions
from kant.workload.faults_file import NodeHealth

_STREAM = 0xFA


class Faults:
    """Changes of node health in order of time: `any` says whether there are any, `due` when the next comes.

    `unhealthy` are the nodes that are unhealthy now, without nodes drained for good: no job needs to wait for their
    return. `for_good` says since when nodes are drained for good.

    A run with faults journals every cycle. Whether a returning job is reported as held, while jobs like it wait,
    depends on cycles that decide nothing, and a replay must run these too.
    """

    def __init__(self, coming: Iterator[NodeHealth]) -> None:
        self._coming = coming
        self._next = next(coming, None)
        self.any = self._next is not None
        self.due = FOREVER if self._next is None else self._next.time
        self.unhealthy: set[int] = set()
        self.for_good: dict[int, int] = {}

    def take(self, now: int) -> list[NodeHealth]:
        """Return the changes at `now`."""
        found = []
        while self._next is not None and self._next.time == now:
            found.append(self._next)
            gone = self.for_good.get(self._next.node, FOREVER) <= now
            (self.unhealthy.discard if gone or _is_healthy(self._next) else self.unhealthy.add)(self._next.node)
            self._next = next(self._coming, None)
        self.due = FOREVER if self._next is None else self._next.time
        return found


def _is_healthy(health: NodeHealth) -> bool:
    return health.status == NodeStatus.IN_SERVICE and not health.lost


def faults_of(cluster: ClusterSpec, options: SimOptions, seed: int, listed: Sequence[NodeHealth]) -> Faults:
    """Return the faults of one run: those `listed`, or those drawn from the seed by the options."""
    if listed or not options.mtbf_days:
        return Faults(iter(listed))
    return Faults(drawn(cluster, options, seed))


def drawn(cluster: ClusterSpec, options: SimOptions, seed: int) -> Iterator[NodeHealth]:
    """Yield faults without end: each node alternates between healthy and unhealthy.

    Both durations are exponential, in whole seconds. A node's faults depend only on the seed and on its index: not on
    the other nodes, nor on the jobs.
    """
    draws = [np.random.Generator(np.random.PCG64([seed, _STREAM, node])) for node in range(len(cluster.nodes))]

    def after(node: int, mean_s: float) -> int:
        return max(round(float(draws[node].exponential(mean_s))), 1) * SECOND

    heap = [(after(node, options.mtbf_days * 86_400), node, False) for node in range(len(cluster.nodes))]
    heapify(heap)
    while heap and heap[0][0] < FOREVER:
        time, node, unhealthy = heap[0]
        if unhealthy:
            yield NodeHealth(time, node, NodeStatus.IN_SERVICE)
            heapreplace(heap, (time + after(node, options.mtbf_days * 86_400), node, False))
            continue
        gpus = cluster.nodes[node].gpus
        if gpus and draws[node].random() < options.gpu_fault_share:
            yield NodeHealth(time, node, NodeStatus.IN_SERVICE, 1 << int(draws[node].integers(gpus)))
        else:
            yield NodeHealth(time, node, NodeStatus.FAILED)
        heapreplace(heap, (time + after(node, options.repair_h * 3600), node, True))
