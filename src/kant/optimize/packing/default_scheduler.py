"""Kubernetes' default scheduler on pods that arrive one by one. It makes the initial state for a fallback packer.

It filters by fit, then scores by LeastAllocated and BalancedAllocation with equal weights; ties go to the first node. A
pod that fits nowhere preempts pods of lower priority on one node, as DefaultPreemption does. Pods count singly, not as
gangs, which the default scheduler does not support. GPU models are respected.
"""

from __future__ import annotations

from collections.abc import Sequence

from kant.optimize.packing.problem import WAITS, Assignment, Problem


def schedule(problem: Problem) -> Assignment:
    """Return the nodes of the pods of `problem` if they arrive in their order. Their present nodes are ignored."""
    run = _Run(problem)
    for pod in range(len(problem.request)):
        run.arrive(pod)
    return tuple(run.node)


class _Run:
    """Nodes while they fill up. `node` has the node of each pod that has arrived."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.node = [WAITS] * len(problem.request)
        self.free = [list(amounts) for amounts in problem.capacity]
        self.on: list[set[int]] = [set() for _ in problem.capacity]
        self.waiting: set[int] = set()

    def arrive(self, pod: int) -> None:
        """Let one pod arrive. Waiting pods are tried again, by priority, until nothing changes."""
        self.waiting.add(pod)
        changed = True
        while changed:
            changed = any(self.try_pod(i) for i in sorted(self.waiting, key=self.urgency))

    def try_pod(self, pod: int) -> bool:
        """Bind a waiting pod, after a preemption if necessary. Returns whether the pod was bound."""
        if pod not in self.waiting:
            return False
        fitting = [n for n in self.problem.eligible[pod] if self.fits(pod, self.free[n])]
        node = max(fitting, key=lambda n: (self.score(pod, n), -n)) if fitting else self.preempt(pod)
        if node == WAITS:
            return False
        self.waiting.discard(pod)
        self.take(pod, node, 1)
        return True

    def fits(self, pod: int, free: Sequence[int]) -> bool:
        return all(need <= have for need, have in zip(self.problem.request[pod], free, strict=True))

    def score(self, pod: int, node: int) -> int:
        """LeastAllocated + BalancedAllocation, from 0 to 200."""
        capacity = self.problem.capacity[node]
        left = [have - need for have, need in zip(self.free[node], self.problem.request[pod], strict=True)]
        known = [(rest, all_) for rest, all_ in zip(left, capacity, strict=True) if all_]
        if not known:
            return 0
        least = sum(100 * rest // all_ for rest, all_ in known) // len(known)
        used = [1 - rest / all_ for rest, all_ in known]
        mean = sum(used) / len(used)
        spread = (sum((part - mean) ** 2 for part in used) / len(used)) ** 0.5
        return least + int(100 * (1 - spread))

    def take(self, pod: int, node: int, sign: int) -> None:
        """Bind a pod to a node (`sign` 1), or evict it (-1)."""
        for r, amount in enumerate(self.problem.request[pod]):
            self.free[node][r] -= sign * amount
        self.node[pod] = node if sign > 0 else WAITS
        (self.on[node].add if sign > 0 else self.on[node].discard)(pod)

    def preempt(self, pod: int) -> int:
        """Evict pods as DefaultPreemption does, and return the node; -1 if no node can be freed."""
        found = []
        for node in self.problem.eligible[pod]:
            victims = self.victims(pod, node)
            if victims:
                tiers = [self.problem.tier[i] for i in victims]  # a later tier is a lower priority
                found.append(((-min(tiers), len(victims), -sum(tiers), node), victims))
        if not found:
            return WAITS
        (*_, node), victims = min(found)
        for victim in victims:
            self.take(victim, node, -1)
            self.waiting.add(victim)
        return int(node)

    def victims(self, pod: int, node: int) -> list[int]:
        """The pods of lower priority that must leave; those of higher priority are spared. Empty if not enough."""
        lower = sorted((i for i in self.on[node] if self.problem.tier[i] > self.problem.tier[pod]), key=self.urgency)
        free = list(self.free[node])
        for i in lower:
            free = [have + back for have, back in zip(free, self.problem.request[i], strict=True)]
        if not self.fits(pod, free):
            return []
        free = [have - need for have, need in zip(free, self.problem.request[pod], strict=True)]
        gone = []
        for i in lower:
            if self.fits(i, free):
                free = [have - need for have, need in zip(free, self.problem.request[i], strict=True)]
            else:
                gone.append(i)
        return gone

    def urgency(self, pod: int) -> tuple[int, int]:
        return self.problem.tier[pod], pod
