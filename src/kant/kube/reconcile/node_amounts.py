"""Amounts besides GPUs, CPU and memory: what a node has left of them, and which have been found short, for whom.

An amount that was never short costs nothing: it is told apart only from when pods could not have a place for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.neighbours import NOBODY, Neighbours
from kant.kube.translate.resources import amount_of, capacity_of, is_bytes, others_of, used_of, with_gpus
from kant.model.errors import InputError
from kant.model.job import Demand

Amount = tuple[str, int]
"""A resource, and how much of it one pod asks for."""


class NodeAmounts:
    """`short` has the amounts that were short where the core saw a place, with what their pods ask for besides."""

    def __init__(self, mirror: Mirror, neighbours: Neighbours, devices: DeviceAllocations) -> None:
        self.mirror = mirror
        self.neighbours = neighbours
        self.devices = devices
        self.short: dict[Amount, set[Demand]] = {}
        self._held: dict[Amount, dict[str, frozenset[str]]] = {}  # nodes that victims cannot help, and by whom

    def keep(self, is_told: Callable[[Amount], bool]) -> None:
        """Forget amounts that no node is told apart by any more."""
        self.short = {one: demands for one, demands in self.short.items() if is_told(one)}
        self._held = {one: nodes for one, nodes in self._held.items() if one in self.short}

    def free(self, node: str, resource: str, ignored: Collection[str] = NOBODY) -> int:
        """How much of a resource a node has left, beside all pods that are there or are to be, but for some."""
        return self._there(node, resource) - sum(
            others_of(pod.spec).get(resource, 0) for pod in self.neighbours.on(node, ignored)
        )

    def _there(self, node: str, resource: str) -> int:
        view = self.mirror.nodes.get(node)
        amounts = (view.status.allocatable or view.status.capacity or {}) if view is not None else {}
        try:
            return amount_of(resource, amounts.get(resource, 0), resource, up=False)
        except InputError:
            return 0

    def _is_by_claim(self, node: str, resource: str) -> bool:
        """Whether a node gives out a resource by claims, which count the devices themselves."""
        return resource in self.mirror.devices.served and not self._there(node, resource)

    def _holders(self, node: str, resource: str, ignored: Collection[str] = NOBODY) -> frozenset[str]:
        there = self.neighbours.on(node, ignored)
        return frozenset(pod.metadata.uid for pod in there if others_of(pod.spec).get(resource))

    def holds(self, node: str, pod: Pod) -> bool:
        """Whether a node has what the core counts of a pod, if nobody else is there."""
        return fits(self.used(pod), self._capacity(node))

    def _capacity(self, node: str) -> Demand:
        view = self.mirror.nodes.get(node)
        there = capacity_of(view.status.allocatable or view.status.capacity or {}) if view is not None else Demand()
        return with_gpus(there, self.devices.requests.gpus_at(view) if view is not None else 0)

    def core_free(self, node: str) -> Demand:
        """What the core sees free on a node."""
        there = self._capacity(node)
        used = [self.used(pod) for pod in self.neighbours.on(node)]
        return Demand(
            there.gpus - sum(one.gpus for one in used),
            cpu=there.cpu - sum(one.cpu for one in used),
            memory=there.memory - sum(one.memory for one in used),
        )

    def is_short(self, node: str, resource: str, amount: int) -> bool:
        """Whether a node has too little left for pods for which the core sees a place there, be it by victims."""
        if self.free(node, resource) >= amount or self._is_by_claim(node, resource):
            return False
        holders = self._held.get((resource, amount), {}).get(node)
        if holders and holders <= self._holders(node, resource):
            return True
        there = self.core_free(node)
        return any(fits(demand, there) for demand in self.short.get((resource, amount), ()))

    def why_not(self, node: str, pods: Sequence[Pod], ignored: Collection[str], going: bool) -> str:
        """What a node has too little of for these pods together; "" where it has enough. It is told apart from now on.

        `going`: others were to stop for them.
        """
        asked: Counter[str] = Counter()
        for pod in pods:
            asked.update(others_of(pod.spec))
        for resource, amount in asked.items():
            free = self.free(node, resource, ignored)
            if free < amount and not self._is_by_claim(node, resource):
                for pod in pods:
                    own = others_of(pod.spec).get(resource)
                    if own:
                        self.short.setdefault((resource, own), set()).add(self.used(pod))
                        if going:
                            held = self._held.setdefault((resource, own), {})
                            held[node] = self._holders(node, resource, ignored)
                return f"node {node} has {max(free, 0)}{unit(resource)} of {resource} left, and it asks for {amount}"
        return ""

    def used(self, pod: Pod) -> Demand:
        """What the core counts of a pod."""
        return with_gpus(used_of(pod.spec), self.devices.requests.gpus(pod))


def fits(demand: Demand, there: Demand) -> bool:
    """Whether so much is free."""
    return demand.gpus <= there.gpus and demand.cpu <= there.cpu and demand.memory <= there.memory


def unit(resource: str) -> str:
    """What stands behind an amount of it in sentences."""
    return " MiB" if is_bytes(resource) else ""
