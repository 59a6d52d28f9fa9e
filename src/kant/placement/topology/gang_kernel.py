"""Finds the domain of a gang of one group and lays it out there, in one compiled call, by the rules of `gang.py`."""

from __future__ import annotations

from functools import cache

import numpy as np

from kant.cluster.columns import Table, copy_row
from kant.compiled import compiled, inlined
from kant.placement.kernels import Kernel, named, slice_kernel
from kant.placement.policy import NodePolicy
from kant.placement.topology.domain_capacity import FITTING_PODS, best_domain, follow_demand, largest_domain
from kant.placement.topology.index import CLUSTER, HBD_LEVEL, Fabric


@compiled
def next_stretch(rows: Table, slot: int, domain: int, pods: int, fabric: Fabric, occupied: Table) -> tuple[int, int]:
    """Return the next two domains for `pods` pods that fit in `domain`: the one to fill, and the one for the remaining
    pods. They are equal if one domain has room for all pods. The search goes down to the leaf or HBD, so that the pods
    use the fewest domains of each level.
    """
    slots, count = np.array([slot]), np.array([pods])
    while fabric.splits[domain]:
        first, last = fabric.inner[domain, 0], fabric.inner[domain, 1]
        inner = best_domain(
            rows, slots, count, 0, first, last, fabric.domain_of, fabric.ancestors, occupied, fabric.no_domain
        )  # fmt: skip
        if inner < 0:
            return int(largest_domain(rows, slot, first, last, occupied)), int(domain)
        domain = inner
    return int(domain), int(domain)


@inlined
def in_fabric_order(pieces: Table, begin: int, end: int, ranks: Table) -> None:
    """Sort the pieces [begin, end) in the order of the fabric; pieces of one node keep their order."""
    count = end - begin
    keys = np.empty(count, dtype=np.int64)
    for i in range(count):
        key, at = ranks[pieces[begin + i, 0]] * count + i, i
        while at > 0 and keys[at - 1] > key:
            keys[at] = keys[at - 1]
            at -= 1
        keys[at] = key
    before = pieces[begin:end].copy()
    for i in range(count):
        copy_row(before, keys[i] % count, pieces, begin + i)


@cache
def gang_kernel(policy: type[NodePolicy]) -> Kernel:
    """Return the kernel for gangs whose pods a policy class places inside their domains; it is built once."""
    put = slice_kernel(policy)

    def place_gang(
        table: Table, log: Table, demands: Table, d: int, typical: Table, params: Table, fabric: Fabric, rows: Table,
        cursors: Table, slot: int, closed: Table, narrowest: int, milli: int, count: int, by_node: bool, drawn: int,
        occupied: Table, pieces: Table, used: int,
    ) -> int:  # fmt: skip
        """Place `count` pods of demand `d` in one domain of the narrowest level from `narrowest` on that holds them.

        Appends to `pieces` from row `used` on, in the order of the fabric, and takes them from `table`. Returns the
        number of rows used, or -1 - f if only f pods fit (then nothing is taken).
        """
        follow_demand(table, log, demands, d, fabric, rows, cursors, slot, closed)
        domain = fabric.offsets[CLUSTER]
        if rows[slot, domain, FITTING_PODS] < count:
            return int(-1 - rows[slot, domain, FITTING_PODS])
        slots, counts = np.array([slot]), np.array([count])
        for level in range(narrowest, CLUSTER):
            if level == HBD_LEVEL and narrowest < HBD_LEVEL and fabric.flat:
                continue
            found = best_domain(
                rows, slots, counts, milli, fabric.offsets[level], fabric.offsets[level + 1], fabric.domain_of,
                fabric.ancestors, occupied, fabric.no_domain,
            )  # fmt: skip
            if found >= 0:
                domain = found
                break
        begin, rest = used, count
        while rest > 0:
            full, domain = next_stretch(rows, slot, domain, rest, fabric, occupied)
            pods = rest if full == domain else rows[slot, full, FITTING_PODS]
            nodes = fabric.node_order[fabric.domain_range[full, 0] : fabric.domain_range[full, 1]]
            used = put(table, log, demands, d, typical, params, nodes, pods, by_node, drawn, pieces, used)
            rest -= pods
            if rest > 0:
                follow_demand(table, log, demands, d, fabric, rows, cursors, slot, closed)
        in_fabric_order(pieces, begin, used, fabric.ranks)
        return int(used)

    return compiled(named(place_gang, policy.score, policy.pick))
