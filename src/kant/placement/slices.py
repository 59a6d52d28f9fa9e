"""Chooses the slices and the GPU for a pod on a node in MIG mode.

A *place* is a start on a GPU at which an instance of some profile fits. The pod uses the device and the start that lose
the fewest places, over all profiles. So a small instance goes to the end of a GPU that is already cut, where no large
instance could begin. To lose the least of what other pods could use is the idea of FGD (Weng et al., USENIX ATC 2023);
the places are those of the MIG User Guide; the count is Kant's own.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import D_SLICES, D_STARTS, DEVICES, MIG, Table, end_of_devices, slices_at
from kant.compiled import inlined
from kant.model.mig import EIGHTHS, QUARTERS

PLACES_OF_EIGHT: Table = np.array(EIGHTHS, dtype=np.int64)
PLACES_OF_FOUR: Table = np.array(QUARTERS, dtype=np.int64)


@inlined
def starts_left(occupied: int, size: int, starts: int) -> int:
    """Return how many instances of `size` slices can begin at one of `starts`, each alone, given the `occupied` slices.

    Places of one profile do not overlap, so all of these fit together.
    """
    free = 0
    for start in range(8):
        if (starts >> start) & 1 and occupied & (((1 << size) - 1) << start) == 0:
            free += 1
    return free


@inlined
def places_left(occupied: int, slices: int) -> int:
    """Return the number of places left on a GPU, over all profiles."""
    places = PLACES_OF_EIGHT if slices == 8 else PLACES_OF_FOUR
    left = 0
    for profile in range(places.shape[0]):
        left += starts_left(occupied, places[profile, 0], places[profile, 1])
    return left


@inlined
def slices_capacity(table: Table, node: int, demands: Table, d: int) -> int:
    """Return how many instances of the demand fit on the GPUs of a node in MIG mode."""
    pods = 0
    first = slices_at(table)
    for device in range(end_of_devices(table, node)):
        if table[node, DEVICES + device] < 0:
            continue
        pods += starts_left(table[node, first + device], demands[d, D_SLICES], demands[d, D_STARTS])
    return int(pods)


@inlined
def best_slices(table: Table, node: int, demands: Table, d: int) -> tuple[int, int]:
    """Return the device and slices (bits) for a pod that fits, which lose the fewest places; on ties, the first."""
    first, slices = slices_at(table), 1000 // table[node, MIG]
    best, chosen, least = 0, 0, 1 << 20
    for device in range(end_of_devices(table, node)):
        if table[node, DEVICES + device] < 0:
            continue
        occupied = table[node, first + device]
        before = places_left(occupied, slices)
        for start in range(slices):
            window = ((1 << demands[d, D_SLICES]) - 1) << start
            if (demands[d, D_STARTS] >> start) & 1 == 0 or occupied & window != 0:
                continue
            lost = before - places_left(occupied | window, slices)
            if lost < least:
                best, chosen, least = device, window, lost
    return best, chosen


@inlined
def cut(table: Table, node: int, demands: Table, d: int, piece: Table) -> None:
    """Write to `piece` the device and slices for a pod that fits."""
    device, slices = best_slices(table, node, demands, d)
    piece[2] = 1 << device
    piece[6] = -1 - slices
