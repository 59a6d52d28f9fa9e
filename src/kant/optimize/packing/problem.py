"""An instance in numbers, and the value of an assignment of its pods to nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kant.optimize.packing.instance import PackingInstance

Assignment = tuple[int, ...]
"""The node of each pod, by index; -1: it waits."""

WAITS = -1


@dataclass(frozen=True)
class Problem:
    """An instance by indices. Amounts are in the order of `resources`. Tiers are the priorities, the highest first."""

    instance: PackingInstance

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """Every resource that a pod requests."""
        return tuple(sorted({name for pod in self.instance.pods for name in pod.requests}))

    @cached_property
    def capacity(self) -> tuple[tuple[int, ...], ...]:
        """The amounts of each node."""
        return tuple(tuple(node.resources.get(name, 0) for name in self.resources) for node in self.instance.nodes)

    @cached_property
    def request(self) -> tuple[tuple[int, ...], ...]:
        """The requests of each pod."""
        return tuple(tuple(pod.requests.get(name, 0) for name in self.resources) for pod in self.instance.pods)

    @cached_property
    def current(self) -> Assignment:
        """The present assignment."""
        index = {node.name: i for i, node in enumerate(self.instance.nodes)}
        return tuple(WAITS if pod.node is None else index[pod.node] for pod in self.instance.pods)

    @cached_property
    def priorities(self) -> tuple[int, ...]:
        """The priority of each tier, the highest first."""
        return tuple(sorted({pod.priority for pod in self.instance.pods}, reverse=True))

    @cached_property
    def tier(self) -> tuple[int, ...]:
        """The tier of each pod."""
        index = {priority: t for t, priority in enumerate(self.priorities)}
        return tuple(index[pod.priority] for pod in self.instance.pods)

    @cached_property
    def units(self) -> tuple[tuple[int, ...], ...]:
        """The units, each placed completely or not at all: gangs and single pods, in the order of their first pods."""
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for i, pod in enumerate(self.instance.pods):
            found[(pod.group, -1 if pod.group else i)].append(i)
        return tuple(map(tuple, found.values()))

    @cached_property
    def unit(self) -> tuple[int, ...]:
        """The unit of each pod."""
        index = {pod: u for u, pods in enumerate(self.units) for pod in pods}
        return tuple(index[i] for i in range(len(self.instance.pods)))

    @cached_property
    def eligible(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that each pod alone may use: large enough, of an accepted GPU model, in a domain of its level."""
        known: dict[tuple[object, ...], tuple[int, ...]] = {}
        found = []
        for pod, request in zip(self.instance.pods, self.request, strict=True):
            key = (pod.models, pod.within, request)
            if key not in known:
                known[key] = tuple(
                    n
                    for n, node in enumerate(self.instance.nodes)
                    if (not pod.models or node.model in pod.models)
                    and (not pod.within or pod.within in node.domains)
                    and all(need <= have for need, have in zip(request, self.capacity[n], strict=True))
                )
            found.append(known[key])
        return tuple(found)

    def domain(self, node: int, level: str) -> str:
        """The domain of a node at a level."""
        return self.instance.nodes[node].domains[level]

    def fitting(self, pod: int, node: int) -> int:
        """How many such pods fit on the node if it is empty; the number of all pods if they request nothing."""
        pairs = zip(self.capacity[node], self.request[pod], strict=True)
        return min((have // need for have, need in pairs if need), default=len(self.request))

    def placed(self, assignment: Sequence[int]) -> tuple[int, ...]:
        """The number of running pods, by tier."""
        counts = Counter(tier for tier, node in zip(self.tier, assignment, strict=True) if node != WAITS)
        return tuple(counts[t] for t in range(len(self.priorities)))

    def moved(self, assignment: Sequence[int]) -> list[int]:
        """Pods that run now and will run on another node."""
        both = zip(self.current, assignment, strict=True)
        return [i for i, (old, new) in enumerate(both) if WAITS not in (old, new) and old != new]

    def evicted(self, assignment: Sequence[int]) -> list[int]:
        """Pods that run now and will wait."""
        both = zip(self.current, assignment, strict=True)
        return [i for i, (old, new) in enumerate(both) if old != WAITS == new]

    def rank(self, assignment: Sequence[int]) -> tuple[tuple[int, ...], int, int]:
        """A comparison key, larger is better: pods placed by tier; then few pods moved or evicted; then few evicted."""
        evicted = len(self.evicted(assignment))
        return self.placed(assignment), -len(self.moved(assignment)) - evicted, -evicted

    def free(self, assignment: Sequence[int]) -> list[list[int]]:
        """The free amounts of each node. Negative if the node is overfull."""
        left = [list(amounts) for amounts in self.capacity]
        for i, node in enumerate(assignment):
            if node != WAITS:
                for r, amount in enumerate(self.request[i]):
                    left[node][r] -= amount
        return left

    def violations(self, assignment: Sequence[int]) -> list[str]:
        """The errors of an assignment, a sentence each; empty if it is valid."""
        nodes, pods = self.instance.nodes, self.instance.pods
        found = [
            f"node {nodes[n].name} holds more than it has"
            for n, left in enumerate(self.free(assignment))
            if min(left, default=0) < 0
        ]
        for i, node in enumerate(assignment):
            if node != WAITS and node not in self.eligible[i]:
                found.append(f"pod {pods[i].name} may not run on node {nodes[node].name}")
        for unit in self.units:
            on = {assignment[i] for i in unit}
            name, level = pods[unit[0]].group, pods[unit[0]].within
            if WAITS in on and len(on) > 1:
                found.append(f"gang {name} is partly placed")
            elif WAITS not in on and level and len({nodes[n].domains.get(level) for n in on}) > 1:
                found.append(f"gang {name} is in several domains {level}")
        return found
