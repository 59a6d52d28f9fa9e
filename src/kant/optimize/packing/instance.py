"""The file of `kant pack`: nodes, and pods with their requests, priorities and present nodes (docs/solvers.md)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from msgspec import Struct, field

from kant.model.errors import InputError
from kant.optimize.instance_file import check_names, read_json

MOST = 1 << 40
"""The maximum amount of a resource, and of the absolute value of a priority. Sums of such numbers are exact."""


class PackingNode(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One machine: its amount of each resource, its GPU model, and its domain at each topology level."""

    name: str
    resources: dict[str, int]
    model: str = ""
    domains: dict[str, str] = field(default_factory=dict)


class PackingPod(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One pod: its requests, and the node that it runs on (None: it waits).

    Pods of one `group` are a gang: all of them are placed, or none. `models` are the accepted GPU models (empty: any).
    `within` is a topology level: the gang must be in one domain of it ("": no such level).
    """

    name: str
    requests: dict[str, int]
    priority: int = 0
    node: str | None = None
    group: str = ""
    models: tuple[str, ...] = ()
    within: str = ""


class PackingInstance(Struct, frozen=True, forbid_unknown_fields=True):
    """A snapshot of a cluster: its nodes, and all running and waiting pods."""

    nodes: tuple[PackingNode, ...]
    pods: tuple[PackingPod, ...]


def read_instance(path: Path) -> PackingInstance:
    """Read the instance of a JSON file; raises InputError if it is invalid."""
    instance = read_json(path, PackingInstance)
    check_instance(instance, str(path))
    return instance


def check_instance(instance: PackingInstance, where: str) -> None:
    """Raise InputError for the first invalid or contradictory field: names, amounts, gangs, and running pods."""
    nodes = {node.name: node for node in instance.nodes}
    check_names((node.name for node in instance.nodes), f"{where}: nodes")
    check_names((pod.name for pod in instance.pods), f"{where}: pods")
    for node in instance.nodes:
        _check_amounts(node.resources, f"{where}: node {node.name}: resources")
    free = {node.name: dict(node.resources) for node in instance.nodes}
    for pod in instance.pods:
        _check_pod(pod, nodes, f"{where}: pod {pod.name}")
        for resource, amount in pod.requests.items() if pod.node is not None else ():
            left = free[pod.node].get(resource, 0) - amount  # type: ignore[index]
            if left < 0:
                raise InputError(f"{where}: node {pod.node}", f"capacity for all its pods ({-left} {resource} too few)")
            free[pod.node][resource] = left  # type: ignore[index]
    _check_gangs(instance, nodes, where)


def _check_amounts(amounts: dict[str, int], where: str) -> None:
    for resource, amount in amounts.items():
        if not 0 <= amount <= MOST:
            raise InputError(f"{where}: {resource}", "a whole number from 0 to 2^40", amount)


def _check_pod(pod: PackingPod, nodes: dict[str, PackingNode], where: str) -> None:
    _check_amounts(pod.requests, f"{where}: requests")
    if not -MOST <= pod.priority <= MOST:
        raise InputError(f"{where}: priority", "a whole number from -2^40 to 2^40", pod.priority)
    if pod.within and not pod.group:
        raise InputError(f"{where}: group", f"the name of a gang, as `within` is {pod.within}", "")
    if pod.node is None:
        return
    if pod.node not in nodes:
        raise InputError(f"{where}: node", "the name of a node of this file, or null", pod.node)
    node = nodes[pod.node]
    if pod.models and node.model not in pod.models:
        raise InputError(f"{where}: node", f"a node of model {' or '.join(pod.models)}", pod.node)
    if pod.within and pod.within not in node.domains:
        raise InputError(f"{where}: node", f"a node with a domain {pod.within}", pod.node)


def _check_gangs(instance: PackingInstance, nodes: dict[str, PackingNode], where: str) -> None:
    gangs: dict[str, list[PackingPod]] = defaultdict(list)
    for pod in instance.pods:
        if pod.group:
            gangs[pod.group].append(pod)
    for name, pods in gangs.items():
        first = pods[0]
        if any((pod.priority, pod.within) != (first.priority, first.within) for pod in pods):
            raise InputError(f"{where}: group {name}", "one priority and one `within` for all its pods")
        if any((pod.node is None) != (first.node is None) for pod in pods):
            raise InputError(f"{where}: group {name}", "pods that all run or all wait")
        if first.node is not None and first.within:
            domains = {nodes[pod.node].domains[first.within] for pod in pods if pod.node is not None}
            if len(domains) > 1:
                raise InputError(f"{where}: group {name}", f"pods in one {first.within}", sorted(domains))
