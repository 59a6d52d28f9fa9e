"""Clusters like those of VMR2L (arXiv 2505.17359): its host and VM types, placed at random and aged by churn."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from kant.model.errors import InputError
from kant.optimize.defragment.instance import DefragInstance, NumaNode, Vm, VmHost

CORES, MEMORY, BLOCK = 44, 368_776, 16
"""The cores and MiB of a NUMA node, and the block size in cores; free cores modulo BLOCK are fragments."""
TYPES = ((2, 1), (4, 1), (8, 1), (16, 1), (32, 2), (64, 2), (88, 2))
"""The VM types from large to 22xlarge: the cores of a VM, and the number of NUMA nodes that it uses."""
SHARES = (0.22, 0.24, 0.22, 0.20, 0.09, 0.025, 0.005)
PER_CORE = (2048, 4096, 8192)
"""MiB of memory per core. This is our choice, since the published types do not state it."""
IN_SERVICE = 0.3
"""The share of the VMs that belong to a service of a few VMs. This is our choice."""
GIVE_UP = 40
"""After this many consecutive draws of VMs that fit on no host, the cluster counts as full."""


def generate(hosts: int, vms: int, seed: int) -> DefragInstance:
    """Fill hosts of two NUMA nodes with VMs. Then, three times, remove a third of the VMs and fill the hosts again.

    Each VM goes to a random host, with a preference for the fuller ones. If the hosts are full, there are fewer VMs
    than `vms`. Raises InputError if a number is out of range.
    """
    for name, value in (("--hosts", hosts), ("--vms", vms)):
        if not 1 <= value <= 100_000:
            raise InputError(name, "a whole number from 1 to 100,000", value)
    draw = _Fill(hosts, np.random.Generator(np.random.PCG64(seed)))
    draw.fill(round(1.15 * vms))
    for _ in range(3):
        draw.churn(0.35)
        draw.fill(vms)
    numa = (NumaNode(CORES, MEMORY), NumaNode(CORES, MEMORY))
    return DefragInstance(BLOCK, tuple(VmHost(f"h{i}", numa) for i in range(hosts)), tuple(draw.machines()))


class _Fill:
    """Hosts while they are filled. A VM is (cores, memory, nodes, service, host, numa)."""

    def __init__(self, hosts: int, random: np.random.Generator) -> None:
        self.random = random
        self.cores = np.full((hosts, 2), CORES)
        self.memory = np.full((hosts, 2), MEMORY)
        self.vms: list[tuple[int, int, int, int, int, int]] = []
        self.on: dict[int, set[int]] = defaultdict(set)
        self.services = 0

    def fill(self, target: int) -> None:
        failed = 0
        while len(self.vms) < target and failed < GIVE_UP:
            failed = 0 if self.add() else failed + 1

    def add(self) -> bool:
        """Draw a VM and place it."""
        cores, nodes = TYPES[int(self.random.choice(len(TYPES), p=SHARES))]
        memory = cores * int(self.random.choice(PER_CORE))
        service = -1
        if self.random.random() < IN_SERVICE:  # a new service, or one of the last ten
            service = max(self.services - int(self.random.integers(0, 10)), 0)
            self.services += int(self.random.random() < 0.3)
        share, part = cores // nodes, memory // nodes
        fits = (self.cores >= share) & (self.memory >= part)
        if nodes == 2:
            fits = np.all(fits, axis=1, keepdims=True)
        if service >= 0:
            fits[sorted(self.on[service])] = False
        found = np.argwhere(fits)
        if len(found) == 0:
            return False
        left = self.cores[found[:, 0]].sum(axis=1) if nodes == 2 else self.cores[found[:, 0], found[:, 1]]
        host, numa = found[int(np.argmin(left + self.random.uniform(0, 400, len(found))))].tolist()
        slots = slice(None) if nodes == 2 else numa
        self.cores[host, slots] -= share
        self.memory[host, slots] -= part
        self.on[service].add(host)
        self.vms.append((cores, memory, nodes, service, host, numa))
        return True

    def churn(self, part: float) -> None:
        """Remove a share of the VMs."""
        gone = set(self.random.permutation(len(self.vms))[: int(part * len(self.vms))].tolist())
        for i in sorted(gone):
            cores, memory, nodes, service, host, numa = self.vms[i]
            slots = slice(None) if nodes == 2 else numa
            self.cores[host, slots] += cores // nodes
            self.memory[host, slots] += memory // nodes
            self.on[service].discard(host)
        self.vms = [vm for i, vm in enumerate(self.vms) if i not in gone]

    def machines(self) -> list[Vm]:
        return [
            Vm(f"vm{i}", cores, memory, f"h{host}", None if nodes == 2 else numa, f"s{service}" if service >= 0 else "")
            for i, (cores, memory, nodes, service, host, numa) in enumerate(self.vms)
        ]
