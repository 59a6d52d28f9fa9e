"""Devices of nodes: proposed by a placement, held by an Allocation, promised by a Reservation, or booked by a user.

All are one array with the columns below. A row is a *piece*: pods of one group of a gang on one node. The rows alone
determine what to take from a node and what to give back, so nothing has to be looked up when the gang ends. The devices
of a piece belong to its pods in the order of their indices: the first ones to the first pod, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NODE = 0  # index of the node in the cluster
PODS = 1  # pods of this piece
MASK = 2  # bit i set: device i of the node is used
MILLI = 3  # thousandths taken of each of those devices; without devices: the value of each pod's GPU parts
CPU = 4  # thousandths of a core, all pods of the piece together
MEMORY = 5  # MiB, all pods together
TAG = 6  # whole GPUs per pod; 0 for a pod with a share of a GPU, -1 for one without GPUs; below: MIG slices
GROUP = 7  # the group of the job that the pods belong to
COUNTED = 8  # `D_COUNTED` of the pods' demand: valid in one state only, and not written to journals
WIDTH = 9

Allocation = NDArray[np.int64]
"""Shape (pieces, WIDTH)."""


def slices_of_tag(tag: int) -> int:
    """Return the memory slices, as bits, that a piece with this tag takes of each device; 0: no MIG instance."""
    return -1 - tag if tag < -1 else 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Real devices on real nodes, promised at `since` to a waiting job from `start` to `end` (microseconds)."""

    start: int
    end: int
    allocation: Allocation
    since: int


@dataclass(frozen=True, slots=True)
class Booking:
    """Whole GPUs that `user` has booked from `start` to before `end` (microseconds), for jobs that name the booking."""

    start: int
    end: int
    allocation: Allocation
    user: str = ""

    def devices(self) -> dict[int, int]:
        """Return the booked GPUs by node, as bits."""
        found: dict[int, int] = {}
        for piece in self.allocation.tolist():
            found[piece[NODE]] = found.get(piece[NODE], 0) | piece[MASK]
        return found


def gpu_milli(allocation: Allocation) -> int:
    """Return the milli-GPUs of an allocation."""
    return sum(int(piece[MASK]).bit_count() * int(piece[MILLI]) for piece in allocation)
