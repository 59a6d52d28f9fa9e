"""Segments: a pod group is divided into segments of a fixed size, each in one domain of a level of the fabric.

A domain of a wider level holds as many segments as the domains inside it, counted separately. The last segment, if it
is shorter, may use the remainder of one of these. This count is exact for one group. To fill the domain with the most
segments first is exact too: the capacity left for the others is the same, whichever domain is filled first.

Equivalents are `--segment` of Slurm's topology/block and podset slices of Kueue's topology-aware scheduling. A segment
of the size of the group is a child gang.

Segments may be divided further, by narrower levels. All sizes then divide each other, and no segment is shorter, so a
domain holds as many whole segments as the domains inside it together, level by level. Source: multi-layer topology of
Kueue (KEP-2724, `podset-slice-required-topology-constraints`).
"""

from __future__ import annotations

import numpy as np

from kant.cluster.asks import Cuts
from kant.cluster.columns import Table
from kant.model.placement import NODE, PODS, Allocation
from kant.placement.topology.domain_capacity import FITTING_PODS, WHOLE_NODES
from kant.placement.topology.index import CLUSTER, COLUMNS, Topology


def starts_of(topology: Topology, level: int, inner: int) -> Table:
    """Return for each domain of `level` the first of the domains of the narrower level inside it, counted from 0."""
    first, last = topology.offsets[level : level + 2]
    starts: Table = topology.domain_of[topology.domain_range[first:last, 0], inner] - topology.offsets[inner]
    return starts


def _narrow(topology: Topology, rows: Table, inner: int) -> Table:
    """Return how many pods each domain of a level holds; `rows` are the rows of one demand."""
    first, last = topology.offsets[inner : inner + 2]
    fitting: Table = rows[first:last, FITTING_PODS]
    return fitting


def in_segments(topology: Topology, rows: Table, level: int, cuts: Cuts) -> Table:
    """Return how many pods each domain of `level`, no narrower than the innermost cut, holds in whole segments."""
    segment, at = cuts[-1]
    whole = _narrow(topology, rows, at) // segment * segment
    for segment, outer in reversed(cuts[:-1]):
        if outer <= level:
            whole = np.add.reduceat(whole, starts_of(topology, outer, at)) // segment * segment
            at = outer
    return whole if level == at else np.add.reduceat(whole, starts_of(topology, level, at))


def fitting_in_segments(topology: Topology, rows: Table, level: int, cuts: Cuts, pods: int) -> Table:
    """Return how many pods fit in segments in each domain of `level`; exact for numbers up to `pods`.

    The last segment may be shorter if there is only one cut.
    """
    if len(cuts) > 1:
        return in_segments(topology, rows, level, cuts)
    ((segment, inner),) = cuts
    fitting, starts = _narrow(topology, rows, inner), starts_of(topology, level, inner)
    if pods <= segment:
        return np.maximum.reduceat(np.minimum(fitting, pods), starts)
    whole = np.add.reduceat(fitting // segment * segment, starts)
    rest = pods % segment
    if rest == 0:
        return np.minimum(whole, pods)
    over = np.maximum.reduceat(fitting % segment, starts) >= rest
    return np.where(whole >= pods, pods, np.minimum(whole, pods - rest) + np.where(over, rest, 0))


def roomiest(rows: Table, whole: Table, first: int, last: int, occupied: Table) -> tuple[int, int]:
    """Return the domain in [first, last) that holds the most whole segments, and how many pods these are.

    `whole` has the pods in whole segments of these domains. Domains that hold any, and in which the gang already has
    pods, come first. On ties it is the domain with the least capacity left, then the one with the fewest whole nodes.
    """
    own = np.arange(first, last)
    keys = (own, rows[own, WHOLE_NODES], rows[own, FITTING_PODS], -whole, -occupied[own] * (whole > 0))
    best = int(np.lexsort(keys)[0])
    return int(own[best]), int(whole[best])


def in_rank_order(table: Table, parts: list[Allocation], cuts: tuple[Cuts, ...]) -> Allocation:
    """Return the pieces of all groups one after the other, within each group in the order of the fabric.

    Domains that hold the shorter last segment come last at every level. So counting the pods from the first on gives
    the segments.
    """
    whole = (0, -1)
    return np.concatenate(
        [_place_in_order(table, pieces, *(cut[0] if cut else whole)) for pieces, cut in zip(parts, cuts, strict=True)]
    )


def _place_in_order(table: Table, pieces: Allocation, segment: int, level: int) -> Allocation:
    nodes = pieces[:, NODE]
    domains = [nodes, *(table[nodes, column] for column in COLUMNS)]
    last = np.zeros(len(nodes), dtype=np.bool_)
    if segment:
        held = np.zeros(int(domains[level].max(initial=0)) + 1, dtype=np.int64)
        np.add.at(held, domains[level], pieces[:, PODS])
        last = (held % segment > 0)[domains[level]]
    keys: list[np.ndarray] = []
    for at in range(CLUSTER):
        keys.append(domains[at])
        if segment and at >= level:
            keys.append(np.isin(domains[at], domains[at][last]))
    return pieces[np.lexsort(keys)]
