"""Slots: which pod of a gang uses which row of its allocation. Also allocations for pods that are already bound."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.kube.objects.views import Pod
from kant.kube.translate.group_spec import is_stand_in
from kant.model.job import Demand, Job
from kant.model.placement import CPU, GROUP, MASK, MEMORY, MILLI, NODE, PODS, WIDTH, Allocation
from kant.model.units import GPU


@dataclass(slots=True, eq=False)
class Slot:
    """A node for one pod of a job. `pod` is the pod's uid, "" while the slot is vacant; `bound`: the pod is bound.

    `done`: the slot's pod has succeeded, and no other pod gets the slot. `devices` is a bit mask of the GPUs that the
    core chose; a node that cannot assign particular GPUs uses others. `was` identifies the slot's last pod (see
    `elastic_jobs.identity`). `since` is when the slot became vacant, in seconds of the core's clock; -1 while it is
    filled. `expects` is the stand-in for a pod that is not created yet (`translate.parts`), until such a pod has been
    bound. `group` is the index of the slot's group in the job.
    """

    node: str
    demand: Demand
    pod: str = ""
    bound: bool = False
    done: bool = False
    devices: int = 0
    was: str = ""
    since: float = -1.0
    expects: Pod | None = None
    group: int = 0

    @property
    def settled(self) -> bool:
        """Whether the slot lacks nothing: its pod is bound, has succeeded, or is not created yet."""
        return self.bound or self.done or (self.expects is not None and not self.pod)

    @property
    def vacant(self) -> bool:
        return not self.pod and not self.done


@dataclass(frozen=True, slots=True)
class Member:
    """A waiting pod, its requests, and the index of its group in the job."""

    pod: Pod
    demand: Demand
    group: int = 0


def coming(slots: Iterable[Slot], pods: Mapping[str, Pod]) -> Iterator[tuple[Slot, Pod]]:
    """Yield each slot whose pod exists and is not bound yet, and the pod."""
    return ((slot, pods[slot.pod]) for slot in slots if not slot.bound and slot.pod in pods)


def slots_of(
    allocation: Allocation, members: Sequence[Member], names: Sequence[str], job: Job, partly: bool = False
) -> list[Slot]:
    """Return a slot for each member, in order, on the nodes of an allocation. `partly`: it may be too small for all.

    Raises ValueError if the allocation of the `job` was made for other members.
    """
    waiting: dict[int, deque[int]] = {}
    for at, member in enumerate(members):
        waiting.setdefault(member.group, deque()).append(at)
    found: dict[int, Slot] = {}
    for piece in allocation.tolist():
        left, demand = piece[MASK], job.groups[piece[GROUP]].demand
        for _ in range(piece[PODS]):
            if not waiting.get(piece[GROUP]):
                raise ValueError(f"expected a piece for one of the groups of the waiting pods: {piece}")
            at = waiting[piece[GROUP]].popleft()
            own, left = _first_bits(left, demand.gpus)
            found[at] = slot_for(names[piece[NODE]], members[at], own)
    if len(found) < len(members) and not partly:
        raise ValueError("expected an allocation for as many pods as there are")
    return [found[at] for at in range(len(members)) if at in found]


def slot_for(node: str, member: Member, devices: int) -> Slot:
    """Return a slot on a node for a member. For a stand-in the slot expects a pod, and has none yet."""
    if is_stand_in(member.pod):
        return Slot(node, member.demand, devices=devices, expects=member.pod, group=member.group)
    return Slot(node, member.demand, member.pod.metadata.uid, devices=devices, group=member.group)


def _first_bits(mask: int, count: int) -> tuple[int, int]:
    """Return the lowest `count` bits of a mask, and the rest."""
    own = 0
    for _ in range(count):
        own |= mask & -mask
        mask &= mask - 1
    return own, mask


class FreeCapacity:
    """The free capacity of the nodes in a table, less what `take` has taken. The table itself is not changed."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._devices = c.devices_of(table)
        self._rows: dict[int, list[int]] = {}

    def take(self, node: int, demand: Demand, devices: int = 0, group: int = 0) -> list[int]:
        """Return an allocation row for a pod that is already on a node: as much of its requests as is free.

        `devices` is a bit mask of the pod's GPUs. If it is 0, only the kubelet knows them. Then the GPUs with the least
        free capacity that is still enough are assumed; among equals, the first ones.
        """
        row = self._rows.get(node)
        if row is None:
            row = self._rows[node] = self._table[node].tolist()
        mask, milli = 0, demand.milli
        among = [one for one in range(self._devices if demand.gpus else 0) if not devices or devices >> one & 1]
        able = [(row[c.DEVICES + one], one) for one in among if row[c.DEVICES + one] >= milli]
        for _, device in sorted(able)[: demand.gpus]:
            row[c.DEVICES + device] -= milli
            mask |= 1 << device
        cpu = max(min(demand.cpu, row[c.CPU_FREE]), 0)
        memory = max(min(demand.memory, row[c.MEMORY_FREE]), 0)
        row[c.CPU_FREE] -= cpu
        row[c.MEMORY_FREE] -= memory
        tag = (mask.bit_count() if milli == GPU else 0) if mask else -1
        return [node, 1, mask, milli if mask else worth_of(demand), cpu, memory, tag, group, 0]

    def take_parts(self, node: int, demand: Demand, devices: int = 0) -> list[list[int]]:
        """Like `take`, with as many rows as needed: a pod that requests GPU replicas may have several of one GPU."""
        pieces = [self.take(node, demand, devices)]
        left = demand.gpus - pieces[0][MASK].bit_count()
        while left and pieces[-1][MASK] and demand.milli < GPU and not devices:
            pieces.append(self.take(node, Demand(left, demand.milli, 0, 0)))
            left -= pieces[-1][MASK].bit_count()
        return pieces if pieces[-1][MASK] or len(pieces) == 1 else pieces[:-1]


def worth_of(demand: Demand) -> int:
    """Return the thousandths of a GPU in the allocation row of a pod without whole GPUs; 0 for a pod with GPUs."""
    return demand.charged_milli if not demand.gpus else 0


def demand_of_piece(piece: list[int], asked: Demand) -> Demand:
    """Return what a bound pod holds by its allocation row. Rows have no MIG instances: these are taken from `asked`."""
    if asked.mig:
        return Demand(0, asked.milli, piece[CPU], piece[MEMORY], mig=asked.mig)
    return Demand(piece[MASK].bit_count(), piece[MILLI] if piece[MASK] else GPU, piece[CPU], piece[MEMORY])


def table_of(pieces: list[list[int]]) -> Allocation:
    return np.array(pieces, dtype=np.int64).reshape(-1, WIDTH)
