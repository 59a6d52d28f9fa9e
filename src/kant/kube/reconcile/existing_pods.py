"""Existing pods: pods that are bound already become running jobs of the core, which hold what is free on their nodes.

Two schedulers may have overfilled a node, or a node may have lost capacity that its pods hold. Then a pod's job holds
less than the pod requests, and gets more when capacity of the node is freed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from kant.cluster import columns as c
from kant.kube.objects.views import Pod
from kant.kube.reconcile.elastic_jobs import Kind, may_be_elastic, with_floors
from kant.kube.reconcile.slots import FreeCapacity, Slot, demand_of_piece, table_of
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase, Workload
from kant.live.core import Core
from kant.model.event import JobStarted, JobSubmitted
from kant.model.job import Demand, Job, PodGroup
from kant.model.placement import CPU, GROUP, MASK, MEMORY, Allocation
from kant.model.rules import PodRules
from kant.model.units import GPU

Lack = tuple[int, int, bool, bool]
"""What a pod lacks on its node: thousandths of a GPU, from the GPUs in a bit mask; whether CPU; whether memory."""


class ExistingPods:
    """`short` has, by node and `Lack`, the keys of workloads that hold less than they request.

    `overrun` has the nodes where such workloads run: more is used there than Kant counts, so no pod is bound to them.
    """

    def __init__(self, core: Core, translation: Translation, leaving: dict[str, dict[str, None]]) -> None:
        self.core = core
        self.translation = translation
        self.leaving = leaving
        self.short: dict[str, dict[Lack, dict[str, None]]] = {}
        self.overrun: dict[str, None] = {}
        self._freed: dict[str, None] = {}  # nodes in `short` that may have more free now
        self.free: FreeCapacity | None = FreeCapacity(core.state.table)  # None once the state is built and has it

    def came(self, job: Job) -> int:
        """Return the arrival time of a job. While a state is being built: the earliest creation time of its pods."""
        return self.core.now if self.core.is_settled else max(job.submit, 0)

    def adopt(self, workload: Workload, bound: list[Pod], floor: int, may_be_stopped: bool = True) -> bool:
        """Add bound pods as a running job, which gets as much of their requests as is free. False: no job was added.

        The first `floor` pods are indispensable; the others may be preempted if all pods hold what they request.
        """
        core, index = self.core, self.core.state.node_index
        if not workload.foreign and all(pod.metadata.deletion_timestamp is not None for pod in bound):
            for pod in bound:  # pods being deleted: no pod is bound to their nodes until they are gone
                self.leaving.setdefault(pod.spec.node_name, {})[pod.metadata.uid] = None
            workload.phase = Phase.LEAVING
            return False
        here = [pod for pod in bound if pod.spec.node_name in index]
        pieces: list[list[int]] = []
        kinds: list[Kind] = []  # the kind of each piece
        free, slots = self.free or FreeCapacity(core.state.table), []
        for pod in here:
            node, holdings, at = pod.spec.node_name, self.translation.holdings(pod), len(kinds)
            for demand, devices in holdings:
                own = free.take_parts(index[node], demand, devices)
                each = [demand_of_piece(piece, demand) for piece in own]
                pieces += own
                kinds += [Kind(one, None, PodRules()) for one in each]
                if (lack := _lack(demand, devices, own)) is not None:
                    self.short.setdefault(node, {}).setdefault(lack, {})[workload.key] = None
                    self.overrun[node] = None
            kinds[at] = kinds[at]._replace(rules=self.translation.rules_there(pod, workload.foreign))
            slots.append(Slot(node, holdings[0][0], pod.metadata.uid, True, devices=holdings[0][1], group=at))
        if not pieces or (workload.foreign and not any(piece[2] or piece[4] or piece[5] for piece in pieces)):
            return False
        job = self.translation.existing_job(core, workload.group, here, workload.foreign)
        if not may_be_stopped:
            job = replace(job, preemptible=False)
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        for slot in slots:
            slot.group = numbers[kinds[slot.group]]
        for piece, kind in zip(pieces, kinds, strict=True):
            piece[GROUP] = numbers[kind]
        floors = Counter(slot.group for slot in slots[:floor])
        whole = [kind.demand for kind in kinds] == [slot.demand for slot in slots]
        if not (whole and len(here) == len(bound) > floor and set(floors) == {slot.group for slot in slots}):
            floors.clear()
        self._start(job, pieces, kinds, self.translation.bound_at(here), floors)
        workload.floor, workload.kinds = floor if floors else 0, list(numbers)
        workload.job, workload.slots, workload.phase, workload.whole = job.id, slots, Phase.PLACED, True
        return True

    def _start(self, job: Job, pieces: list[list[int]], kinds: list[Kind], started: int, floors: Counter[int]) -> None:
        counts = Counter(kinds)
        rules = tuple(kind.rules for kind in counts)
        groups = tuple(PodGroup(count, kind.demand) for kind, count in counts.items())
        job = replace(job, groups=groups, rules=() if set(rules) == {PodRules()} else rules)
        came = self.came(job)
        self.core.happen(JobSubmitted(came, with_floors(job, floors) if floors and may_be_elastic(job) else job))
        since = self.core.now if self.core.is_settled else max(came, started)
        self.core.happen(JobStarted(since, job.id, table_of(pieces)))

    def held(self, workload: Workload, free: FreeCapacity | None = None) -> Allocation | None:
        """Return the allocation of the bound pods. None if a node is unknown, or has less free than a pod requests.

        It is subtracted from `free` (None: the state's free capacity), so that no two workloads get the same capacity.
        """
        state = self.core.state
        free, index = free or FreeCapacity(state.table), state.node_index
        pieces = []
        for slot in workload.slots:
            if slot.node not in index:
                return None
            devices = slot.devices if self.translation.shares.names_devices(slot.node) else 0
            piece = free.take(index[slot.node], slot.demand, devices, slot.group)
            if demand_of_piece(piece, slot.demand) != slot.demand:
                return None
            pieces.append(piece)
        return table_of(pieces)

    def freed(self, nodes: Iterable[str]) -> None:
        """Record that these nodes may have more free capacity for pods that hold less than they request."""
        self._freed.update(dict.fromkeys(node for node in nodes if node in self.short))

    def gaining(self) -> Iterator[str]:
        """Yield the keys of workloads that hold too little, while a freed node still has some of what they lack."""
        freed, self._freed = self._freed, {}
        for node in freed:
            lacks = self.short.get(node, {}) if node in self.core.state.node_index else {}
            for lack, keys in list(lacks.items()):
                for key in list(keys):
                    if not self._is_free(node, lack):
                        break
                    del keys[key]  # if the workload still lacks something, it goes last in the order
                    yield key
                if not keys:
                    del lacks[lack]
            if not lacks:
                self.short.pop(node, None)

    def _is_free(self, node: str, lack: Lack) -> bool:
        """Whether a node has free some of what a pod lacks."""
        table, (milli, devices, cpu, memory) = self.core.state.table, lack
        row = table[self.core.state.node_index[node]].tolist()
        gpus = row[c.DEVICES : c.DEVICES + c.devices_of(table)] if devices else ()
        able = any(free >= milli and devices >> number & 1 for number, free in enumerate(gpus))
        return able or (cpu and row[c.CPU_FREE] > 0) or (memory and row[c.MEMORY_FREE] > 0)


def _lack(demand: Demand, devices: int, pieces: list[list[int]]) -> Lack | None:
    """Return what `pieces`, taken by `FreeCapacity.take_parts`, lack of this demand; None if nothing."""
    first, milli, left = pieces[0], 0, 0
    if not demand.mig and sum(piece[MASK].bit_count() for piece in pieces) < demand.gpus:
        shares_one = demand.milli < GPU and not devices
        milli, left = demand.milli, (devices or -1) & ~(0 if shares_one else first[MASK])
    found = milli, left, first[CPU] < demand.cpu, first[MEMORY] < demand.memory
    return found if any(found[1:]) else None
