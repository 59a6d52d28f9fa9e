"""An instance as arrays: the free capacity of every NUMA node, the place of each VM, and the effect of a migration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from kant.optimize.defragment.instance import DefragInstance

Ints = npt.NDArray[np.int64]

SPREAD = -1
"""The slot of a VM that is spread evenly over all NUMA nodes of its host."""


class Move(Struct, frozen=True):
    """One migration, by index: a VM moves to a host and one of its NUMA nodes (SPREAD: all of them)."""

    vm: int
    host: int
    numa: int


@dataclass(frozen=True)
class VmCluster:
    """Hosts, each with `numa` NUMA nodes (slots), and VMs. Hosts with fewer NUMA nodes have slots without cores."""

    instance: DefragInstance
    numa: Ints
    """NUMA nodes of each host."""
    cores: Ints
    """Capacity by host and NUMA node."""
    memory: Ints
    vm_cores: Ints
    """The cores that a VM uses on each of its slots: all, or an even part if it is spread."""
    vm_memory: Ints
    spread: npt.NDArray[np.bool_]
    host: Ints
    """The present host of each VM."""
    slot: Ints
    """The present NUMA node of each VM, or SPREAD."""
    service: Ints
    """The service of each VM, as a number; -1: none."""

    @classmethod
    def of(cls, instance: DefragInstance) -> VmCluster:
        """Build the arrays of a checked instance."""
        index = {host.name: h for h, host in enumerate(instance.hosts)}
        numa = np.array([len(host.numa) for host in instance.hosts], dtype=np.int64)
        cores = np.zeros((len(instance.hosts), int(numa.max(initial=1))), dtype=np.int64)
        memory = np.zeros_like(cores)
        for h, host in enumerate(instance.hosts):
            for j, node in enumerate(host.numa):
                cores[h, j], memory[h, j] = node.cores, node.memory
        names = {name: s for s, name in enumerate(sorted({vm.service for vm in instance.vms} - {""}))}
        where = np.array([index[vm.host] for vm in instance.vms], dtype=np.int64)
        unbound = np.array([vm.numa is None for vm in instance.vms], dtype=bool)
        spread = unbound & (numa[where] > 1) if len(where) else unbound
        parts = np.where(spread, numa[where], 1) if len(where) else np.ones(0, dtype=np.int64)
        return cls(
            instance,
            numa,
            cores,
            memory,
            np.array([vm.cores for vm in instance.vms], dtype=np.int64) // parts,
            np.array([vm.memory for vm in instance.vms], dtype=np.int64) // parts,
            spread,
            where,
            np.where(spread, SPREAD, np.array([vm.numa or 0 for vm in instance.vms], dtype=np.int64)),
            np.array([names.get(vm.service, -1) for vm in instance.vms], dtype=np.int64),
        )


class VmLayout:
    """The places of the VMs while they migrate: free cores and memory by slot, and services by host."""

    def __init__(self, cluster: VmCluster) -> None:
        self.cluster = cluster
        self.cores, self.memory = cluster.cores.copy(), cluster.memory.copy()
        self.host, self.slot = cluster.host.copy(), cluster.slot.copy()
        self.services: set[tuple[int, int]] = set()
        for vm in range(len(self.host)):
            self._take(vm, 1)

    def copy(self) -> VmLayout:
        """An independent copy."""
        new = object.__new__(VmLayout)
        new.cluster, new.services = self.cluster, set(self.services)
        new.cores, new.memory = self.cores.copy(), self.memory.copy()
        new.host, new.slot = self.host.copy(), self.slot.copy()
        return new

    def _slots(self, host: int, slot: int) -> slice:
        return slice(0, int(self.cluster.numa[host])) if slot == SPREAD else slice(slot, slot + 1)

    def _take(self, vm: int, sign: int) -> None:
        """Add a VM to its present slots (`sign` 1), or remove it from them (-1)."""
        host, slot = int(self.host[vm]), int(self.slot[vm])
        self.cores[host, self._slots(host, slot)] -= sign * self.cluster.vm_cores[vm]
        self.memory[host, self._slots(host, slot)] -= sign * self.cluster.vm_memory[vm]
        service = int(self.cluster.service[vm])
        if service >= 0:
            (self.services.add if sign > 0 else self.services.discard)((service, host))

    def may(self, move: Move) -> bool:
        """Whether there is room for a migration before the VM leaves, and the host has no other VM of its service."""
        cluster, vm = self.cluster, move.vm
        here = int(self.host[vm])
        if (move.host, move.numa) == (here, int(self.slot[vm])) or (move.numa == SPREAD) != cluster.spread[vm]:
            return False
        if cluster.spread[vm] and (move.host == here or cluster.numa[move.host] != cluster.numa[here]):
            return False
        slots = self._slots(move.host, move.numa)
        if self.cores[move.host, slots].min() < cluster.vm_cores[vm]:
            return False
        if self.memory[move.host, slots].min() < cluster.vm_memory[vm]:
            return False
        return move.host == here or (int(cluster.service[vm]), move.host) not in self.services

    def make(self, move: Move) -> None:
        """Migrate a VM."""
        self._take(move.vm, -1)
        self.host[move.vm], self.slot[move.vm] = move.host, move.numa
        self._take(move.vm, 1)

    def fragments(self) -> int:
        """The number of free cores beyond whole blocks, over all slots."""
        return int((self.cores % self.cluster.instance.block).sum())

    def rate(self) -> float:
        """The fragment rate: fragments over all free cores (VMR2L, arXiv 2505.17359); 0 if nothing is free."""
        free = int(self.cores.sum())
        return self.fragments() / free if free else 0.0
