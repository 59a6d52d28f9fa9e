"""What every domain of the fabric has for a demand, kept from cycle to cycle, and which domain a gang should take.

Nodes that are out of service, or that do not admit the demand, count for nothing.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import D_POOLS, FREE, GPUS, POOL, STATUS, Table
from kant.compiled import compiled, inlined
from kant.placement.fabric_line import LEAF_LEVEL, Fabric
from kant.placement.fits import capacity

# --- columns, for each slot (a demand) and domain -----------------------------------------------------------------
R_TAKES = 0  # pods that fit now
R_BROKEN = 1  # those of them that fit on nodes of which a part is taken, or that have no GPUs
R_WHOLE = 2  # nodes with all GPUs free
R_NODES = 3  # nodes with GPUs
R_FREE = 4  # milli-GPUs free
R_TIGHT = (
    5  # of an HBD and a leaf: the milli-GPUs free on the fullest node on which a pod fits; NOWHERE where none does
)
ROOM_WIDTH = 6

NOWHERE = 1 << 40

ROOM_CELLS = 1 << 23
"""Most numbers that are kept: 107 demands at 12,500 nodes, 64 MiB."""


class Rooms:
    """The rooms of the domains for each demand that has been asked for. Losing them costs time only."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.closed: Table = np.zeros(len(fabric.walk), dtype=np.int64)  # 1 for nodes that count for nothing
        self.domains = fabric.offsets[-1]
        self.slot_of: dict[int, int] = {}
        self._allot(4)

    def _allot(self, slots: int) -> None:
        self.rooms = np.zeros((slots, self.domains, ROOM_WIDTH), dtype=np.int64)
        self.cursors: Table = np.full(slots, -1, dtype=np.int64)  # how far in the log each slot has come

    def slots(self, demands: list[int]) -> Table:
        """The slots of these demands. When there are too many, all are given up and made again when asked for."""
        new = {demand for demand in demands if demand not in self.slot_of}
        used = len(self.slot_of) + len(new)
        if new and used > len(self.cursors):
            rooms, cursors = self.rooms, self.cursors
            if used * self.domains * ROOM_WIDTH > ROOM_CELLS:
                self.slot_of.clear()
                self._allot(max(len(cursors), len(demands)))
            else:
                self._allot(max(2 * len(cursors), used))
                self.rooms[: len(rooms)], self.cursors[: len(cursors)] = rooms, cursors
        return np.array([self.slot_of.setdefault(demand, len(self.slot_of)) for demand in demands], dtype=np.int64)

    def close(self, nodes: Table) -> None:
        """From now on exactly the nodes with a 1 in `nodes` count for nothing."""
        if not np.array_equal(nodes, self.closed):
            self.closed[:] = nodes
            self.cursors[:] = -1

    def follow(self, slot: int, table: Table, log: Table, demands: Table, demand: int) -> None:
        """Bring a slot up to date: the cost is that of the nodes that changed."""
        fabric = self.fabric
        follow(
            table, log, demands, demand, fabric.walk, fabric.place_of, fabric.home, fabric.spans, self.rooms,
            self.cursors, slot, self.closed,
        )  # fmt: skip


@compiled
def follow(
    table: Table, log: Table, demands: Table, d: int, walk: Table, place_of: Table, home: Table, spans: Table,
    rooms: Table, cursors: Table, slot: int, closed: Table,
) -> None:  # fmt: skip
    """Add to every domain above a changed node what has changed."""
    ring = log.shape[0] - 1
    cursor = cursors[slot]
    anew = cursor < 0 or log[0] - cursor > ring
    for k in range(walk.shape[0] if anew else log[0] - cursor):
        place = k if anew else place_of[log[1 + (cursor + k) % ring]]
        node = walk[place]
        takes = 0 if closed[node] == 1 else capacity(table, node, demands, d)
        serves = closed[node] == 0 and table[node, STATUS] == 0 and (demands[d, D_POOLS] >> table[node, POOL]) & 1 == 1
        nodes = 1 if serves and table[node, GPUS] > 0 else 0
        whole = 1 if nodes == 1 and table[node, FREE] == table[node, GPUS] * 1000 else 0
        before = rooms[slot, place]
        takes_more = takes - before[R_TAKES]
        broken_more = (0 if whole == 1 else takes) - before[R_BROKEN]
        whole_more = whole - before[R_WHOLE]
        nodes_more = nodes - before[R_NODES]
        free_more = (table[node, FREE] if serves else 0) - before[R_FREE]
        for level in range(home.shape[1]):
            room = rooms[slot, home[place, level]]
            room[R_TAKES] += takes_more
            room[R_BROKEN] += broken_more
            room[R_WHOLE] += whole_more
            room[R_NODES] += nodes_more
            room[R_FREE] += free_more
        if not anew:
            for level in range(1, LEAF_LEVEL + 1):
                tighten(rooms, slot, home[place, level], spans)
    if anew:
        for domain in range(walk.shape[0], home[walk.shape[0] - 1, LEAF_LEVEL] + 1 if walk.shape[0] > 0 else 0):
            tighten(rooms, slot, domain, spans)
    cursors[slot] = log[0]


@inlined
def tighten(rooms: Table, slot: int, domain: int, spans: Table) -> None:
    """Look anew for the fullest node of a domain on which a pod fits."""
    tight = NOWHERE
    for place in range(spans[domain, 0], spans[domain, 1]):
        if rooms[slot, place, R_TAKES] > 0:
            tight = min(tight, rooms[slot, place, R_FREE])
    rooms[slot, domain, R_TIGHT] = tight


@inlined
def holds_all(rooms: Table, slots: Table, counts: Table, milli: int, domain: int) -> bool:
    """Whether each group alone fits into the domain, and their `milli`-GPUs together are free there."""
    for group in range(slots.shape[0]):
        if rooms[slots[group], domain, R_TAKES] < counts[group]:
            return False
    return bool(rooms[slots[0], domain, R_FREE] >= milli)


@compiled
def best_domain(
    rooms: Table, slots: Table, counts: Table, milli: int, first: int, last: int, home: Table, above: Table,
    touched: Table, failed: Table,
) -> int:  # fmt: skip
    """The domain in [first, last) that a gang should take whole, so that large holes stay; -1 where none holds it.

    `counts` pods of the demands in `slots`, `milli`-GPUs together. First comes a domain in which the gang has pods
    already; then one that it fills exactly; one in which it breaks no node that is whole; one that is broken already
    (of a node: its leaf is). Of these the one in the superspine, and then in the spine, with the fewest whole nodes
    left, so that what is broken lies together at every level; then the one with the fewest itself, and with the least
    room; of nodes the fullest. A single pod goes to the leaf with the fullest node instead: it fills nodes, not leaves.
    """
    best, key, lead = -1, (0, 0, 0, 0, 0, 0, 0, 0, 0), slots[0]
    single = slots.shape[0] == 1 and counts[0] == 1
    leaves_end = home[home.shape[0] - 1, LEAF_LEVEL] if home.shape[0] > 0 else 0
    for domain in range(first, last):
        if failed[domain] != 0 or not holds_all(rooms, slots, counts, milli, domain):
            continue
        room = rooms[lead, domain]
        exact = room[R_TAKES] == counts[0] if slots.shape[0] == 1 else room[R_FREE] == milli
        breaks = 0
        for group in range(slots.shape[0]):
            if rooms[slots[group], domain, R_BROKEN] < counts[group]:
                breaks = 1
        around = rooms[lead, home[domain, LEAF_LEVEL]] if domain < home.shape[0] else room
        unbroken = 1 if around[R_WHOLE] == around[R_NODES] else 0
        fullest, whole, least = 0, around[R_WHOLE], around[R_TAKES]
        if domain < home.shape[0]:
            whole, least = room[R_FREE], 0
        elif single and domain <= leaves_end:
            exact, fullest, whole, least = False, room[R_TIGHT], 0, 0
        own = (
            1 - touched[domain], 0 if exact else 1, breaks, unbroken, fullest, rooms[lead, above[domain, 1], R_WHOLE],
            rooms[lead, above[domain, 0], R_WHOLE], whole, least,
        )  # fmt: skip
        if best < 0 or own < key:
            best, key = domain, own
    return best


@compiled
def largest_domain(rooms: Table, slot: int, first: int, last: int, touched: Table) -> int:
    """The domain in [first, last) that takes the most pods; if some, of those in which the gang has pods already."""
    best, key = -1, (0, 0)
    for domain in range(first, last):
        takes = rooms[slot, domain, R_TAKES]
        own = (touched[domain], takes)
        if takes > 0 and (best < 0 or own > key):
            best, key = domain, own
    return best
