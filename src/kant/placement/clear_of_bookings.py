"""Moves a job from booked devices to equal nodes or devices that nobody has booked during its run.

Policies score a node by its row and take devices by their free thousandths. So two nodes with equal rows are equal for
every policy. Two devices of one node are also equal if their free amounts are equal and neither is in a narrower block.
Only equal nodes and devices are exchanged, so the result is as good for the policy as its own choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from kant.cluster.columns import BLOCKS, DEVICES, GPUS, HBD, LEAF, MIG, SUPERSPINE, Table
from kant.model.placement import MASK, NODE, Allocation


def clear_of_bookings(
    table: Table, allocation: Allocation, booked: Mapping[int, int], anywhere: bool, without: Collection[int] = ()
) -> Allocation:
    """Return the allocation, with other devices or nodes instead of those that are `booked` (bits by node).

    `table` is the node table before the allocation was taken. A node is exchanged for one in the same domains (with
    `anywhere` for any other), but never for one in `without`. If no equal node or device is unbooked, nothing changes.
    """
    moved = allocation.copy()
    taken = {*moved[:, NODE].tolist(), *without}
    for node in dict.fromkeys(allocation[:, NODE].tolist()):
        at = np.flatnonzero(allocation[:, NODE] == node)
        masks = allocation[at, MASK].tolist()
        if not any(mask & booked.get(node, 0) for mask in masks):
            continue
        devices = _other_devices(table, node, masks, booked[node])
        if devices is not None:
            moved[at, MASK] = devices
            continue
        for other in _equals(table, node, anywhere):
            devices = None if other in taken else _other_devices(table, other, masks, booked.get(other, 0))
            if devices is not None:
                moved[at, NODE], moved[at, MASK] = other, devices
                taken.add(other)
                break
    return moved


def _other_devices(table: Table, node: int, masks: list[int], booked: int) -> list[int] | None:
    """Return the masks of the pieces on a node, with equal devices for booked ones; None if too few are equal."""
    gpus = int(table[node, GPUS])
    if not any(mask & booked for mask in masks):
        return masks
    if table[node, MIG] or (table[node, BLOCKS : BLOCKS + 3] != gpus).any():
        return None
    free = table[node, DEVICES : DEVICES + gpus].tolist()
    used = 0
    for mask in masks:
        used |= mask
    instead: dict[int, int] = {}
    for device in range(gpus):
        if (used & booked) >> device & 1:
            clear = (other for other in range(gpus) if free[other] == free[device] and not (used | booked) >> other & 1)
            found = next(clear, None)
            if found is None:
                return None
            instead[device] = found
            used |= 1 << found
    for device, other in instead.items():
        masks = [mask & ~(1 << device) | 1 << other if mask >> device & 1 else mask for mask in masks]
    return masks


def _equals(table: Table, node: int, anywhere: bool) -> list[int]:
    """Return the other nodes with equal rows; domains of the fabric must be equal too, unless `anywhere`."""
    equal = (table[:, :HBD] == table[node, :HBD]).all(axis=1)
    equal &= (table[:, SUPERSPINE + 1 :] == table[node, SUPERSPINE + 1 :]).all(axis=1)
    if not anywhere:
        domains, sizes = table[:, HBD], np.bincount(table[:, HBD] - table[:, HBD].min())
        alone = sizes[domains - domains.min()] == 1
        equal &= (table[:, LEAF : SUPERSPINE + 1] == table[node, LEAF : SUPERSPINE + 1]).all(axis=1)
        equal &= (domains == domains[node]) | (alone & alone[node])
    equal[node] = False
    return [int(other) for other in np.flatnonzero(equal)]
