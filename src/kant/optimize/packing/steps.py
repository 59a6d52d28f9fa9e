"""An assignment as steps that can be carried out in order: no step overfills a node or splits a gang."""

from __future__ import annotations

from msgspec import Struct

from kant.optimize.packing.problem import WAITS, Assignment, Problem


class PackingStep(Struct, frozen=True, omit_defaults=True):
    """One action.

    `evict`: the pods stop, and wait. `move`: a pod, or several pods of a gang at once, stop and immediately start on
    another node. `stop`: the pods stop for now, since moves wait for each other in a cycle; a later `start` brings them
    back. `start`: the pods start.
    """

    do: str
    pods: tuple[str, ...]
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()


def ordered(problem: Problem, target: Assignment) -> list[PackingStep]:
    """Steps from the present places to `target`: evictions, then moves (each once there is room for it), then starts.

    If there is room for no move, the cheapest unit is stopped until its place is free: that of the lowest priority, and
    of these the one with the fewest pods.
    """
    return _Order(problem, target).run()


class _Order:
    """The places of the pods so far, and the steps so far."""

    def __init__(self, problem: Problem, target: Assignment) -> None:
        self.problem, self.target = problem, target
        self.node = list(problem.current)
        self.free = problem.free(problem.current)
        self.steps: list[PackingStep] = []

    def run(self) -> list[PackingStep]:
        problem = self.problem
        for unit in problem.units:
            if self.node[unit[0]] != WAITS == self.target[unit[0]]:
                self.take("evict", unit, [WAITS] * len(unit))
        moved = set(problem.moved(self.target))
        movers = [unit for unit in problem.units if moved.intersection(unit)]
        while movers:
            waiting = [unit for unit in movers if not self.move(tuple(i for i in unit if i in moved))]
            if len(waiting) == len(movers):
                stopped = min(movers, key=lambda unit: (-problem.tier[unit[0]], len(unit), unit))
                self.take("stop", stopped, [WAITS] * len(stopped))
                waiting.remove(stopped)
            movers = waiting
        for unit in sorted(problem.units, key=lambda unit: (problem.tier[unit[0]], unit)):
            if self.node[unit[0]] == WAITS != self.target[unit[0]]:
                self.take("start", unit, [self.target[i] for i in unit])
        return self.steps

    def move(self, pods: tuple[int, ...]) -> bool:
        """Move the pods of a unit that change nodes, all at once, if there is room after they leave."""
        left = [list(amounts) for amounts in self.free]
        for i in pods:
            for r, amount in enumerate(self.problem.request[i]):
                left[self.node[i]][r] += amount
                left[self.target[i]][r] -= amount
        if any(min(left[self.target[i]], default=0) < 0 for i in pods):
            return False
        self.take("move", pods, [self.target[i] for i in pods])
        return True

    def take(self, do: str, pods: tuple[int, ...], nodes: list[int]) -> None:
        """Carry out one step."""
        instance = self.problem.instance
        before = [self.node[i] for i in pods]
        for pod, old, new in zip(pods, before, nodes, strict=True):
            for node, sign in ((old, 1), (new, -1)):
                if node != WAITS:
                    for r, amount in enumerate(self.problem.request[pod]):
                        self.free[node][r] += sign * amount
            self.node[pod] = new
        source, target = ([instance.nodes[n].name for n in places if n != WAITS] for places in (before, nodes))
        self.steps.append(PackingStep(do, tuple(instance.pods[i].name for i in pods), tuple(source), tuple(target)))
