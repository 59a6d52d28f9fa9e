"""What fits on a node, and which of its devices a pod gets unless its policy knows better."""

from __future__ import annotations

from kant.cluster.columns import (
    CPU_FREE,
    D_CPU,
    D_GPUS,
    D_MEMORY,
    D_MILLI,
    D_POOLS,
    DEVICES,
    IDLE,
    MEMORY_FREE,
    POOL,
    STATUS,
    Table,
    devices_of,
)
from kant.compiled import inlined

NO_LIMIT = 1 << 40


@inlined
def capacity(table: Table, node: int, demands: Table, d: int) -> int:
    """How many pods of demand `d` the node takes now: 0 where it is closed to them."""
    if table[node, STATUS] != 0 or (demands[d, D_POOLS] >> table[node, POOL]) & 1 == 0:
        return 0
    pods = NO_LIMIT
    gpus, milli = demands[d, D_GPUS], demands[d, D_MILLI]
    if gpus > 0:
        pods = table[node, IDLE] // gpus if milli == 1000 else shared_capacity(table, node, gpus, milli)
        if pods == 0:
            return 0
    if demands[d, D_CPU] > 0:
        pods = min(pods, table[node, CPU_FREE] // demands[d, D_CPU])
    if demands[d, D_MEMORY] > 0:
        pods = min(pods, table[node, MEMORY_FREE] // demands[d, D_MEMORY])
    return int(max(pods, 0))


@inlined
def shared_capacity(table: Table, node: int, gpus: int, milli: int) -> int:
    """Pods that each want `milli` of `gpus` different devices: the most k of which no device serves more than k."""
    shares = 0
    for device in range(devices_of(table)):
        shares += max(table[node, DEVICES + device], 0) // milli
    pods = shares // gpus
    while gpus > 1 and pods > 0:
        served = 0
        for device in range(devices_of(table)):
            served += min(max(table[node, DEVICES + device], 0) // milli, pods)
        if served >= gpus * pods:
            break
        pods = served // gpus
    return int(pods)


@inlined
def tightest(table: Table, node: int, demands: Table, d: int) -> int:
    """The devices that fit with the least free amount, lowest index on ties, as bits.

    Shares of several devices at once take those with the most: only so do as many pods fit as there is room for.
    """
    mask = 0
    loosest = demands[d, D_GPUS] > 1 and demands[d, D_MILLI] < 1000
    for _ in range(demands[d, D_GPUS]):
        best = -1
        for device in range(devices_of(table)):
            free = table[node, DEVICES + device]
            if free < demands[d, D_MILLI] or (mask >> device) & 1:
                continue
            if best < 0 or (free > table[node, DEVICES + best] if loosest else free < table[node, DEVICES + best]):
                best = device
        mask |= 1 << best
    return mask


@inlined
def mixed(seed: int, number: int) -> int:
    """A well-mixed 32-bit integer from two. No step leaves 63 bits, so Python and compiled code agree."""
    bits = (seed ^ (seed >> 32)) & 0xFFFFFFFF
    for part in range(2):
        bits = (bits + (number & 0xFFFFFFFF) * part) & 0xFFFFFFFF
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        bits = ((bits ^ (bits >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        bits = bits ^ (bits >> 16)
    return bits
