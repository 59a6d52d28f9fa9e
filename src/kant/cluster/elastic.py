"""Elastic gangs: what they may hold, what they give back, and their progress at changing sizes.

The work of an elastic gang, in pod-microseconds, is its run time with all its pods times their number. With p pods it
does p pod-microseconds a microsecond. A *piece* is a row of an allocation: pods of one group on one node.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import J_ATTAINED, J_MILLI, J_PODS, J_REMAINING, J_SINCE, J_STARTED, Table
from kant.cluster.shapes import Shape
from kant.model.errors import StateError
from kant.model.job import Demand
from kant.model.placement import CPU, GROUP, MASK, MEMORY, MILLI, NODE, PODS, TAG, WIDTH, Allocation
from kant.model.units import FOREVER


def pods_by_group(shape: Shape, allocation: Allocation) -> tuple[int, ...] | None:
    """Return how many pods of each group an elastic gang holds.

    None if a group has fewer pods than its floor or more than its ceiling, or a piece is not what its pods asked for.
    """
    counts = [0] * len(shape.groups)
    for piece in allocation.tolist():
        group = piece[GROUP]
        if not 0 <= group < len(counts) or not is_of(piece, shape.groups[group].demand):
            return None
        counts[group] += piece[PODS]
    bounds = zip(shape.groups, counts, shape.ceiling, strict=True)
    return tuple(counts) if all(group.count <= count <= ceiling for group, count, ceiling in bounds) else None


def is_of(piece: list[int], demand: Demand) -> bool:
    """Return whether a piece has exactly the devices, CPU and memory that its pods need, if each asks for `demand`."""
    pods, devices = piece[PODS], piece[MASK].bit_count()
    amounts = devices, piece[CPU], piece[MEMORY]
    right = pods > 0 and amounts == (pods * demand.gpus, pods * demand.cpu, pods * demand.memory)
    return right and (not devices or piece[MILLI] == demand.milli)


def above_floor(shape: Shape, allocation: Allocation) -> Allocation:
    """Return what an elastic gang holds beyond its floor. These are its last pods, so that the first ranks stay."""
    spare = [-group.count for group in shape.groups]
    for piece in allocation.tolist():
        spare[piece[GROUP]] += piece[PODS]
    pieces = []
    for piece in reversed(allocation.tolist()):
        node, pods, mask, milli, cpu, memory, tag, group, counted = piece
        leave = min(spare[group], pods)
        if leave:
            spare[group] -= leave
            devices = leave * (mask.bit_count() // pods)
            pieces.append([node, leave, _highest(mask, devices), milli, leave * (cpu // pods),
                           leave * (memory // pods), tag, group, counted])  # fmt: skip
    return np.array(pieces, dtype=np.int64).reshape(-1, WIDTH)


def pod_by_pod(pieces: Allocation) -> Allocation:
    """Return the pieces with one row for each pod, the pods of the highest devices first."""
    rows = []
    for node, pods, mask, milli, cpu, memory, tag, group, counted in pieces.tolist():
        devices = mask.bit_count() // pods
        for _ in range(pods):
            own = _highest(mask, devices)
            mask -= own
            rows.append((node, 1, own, milli, cpu // pods, memory // pods, tag, group, counted))
    return np.array(rows, dtype=np.int64).reshape(-1, WIDTH)


def _highest(mask: int, count: int) -> int:
    """Return the `count` highest bits of a mask."""
    for _ in range(mask.bit_count() - count):
        mask &= mask - 1
    return mask if count else 0


def without(allocation: Allocation, pieces: Allocation) -> Allocation:
    """Return `allocation` without `pieces`. Raises StateError if the allocation does not hold them."""
    rows: list[list[int]] = allocation.tolist()
    for piece in pieces.tolist():
        for row in rows:
            same = all(row[column] == piece[column] for column in (NODE, MILLI, TAG, GROUP))
            enough = row[PODS] >= piece[PODS] > 0 and row[CPU] >= piece[CPU] >= 0 and row[MEMORY] >= piece[MEMORY] >= 0
            if same and enough and piece[MASK] >= 0 and row[MASK] & piece[MASK] == piece[MASK]:
                row[MASK] -= piece[MASK]
                for column in (PODS, CPU, MEMORY):
                    row[column] -= piece[column]
                if row[PODS] == 0 and (row[MASK] or row[CPU] or row[MEMORY]):
                    raise StateError(f"removing piece {piece} leaves devices without a pod")
                break
        else:
            raise StateError(f"piece {piece} is not held")
    return np.array([row for row in rows if row[PODS]], dtype=np.int64).reshape(-1, WIDTH)


def held_by(allocation: Allocation) -> tuple[int, int, int]:
    """Return the milli-GPUs, thousandths of a core and MiB of an allocation."""
    milli = sum(piece[MASK].bit_count() * piece[MILLI] for piece in allocation.tolist())
    return milli, int(allocation[:, CPU].sum()), int(allocation[:, MEMORY].sum())


class Progress:
    """The progress of one elastic gang. The job table has its times converted to the gang's present size.

    `left` is the remaining estimate, in pod-microseconds (-1: unknown); `served` the milli-GPU-microseconds used so far
    (pod-microseconds for a gang without GPUs). Both are as of J_SINCE, and may exceed 64 bits. `pods` and `milli` are
    what the gang holds while it runs, and its floor while it waits. `resized` is when the gang started or was last
    resized (µs). `ripe`: the owner has scaled the gang since then, so the gang may grow at once.
    """

    __slots__ = ("ceiling", "left", "milli", "pods", "resized", "ripe", "served", "shape")

    def __init__(self, shape: Shape, estimate: int) -> None:
        self.shape = shape
        self.ceiling = sum(shape.ceiling)
        self.pods, self.milli = shape.pods, shape.gpu_milli
        self.left = estimate * self.ceiling if estimate >= 0 else -1
        self.served = 0
        self.resized = -1
        self.ripe = False

    @classmethod
    def of_rigid(cls, shape: Shape, jobs: Table, row: int) -> Progress:
        """Return the progress of a job that has run with a fixed number of pods, and is elastic from now on."""
        own = cls(shape, -1)
        own.pods, own.milli, left, attained, own.resized = (
            int(jobs[row, column]) for column in (J_PODS, J_MILLI, J_REMAINING, J_ATTAINED, J_STARTED)
        )
        own.left = left * own.pods if left >= 0 else -1
        own.served = attained * own._weight
        own.ripe = True
        return own

    @property
    def _weight(self) -> int:
        return self.milli if self.shape.most_milli else self.pods

    def time_at_ceiling(self) -> int:
        """Return how long the work done so far would have taken with all pods of the gang, microseconds."""
        return self.served // (self.shape.most_milli or self.ceiling)

    def done(self, said: int, elapsed: int) -> int:
        """Return the pod-microseconds of work done once the gang has run for `elapsed` µs since J_SINCE.

        `said` is the estimated run time with all pods, µs (-1: unknown). Work that must be repeated does not count.
        """
        if said >= 0 and self.left > 0:
            return said * self.ceiling - max(self.left - elapsed * self.pods, 0)
        return (self.served + elapsed * self._weight) * self.ceiling // (self.shape.most_milli or self.ceiling)

    def settle(self, jobs: Table, row: int, now: int) -> None:
        """Add the progress since J_SINCE. Call it before the size of the gang changes."""
        elapsed = now - int(jobs[row, J_SINCE])
        self.served += elapsed * self._weight
        if self.left >= 0:
            self.left = max(self.left - elapsed * self.pods, 0)

    def costs(self, cost: int) -> None:
        """Add `cost` to the remaining work: the work that all pods of the gang do together in `cost` microseconds."""
        if self.left >= 0:
            self.left += cost * self.ceiling

    def turn_to(self, jobs: Table, row: int, pods: int, milli: int) -> None:
        """Set the gang's size, and convert its times in the job table to this size."""
        self.pods, self.milli = pods, milli
        jobs[row, J_PODS], jobs[row, J_MILLI] = pods, milli
        jobs[row, J_ATTAINED] = min(self.served // self._weight, FOREVER)
        if self.left >= 0:
            jobs[row, J_REMAINING] = min(-(-self.left // pods), FOREVER)

    def rest(self, jobs: Table, row: int) -> None:
        """Set the gang's size to its floor, as for a gang that waits."""
        self.turn_to(jobs, row, self.shape.pods, self.shape.gpu_milli)

    def leave(self, jobs: Table, row: int) -> None:
        """Set the columns of a gang that leaves for good: its largest size, and its run time converted to that size."""
        self.turn_to(jobs, row, self.ceiling, self.shape.most_milli)
