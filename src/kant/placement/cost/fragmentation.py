"""Fragmentation of a node with respect to typical pods: the free GPU capacity that they could not use, in expectation.

The measure F_n(M) of FGD (Weng et al., USENIX ATC 2023, section 4): the sum over classes of typical pods of the weight
of the class times the free milli-GPUs that it cannot use. The weights are counts, so this F is that of the paper times
the sum of the weights, and an exact integer.
"""

from __future__ import annotations

from kant.cluster.columns import CPU_FREE, DEVICES, FREE, POOL, Table, devices_of
from kant.compiled import compiled, inlined

M_CPU = 0
M_GPUS = 1
M_MILLI = 2
M_POOLS = 3
M_WEIGHT = 4


@inlined
def fragments(table: Table, node: int, typical: Table) -> int:
    """Return the weighted free milli-GPUs of the node that the typical pods in `typical` cannot use."""
    free = table[node, FREE]
    if free == 0:
        return 0
    slots = devices_of(table)
    total = 0
    for m in range(typical.shape[0]):
        gpus, milli = typical[m, M_GPUS], typical[m, M_MILLI]
        lost = free
        if gpus > 0 and (typical[m, M_POOLS] >> table[node, POOL]) & 1 and table[node, CPU_FREE] >= typical[m, M_CPU]:
            fitting, small = 0, 0
            for device in range(slots):
                amount = table[node, DEVICES + device]
                if amount >= milli:
                    fitting += 1
                elif amount > 0:
                    small += amount
            if fitting >= gpus:
                lost = small
        total += lost * typical[m, M_WEIGHT]
    return int(total)


@compiled
def all_fragments(table: Table, typical: Table, by_node: Table, log: Table, cursor: int) -> int:
    """Update `by_node` for the nodes logged since `cursor` (-1: all); return the change of the sum over nodes."""
    ring = log.shape[0] - 1
    everything = cursor < 0 or log[0] - cursor > ring
    moved = 0
    for k in range(table.shape[0] if everything else log[0] - cursor):
        node = k if everything else log[1 + (cursor + k) % ring]
        now = fragments(table, node, typical)
        moved += now - by_node[node]
        by_node[node] = now
    return moved
