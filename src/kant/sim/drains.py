"""Drains: parts of the fabric that accept no new pods for a time, in addition to other changes of their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge

from kant.model.errors import InputError
from kant.model.node import ClusterSpec, Node
from kant.model.status import NodeStatus
from kant.model.units import FOREVER
from kant.workload.faults_file import NodeHealth


@dataclass(frozen=True, slots=True)
class Drain:
    """The `nodes` (by index) of the part of the fabric called `name` accept no new pods from `start` until `end`.

    Running jobs run to their end, or with `evicts` are stopped at the start. Times are microseconds on the run's clock;
    FOREVER: no end given.
    """

    name: str
    nodes: tuple[int, ...]
    start: int
    end: int = FOREVER
    evicts: bool = False


def nodes_called(cluster: ClusterSpec, name: str, where: str) -> tuple[int, ...]:
    """Return the nodes of a part of the fabric (node, HBD, leaf, spine, superspine); of several with this name, the
    narrowest.

    `SPINE/LEAF` distinguishes leaves of the same name, and so on. Raises InputError if no part, or two of one level,
    have the name.
    """
    for level in range(5):
        found: dict[tuple[str, ...], list[int]] = {}
        for index, node in enumerate(cluster.nodes):
            path = _path(node)[: 5 - level]
            if path[-1] and name in _endings(path):
                found.setdefault(path, []).append(index)
        if len(found) > 1:
            both = " or ".join("/".join(part for part in path if part) for path in sorted(found)[:2])
            raise InputError(where, f"a name that only one part has, such as {both}", name)
        if found:
            return tuple(next(iter(found.values())))
    raise InputError(where, f"a node, leaf, spine or other part of the fabric of {cluster.name}", name)


def _path(node: Node) -> tuple[str, ...]:
    return node.superspine, node.spine, node.leaf, node.hbd, node.name


def _endings(path: Sequence[str]) -> set[str]:
    """Return the last part of a path, the last two, and so on, skipping unnamed parts."""
    named = [part for part in path if part]
    return {"/".join(named[i:]) for i in range(len(named))}


def drained(now: Sequence[NodeHealth], coming: Iterable[NodeHealth], drains: Sequence[Drain]) -> Iterator[NodeHealth]:
    """Return the changes of node health with the drains added: `now` is each node's health, `coming` the other changes.

    A failed node stays failed. A node that returns during its drain accepts no new pods until the drain ends.
    """
    stands = {health.node: health for health in now}
    turns = sorted(
        NodeHealth(time, node, NodeStatus.DRAINING)
        for drain in drains
        for node in drain.nodes
        for time in (drain.start, drain.end)
        if time < FOREVER
    )
    both = merge(((h, True) for h in coming), ((h, False) for h in turns), key=lambda pair: pair[0].time)
    for own, happened in both:
        if happened:
            stands[own.node] = own
        here = [d for d in drains if own.node in d.nodes and d.start <= own.time < d.end]
        yield _over(stands[own.node]._replace(time=own.time), here)


def _over(health: NodeHealth, drains: Sequence[Drain]) -> NodeHealth:
    if not drains or health.status == NodeStatus.FAILED:
        return health
    ends = [drain.start for drain in drains if drain.evicts]
    if health.status == NodeStatus.DRAINING and health.until >= 0:
        ends.append(health.until)
    return health._replace(status=NodeStatus.DRAINING, until=min(ends, default=-1))
