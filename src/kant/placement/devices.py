"""Choice of GPUs within a node: GPUs that are close to each other, so that whole blocks stay free.

The devices of a node are grouped in blocks of three nested sizes (`columns.BLOCKS`): GPUs under one PCIe switch with
its NICs, of one NUMA node, or of one NVLink island, from the smallest to the largest. A pod uses the narrowest block in
which it fits. Of several such blocks it uses one that it fills exactly, or else the one with the fewest devices left.
So whole blocks stay whole for the next pod that needs one. This is best fit, level by level, as gangs choose domains
(`domain_capacity.best_domain`).

Sets of devices are bits of one integer.
"""

from __future__ import annotations

from kant.cluster.columns import BLOCKS, DEVICES, ISLAND, Table, bits_in, end_of_devices
from kant.compiled import inlined, shared

LEVELS = 3
"""Number of block sizes in the row of a node."""


@inlined
def lowest(mask: int, wanted: int) -> int:
    """Return the first `wanted` devices of `mask`."""
    found = 0
    for _ in range(wanted):
        bit = mask & -mask
        found |= bit
        mask ^= bit
    return found


@inlined
def span(first: int, size: int) -> int:
    """Return `size` devices from `first` on."""
    return ((1 << size) - 1) << first


@inlined
def idle_devices(table: Table, node: int) -> int:
    """Return the devices of which no part is held."""
    idle = 0
    for device in range(end_of_devices(table, node)):
        if table[node, DEVICES + device] == 1000:
            idle |= 1 << device
    return idle


@inlined
def left_around(table: Table, node: int, idle: int, device: int, level: int) -> int:
    """Return the counts of idle devices in the blocks around a device, from `level` to the widest, as one sort key."""
    key = 0
    for wider in range(level, LEVELS):
        size = table[node, BLOCKS + wider]
        key = key * 64 + bits_in(idle & span(device - device % size, size))
    return int(key)


@shared
def closest(table: Table, node: int, idle: int, wanted: int) -> int:
    """Return `wanted` of the `idle` devices, as close together as possible. At least `wanted` must be idle.

    They come from the narrowest block that has enough. Of several blocks it is the one with the fewest idle devices, on
    ties the one whose wider blocks have fewer, then the first. Inside it they come from the fewest blocks of the next
    smaller size: all of the block with the most idle devices, and the remainder by the same rule.
    """
    chosen, room = 0, idle
    while wanted > 0:
        best, least, level = 0, 0, 0
        while best == 0 and level < LEVELS:
            size = table[node, BLOCKS + level]
            for first in range(0, end_of_devices(table, node), size):
                here = room & span(first, size)
                if bits_in(here) >= wanted:
                    left = left_around(table, node, idle, first, level)
                    if best == 0 or left < least:
                        best, least = here, left
            level += 1
        if best == 0:  # no block but the node itself
            best, level = room, LEVELS + 1
        if level == 1 or bits_in(best) == wanted:
            return chosen | lowest(best, wanted)
        part = fullest_part(table, node, best, level - 2)
        chosen |= part
        idle &= ~part
        room = best & ~part
        wanted -= bits_in(part)
    return chosen


@inlined
def fullest_part(table: Table, node: int, room: int, level: int) -> int:
    """Return the devices of `room` in that block of a level which has the most of them, the first on ties."""
    part = 0
    for first in range(0, end_of_devices(table, node), table[node, BLOCKS + level]):
        here = room & span(first, table[node, BLOCKS + level])
        if bits_in(here) > bits_in(part):
            part = here
    return part


@inlined
def pods_in_islands(table: Table, node: int, idle: int, gpus: int) -> int:
    """Return how many pods of `gpus` devices fit on the `idle` ones, each pod in one NVLink island."""
    pods = 0
    for first in range(0, end_of_devices(table, node), table[node, ISLAND]):
        pods += bits_in(idle & span(first, table[node, ISLAND])) // gpus
    return int(pods)
