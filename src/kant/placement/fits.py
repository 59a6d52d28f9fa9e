"""How many pods fit on a node, and which of its devices a pod gets unless its policy chooses."""

from __future__ import annotations

from kant.cluster import columns as c
from kant.cluster.columns import Table, admits, counted_capacity, end_of_devices
from kant.compiled import inlined, shared
from kant.placement.devices import closest, idle_devices, left_around
from kant.placement.slices import slices_capacity


@inlined
def capacity(table: Table, node: int, demands: Table, d: int) -> int:
    """Return how many pods of demand `d` fit on the node now; 0 if the node accepts no such pods."""
    pods = amounts_capacity(table, node, demands, d, node)
    if demands[d, c.D_ENTRIES] > 0 and pods > 0:
        pods = min(pods, counted_capacity(table, node, demands, d, c.ALL))
    return int(pods)


@inlined
def own_capacity(table: Table, node: int, demands: Table, d: int) -> int:
    """Return the `capacity` of a node by the limits in its own row alone."""
    pods = amounts_capacity(table, node, demands, d, node)
    if demands[d, c.D_ENTRIES] > 0 and pods > 0:
        pods = min(pods, counted_capacity(table, node, demands, d, c.OWN))
    return int(pods)


@shared
def amounts_capacity(table: Table, node: int, demands: Table, d: int, who: int) -> int:
    """Return the `capacity` of a node by a demand's pools and node set, GPUs, CPU and memory alone.

    Row `node` of `table`, which may be a scratch row, has the amounts of node `who`.
    """
    if table[node, c.STATUS] != 0 or not admits(demands, d, table[node, c.POOL], who):
        return 0
    pods = c.NO_LIMIT
    gpus, milli = demands[d, c.D_GPUS], demands[d, c.D_MILLI]
    if gpus > 0:
        if demands[d, c.D_SLICES] > 0:
            pods = slices_capacity(table, node, demands, d)
        elif in_one_island(table, node, demands, d):
            pods = 0
            for first in range(0, end_of_devices(table, node), table[node, c.ISLAND]):
                pods += shared_capacity(table, node, first, first + table[node, c.ISLAND], gpus, milli)
        elif milli == 1000:
            pods = table[node, c.IDLE] // gpus
        else:
            pods = shared_capacity(table, node, 0, end_of_devices(table, node), gpus, milli)
        if pods == 0:
            return 0
    if demands[d, c.D_CPU] > 0:
        pods = min(pods, table[node, c.CPU_FREE] // demands[d, c.D_CPU])
    if demands[d, c.D_MEMORY] > 0:
        pods = min(pods, table[node, c.MEMORY_FREE] // demands[d, c.D_MEMORY])
    return int(max(pods, 0))


@inlined
def in_one_island(table: Table, node: int, demands: Table, d: int) -> bool:
    """Return whether a pod requires one NVLink island on a node that has several."""
    asked = demands[d, c.D_ISLAND] == 1 and demands[d, c.D_GPUS] > 1
    return bool(asked and table[node, c.ISLAND] < end_of_devices(table, node))


@inlined
def shared_capacity(table: Table, node: int, first: int, last: int, gpus: int, milli: int) -> int:
    """Return how many pods fit that each take `milli` of `gpus` different devices of [first, last).

    It is the largest k for which k pods fit with no device used by more than k of them.
    """
    shares = 0
    for device in range(first, last):
        shares += max(table[node, c.DEVICES + device], 0) // milli
    pods = shares // gpus
    while gpus > 1 and pods > 0:
        served = 0
        for device in range(first, last):
            served += min(max(table[node, c.DEVICES + device], 0) // milli, pods)
        if served >= gpus * pods:
            break
        pods = served // gpus
    return int(pods)


@shared
def tightest(table: Table, node: int, demands: Table, d: int) -> int:
    """Return the devices that a pod gets on a node where it fits, as bits.

    Whole GPUs are as close together as possible (`devices.closest`). A share goes to the device with the least free
    amount, on ties to the one in the most broken block, then to the first. Shares of several devices at once go to the
    devices with the most free, so that as many pods fit as `capacity` counts.
    """
    gpus, milli = demands[d, c.D_GPUS], demands[d, c.D_MILLI]
    if gpus == 0:
        return 0
    if milli == 1000:
        return closest(table, node, idle_devices(table, node), gpus)
    first, last = 0, end_of_devices(table, node)
    if in_one_island(table, node, demands, d):
        first = tightest_island(table, node, gpus, milli)
        last = first + table[node, c.ISLAND]
    blocks = table[node, c.BLOCKS] < end_of_devices(table, node)
    idle = idle_devices(table, node) if blocks else 0
    mask = 0
    for _ in range(gpus):
        best, least = -1, (0, 0)
        for device in range(first, last):
            free = table[node, c.DEVICES + device]
            if free < milli or (mask >> device) & 1:
                continue
            amount = -free if gpus > 1 else free
            left = left_around(table, node, idle, device, 0) if blocks else 0
            if best < 0 or (amount, left) < least:
                best, least = device, (amount, left)
        mask |= 1 << best
    return mask


@inlined
def tightest_island(table: Table, node: int, gpus: int, milli: int) -> int:
    """Return the first device of the island that fits the fewest such pods, but at least one."""
    best, fewest = 0, c.NO_LIMIT
    for first in range(0, end_of_devices(table, node), table[node, c.ISLAND]):
        pods = shared_capacity(table, node, first, first + table[node, c.ISLAND], gpus, milli)
        if 0 < pods < fewest:
            best, fewest = first, pods
    return int(best)


@inlined
def mixed(seed: int, number: int) -> int:
    """Mix two integers into a 32-bit one. No step exceeds 63 bits, so Python and compiled code agree."""
    bits = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    for part in range(2):
        bits = (bits + (number & 0xFFFFFFFF) * part) & 0xFFFFFFFF
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        bits = bits ^ (bits >> 16)
    return bits
