"""The file of `kant defrag`: hosts with NUMA nodes, and the virtual machines on them (docs/solvers.md)."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from kant.model.errors import InputError
from kant.optimize.instance_file import check_names, read_json

MOST_CORES = 4096
MOST_MEMORY = 1 << 40


class NumaNode(Struct, frozen=True, forbid_unknown_fields=True):
    """One NUMA node of a host: its cores, and its memory in any unit."""

    cores: int
    memory: int


class VmHost(Struct, frozen=True, forbid_unknown_fields=True):
    """One machine with its NUMA nodes."""

    name: str
    numa: tuple[NumaNode, ...]


class Vm(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One virtual machine, on NUMA node `numa` of `host`, or spread evenly over all NUMA nodes of the host (None).

    On a host with one NUMA node, None means this node. A host has at most one VM of each `service` ("": no such
    constraint).
    """

    name: str
    cores: int
    memory: int
    host: str
    numa: int | None = None
    service: str = ""


class DefragInstance(Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster of hosts. On a NUMA node, the free cores beyond whole blocks of `block` cores are fragments."""

    block: int
    hosts: tuple[VmHost, ...]
    vms: tuple[Vm, ...]


def read_instance(path: Path) -> DefragInstance:
    """Read the instance of a JSON file; raises InputError if it is invalid."""
    instance = read_json(path, DefragInstance)
    check_instance(instance, str(path))
    return instance


def check_instance(instance: DefragInstance, where: str) -> None:
    """Raise InputError for the first field that is out of range or contradicts another."""
    hosts = {host.name: host for host in instance.hosts}
    if not 1 <= instance.block <= MOST_CORES:
        raise InputError(f"{where}: block", f"a whole number of cores from 1 to {MOST_CORES}", instance.block)
    check_names((host.name for host in instance.hosts), f"{where}: hosts")
    check_names((vm.name for vm in instance.vms), f"{where}: vms")
    for host in instance.hosts:
        if not host.numa:
            raise InputError(f"{where}: host {host.name}: numa", "one NUMA node or more")
        for node in host.numa:
            _check_amounts(node.cores, node.memory, 0, f"{where}: host {host.name}")
    free = {host.name: [[node.cores, node.memory] for node in host.numa] for host in instance.hosts}
    services: set[tuple[str, str]] = set()
    for vm in instance.vms:
        _check_vm(vm, hosts, f"{where}: vm {vm.name}")
        for j in range(len(free[vm.host])) if vm.numa is None else (vm.numa,):
            parts = len(free[vm.host]) if vm.numa is None else 1
            free[vm.host][j][0] -= vm.cores // parts
            free[vm.host][j][1] -= vm.memory // parts
        if min(min(node) for node in free[vm.host]) < 0:
            raise InputError(f"{where}: host {vm.host}", f"capacity for all its vms, but {vm.name} does not fit")
        if vm.service and (vm.service, vm.host) in services:
            raise InputError(f"{where}: host {vm.host}", f"at most one vm of service {vm.service}")
        services.add((vm.service, vm.host))


def _check_amounts(cores: int, memory: int, least: int, where: str) -> None:
    if not least <= cores <= MOST_CORES:
        raise InputError(f"{where}: cores", f"a whole number from {least} to {MOST_CORES}", cores)
    if not 0 <= memory <= MOST_MEMORY:
        raise InputError(f"{where}: memory", "a whole number from 0 to 2^40", memory)


def _check_vm(vm: Vm, hosts: dict[str, VmHost], where: str) -> None:
    _check_amounts(vm.cores, vm.memory, 1, where)
    if vm.host not in hosts:
        raise InputError(f"{where}: host", "the name of a host of this file", vm.host)
    nodes = len(hosts[vm.host].numa)
    if vm.numa is not None and not 0 <= vm.numa < nodes:
        raise InputError(f"{where}: numa", f"a NUMA node from 0 to {nodes - 1}, or null", vm.numa)
    if vm.numa is None and (vm.cores % nodes or vm.memory % nodes):
        raise InputError(f"{where}: cores", f"cores and memory in multiples of its {nodes} NUMA nodes", vm.cores)
