"""The capacity of every domain of the fabric for a demand, cached from cycle to cycle; chooses the domain of a gang.

Nodes that are out of service, or that do not admit the demand, do not count.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import FREE, GPUS, POOL, STATUS, Table, admits
from kant.compiled import compiled, inlined
from kant.placement.capacity import Slots
from kant.placement.fits import capacity
from kant.placement.topology.index import CLUSTER, LEAF_LEVEL, Fabric, Topology

# --- columns, for each slot (a demand) and domain -----------------------------------------------------------------
FITTING_PODS = 0  # pods that fit now
FITTING_ON_BROKEN = 1  # pods that fit on partly taken nodes, or on nodes without GPUs
WHOLE_NODES = 2  # nodes with all GPUs free
GPU_NODES = 3  # nodes with GPUs
FREE_MILLI = 4  # milli-GPUs free
TIGHTEST = 5  # for an HBD or leaf: the milli-GPUs free on the fullest node on which a pod fits; NOWHERE: none
CAPACITY_WIDTH = 6

NOWHERE = 1 << 40

CAPACITY_CELLS = 1 << 23
"""Maximum number of cells: 107 demands at 12,500 nodes, 64 MiB."""


class DomainCapacity(Slots):
    """The capacity of each domain for each demand used so far. Follows the log of changed nodes."""

    def __init__(self, topology: Topology) -> None:
        self.closed: Table = np.zeros(len(topology.node_order), dtype=np.int64)  # 1 for nodes that do not count
        self.fabric, self.domains = topology.fabric, topology.offsets[-1]
        super().__init__(self.domains * CAPACITY_WIDTH, CAPACITY_CELLS)

    def _allot(self, slots: int, kept: int) -> None:
        rows = np.zeros((slots, self.domains, CAPACITY_WIDTH), dtype=np.int64)
        cursors = np.full(slots, -1, dtype=np.int64)  # position of each slot in the log
        if kept:
            rows[:kept], cursors[:kept] = self.rows, self.cursors
        self.rows: Table = rows
        self.cursors: Table = cursors

    def move(self, topology: Topology) -> None:
        """Move nodes into the domains of another topology: the counts of each node are kept, and summed again."""
        used, nodes = len(self.slot_of), len(topology.node_order)
        counted = self.rows[:used, self.fabric.position[topology.node_order]]
        self.fabric, self.domains = topology.fabric, topology.offsets[-1]
        self._cells = self.domains * CAPACITY_WIDTH
        self.rows = np.zeros((len(self.rows), self.domains, CAPACITY_WIDTH), dtype=np.int64)
        rows, tight = self.rows[:used], np.where(counted[:, :, FITTING_PODS] > 0, counted[:, :, FREE_MILLI], NOWHERE)
        rows[:, :nodes] = counted
        for level in range(1, CLUSTER + 1 if nodes else 0):
            (below, first), last = topology.offsets[level - 1 : level + 1], topology.offsets[level + 1]
            begins = topology.inner[first:last, 0] - below
            rows[:, first:last] = np.add.reduceat(rows[:, below:first], begins, axis=1)
            if level <= LEAF_LEVEL:
                tight = np.minimum.reduceat(tight, begins, axis=1)
            rows[:, first:last, TIGHTEST] = tight if level <= LEAF_LEVEL else 0

    def close(self, nodes: Table) -> None:
        """Exclude exactly the nodes with a 1 in `nodes` from now on."""
        if not np.array_equal(nodes, self.closed):
            self.closed[:] = nodes
            self.cursors[:] = -1


@compiled
def follow(
    table: Table, log: Table, demands: Table, asked: Table, fabric: Fabric, rows: Table, cursors: Table, slots: Table,
    closed: Table,
) -> None:  # fmt: skip
    """Add the changes of each changed node to every domain above it, in the slots of the demands `asked`."""
    for group in range(asked.shape[0]):
        follow_demand(table, log, demands, asked[group], fabric, rows, cursors, slots[group], closed)


@inlined
def follow_demand(
    table: Table, log: Table, demands: Table, d: int, fabric: Fabric, rows: Table, cursors: Table, slot: int,
    closed: Table,
) -> None:  # fmt: skip
    """Do what `follow` does, for one demand."""
    ring, nodes, cursor = log.shape[0] - 1, fabric.node_order.shape[0], cursors[slot]
    anew = cursor < 0 or log[0] - cursor > ring
    for k in range(nodes if anew else log[0] - cursor):
        place = k if anew else fabric.position[log[1 + (cursor + k) % ring]]
        above = fabric.domain_of[place]
        count_node(table, fabric.node_order[place], demands, d, above, rows[slot], closed)
        if not anew:
            for level in range(1, LEAF_LEVEL + 1):
                tighten(rows[slot], above[level], fabric.domain_range)
    if anew:
        for domain in range(nodes, fabric.domain_of[nodes - 1, LEAF_LEVEL] + 1 if nodes > 0 else 0):
            tighten(rows[slot], domain, fabric.domain_range)
    cursors[slot] = log[0]


@inlined
def count_node(table: Table, node: int, demands: Table, d: int, above: Table, rows: Table, closed: Table) -> None:
    """Update the counts of a node, and of the domains `above` it."""
    fitting = 0 if closed[node] == 1 else capacity(table, node, demands, d)
    serves = closed[node] == 0 and table[node, STATUS] == 0 and admits(demands, d, table[node, POOL], node)
    nodes = 1 if serves and table[node, GPUS] > 0 else 0
    whole = 1 if nodes == 1 and table[node, FREE] == table[node, GPUS] * 1000 else 0
    before = rows[above[0]]
    fitting_more = fitting - before[FITTING_PODS]
    broken_more = (0 if whole == 1 else fitting) - before[FITTING_ON_BROKEN]
    whole_more = whole - before[WHOLE_NODES]
    nodes_more = nodes - before[GPU_NODES]
    free = max(table[node, FREE], 0) if serves else 0  # below 0 if reservations overlap on a node that has lost GPUs
    free_more = free - before[FREE_MILLI]
    for level in range(above.shape[0]):
        row = rows[above[level]]
        row[FITTING_PODS] += fitting_more
        row[FITTING_ON_BROKEN] += broken_more
        row[WHOLE_NODES] += whole_more
        row[GPU_NODES] += nodes_more
        row[FREE_MILLI] += free_more


@inlined
def tighten(rows: Table, domain: int, domain_range: Table) -> None:
    """Recompute TIGHTEST of a domain from all its nodes."""
    tight = NOWHERE
    for place in range(domain_range[domain, 0], domain_range[domain, 1]):
        if rows[place, FITTING_PODS] > 0:
            tight = min(tight, rows[place, FREE_MILLI])
    rows[domain, TIGHTEST] = tight


@inlined
def holds_all(rows: Table, slots: Table, counts: Table, milli: int, domain: int) -> bool:
    """Return whether each group alone fits into the domain, and that `milli` milli-GPUs are free for the first."""
    for group in range(slots.shape[0]):
        if rows[slots[group], domain, FITTING_PODS] < counts[group]:
            return False
    return bool(rows[slots[0], domain, FREE_MILLI] >= milli)


@compiled
def best_domain(
    rows: Table, slots: Table, counts: Table, milli: int, first: int, last: int, domain_of: Table, ancestors: Table,
    occupied: Table, failed: Table,
) -> int:  # fmt: skip
    """Return the domain in [first, last) for a whole gang, so that large free blocks remain; -1: none holds it.

    `counts` are the pods of the demands in `slots`. `milli` milli-GPUs must be free on nodes of the first demand. In
    this order it prefers domains in which the gang already has pods; that it fills exactly; in which it breaks no whole
    node; that are already broken (for a node: whose leaf is broken). Ties go to the domain whose superspine, and then
    whose spine, has the fewest whole nodes left, so that broken domains are close at every level. Further ties go to
    the domain with the fewest whole nodes itself, then with the least room; among nodes to the fullest. A single pod
    uses the leaf with the fullest node instead: it fills nodes, not leaves.
    """
    best, key, lead = -1, (0, 0, 0, 0, 0, 0, 0, 0, 0), slots[0]
    single = slots.shape[0] == 1 and counts[0] == 1
    leaves_end = domain_of[domain_of.shape[0] - 1, LEAF_LEVEL] if domain_of.shape[0] > 0 else 0
    for domain in range(first, last):
        if failed[domain] != 0 or not holds_all(rows, slots, counts, milli, domain):
            continue
        row = rows[lead, domain]
        exact = row[FITTING_PODS] == counts[0] if slots.shape[0] == 1 else row[FREE_MILLI] == milli
        breaks = 0
        for group in range(slots.shape[0]):
            if rows[slots[group], domain, FITTING_ON_BROKEN] < counts[group]:
                breaks = 1
        around = rows[lead, domain_of[domain, LEAF_LEVEL]] if domain < domain_of.shape[0] else row
        unbroken = 1 if around[WHOLE_NODES] == around[GPU_NODES] else 0
        fullest, whole, least = 0, around[WHOLE_NODES], around[FITTING_PODS]
        if domain < domain_of.shape[0]:
            whole, least = row[FREE_MILLI], 0
        elif single and domain <= leaves_end:
            exact, fullest, whole, least = False, row[TIGHTEST], 0, 0
        own = (
            1 - occupied[domain], 0 if exact else 1, breaks, unbroken, fullest, rows[lead, ancestors[domain, 1],
            WHOLE_NODES], rows[lead, ancestors[domain, 0], WHOLE_NODES], whole, least,
        )  # fmt: skip
        if best < 0 or own < key:
            best, key = domain, own
    return best


@compiled
def largest_domain(rows: Table, slot: int, first: int, last: int, occupied: Table) -> int:
    """Return the domain in [first, last) in which the most pods fit; domains that have pods of the gang come first."""
    best, key = -1, (0, 0)
    for domain in range(first, last):
        fitting = rows[slot, domain, FITTING_PODS]
        own = (occupied[domain], fitting)
        if fitting > 0 and (best < 0 or own > key):
            best, key = domain, own
    return best
