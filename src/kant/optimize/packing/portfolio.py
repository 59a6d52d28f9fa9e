"""Our portfolio: certify, repair around the waiting pods, search the whole cluster, then undo needless moves.

1. Counting bounds (`relaxation`) show which tiers are already as full as any assignment can make them. If all of them
   are, nothing moves, and there is no search. 2. Repair frees a few nodes for a waiting pod and solves only for these;
   the neighbourhood grows until it suffices. 3. The aggregated model of the whole cluster (`counts`), started from the
   best assignment, fills open tiers or proves them full. 4. Searches like 2 and 3, which keep the placed pods,
   then reduce the number of pods that move or are evicted, and prove the minimum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from kant.optimize.packing.certificate import Packing, trivial_bounds
from kant.optimize.packing.counts import CountModel, lexicographic
from kant.optimize.packing.problem import WAITS, Assignment, Problem
from kant.optimize.packing.relaxation import Relaxation

SIZES = (2, 3, 4, 6, 8)
"""The numbers of nodes that a repair frees: first two, then more."""
SMALL = 8
"""Up to this number of nodes a cluster is solved as a whole before repairs, since its model is as fast as a repair."""
MOST_OTHERS = 8
"""Number of other waiting pods that a repair considers."""
SMALLEST = 0.01
"""The minimum charge for a solve, in deterministic seconds: building a small model costs more than solving it."""
SHARE = 0.02
"""The share of the limit that one repair may take."""
REPAIR, WHOLE, QUICK, APART, UNDO = 0.5, 0.5, 0.2, 0.3, 0.5
"""The shares of the remaining time for: repairs; the whole model; a first try of the whole model; a model with each pod
by itself, which on small clusters finds plans that counts do not; and undoing moves.
"""


def solve(problem: Problem, limit: float) -> Packing:
    """The best assignment found within `limit` deterministic seconds, and what is proven about it."""
    return _Search(problem, limit).run()


class _Search:
    """The best assignment so far, the bounds that hold for it, and the remaining time."""

    def __init__(self, problem: Problem, limit: float) -> None:
        self.problem = problem
        self.best: Assignment = problem.current
        self.limit = self.left = limit
        self.random = np.random.Generator(np.random.PCG64(0))
        self.relaxation = Relaxation(problem)
        self.most: dict[tuple[int, ...], int] = {}
        """The bound of a tier, by the numbers of pods placed in the tiers above it."""
        self.closed: set[tuple[int, ...]] = set()
        """Tiers on which the whole model has been tried, by the numbers of pods placed in them and above."""

    def run(self) -> Packing:
        problem = self.problem
        at_once = set(range(len(problem.priorities))) if len(problem.capacity) <= SMALL else set()
        while self.left > 0 and (tier := self.open_tier()) is not None:
            if tier in at_once:
                at_once.discard(tier)
                self.fill(tier, QUICK)
                self.fill(tier, APART, apart=True)
            elif not self.repair(tier):
                self.fill(tier, WHOLE)
                self.closed.add(problem.placed(self.best)[: tier + 1])
        least = self.prove_least(self.left * QUICK)
        if least + problem.rank(self.best)[1] < 0:
            self.undo()
            least = max(least, self.prove_least(self.left))
        placed = problem.placed(self.best)
        bounds = tuple(
            max(self.most.get(placed[:t], every), placed[t]) for t, every in enumerate(trivial_bounds(problem))
        )
        return Packing(self.best, placed == bounds, bounds, least, self.limit - self.left)

    def charge(self, spent: float) -> None:
        self.left -= max(spent, SMALLEST)

    def open_tier(self) -> int | None:
        """The first tier that is not proven full and that the whole model has not been tried on; or None."""
        placed = self.problem.placed(self.best)
        for t, count in enumerate(placed):
            above = placed[:t]
            if above not in self.most:
                self.most[above], spent = self.relaxation.bound(t, above, max(self.limit / 20, SMALLEST))
                self.charge(spent)
            if self.most[above] > count and placed[: t + 1] not in self.closed:
                return t
        return None

    def accept(self, found: Assignment) -> bool:
        """Accept an assignment if it is better. Returns whether it is."""
        if self.problem.rank(found) <= self.problem.rank(self.best):
            return False
        self.best = found
        return True

    def repair(self, tier: int) -> bool:
        """Try to place a waiting unit of this tier by freeing some nodes for it. Returns whether that succeeded."""
        stop = self.left * (1 - REPAIR)
        units = sorted({self.problem.unit[i] for i in self.waiting(tier)})
        placed = self.problem.placed(self.best)[: tier + 1]
        for size in SIZES:
            for u in units:
                if self.left <= stop:
                    return False
                unit = self.problem.units[u]
                nodes = self.neighbourhood(unit, size)
                others = [i for i in self.waiting() if i not in unit]
                self.random.shuffle(others)
                self.improve(nodes, [*unit, *self.whole_units(others[:MOST_OTHERS])])
                if self.problem.placed(self.best)[: tier + 1] > placed:
                    return True
            if size >= len(self.problem.capacity):
                return False
        return False

    def waiting(self, tier: int | None = None) -> list[int]:
        """The pods that wait under the best assignment, of one tier or of all."""
        return [i for i, n in enumerate(self.best) if n == WAITS and tier in (None, self.problem.tier[i])]

    def whole_units(self, pods: Iterable[int]) -> Iterator[int]:
        """All pods of the units of these pods."""
        for u in sorted({self.problem.unit[i] for i in pods}):
            yield from self.problem.units[u]

    def neighbourhood(self, unit: tuple[int, ...], size: int) -> list[int]:
        """Nodes to free for a unit: those with most room for it, and as many at random; if required, in one domain."""
        problem = self.problem
        nodes = sorted(set().union(*(problem.eligible[i] for i in unit)))
        level = problem.instance.pods[unit[0]].within
        if level and nodes:
            names = sorted({problem.domain(n, level) for n in nodes})
            name = names[int(self.random.integers(len(names)))]
            nodes = [n for n in nodes if problem.domain(n, level) == name]
        size = min(size + len(unit) - 1, len(nodes))
        free = problem.free(self.best)
        need = [max(problem.request[i][r] for i in unit) for r in range(len(problem.resources))]

        def room(node: int) -> float:
            return sum(min(have / ask, 1.0) for have, ask in zip(free[node], need, strict=True) if ask)

        noise = self.random.random(len(nodes))
        order = sorted(range(len(nodes)), key=lambda k: (-room(nodes[k]) - noise[k], nodes[k]))
        best = order[: (size + 1) // 2]
        rest = [k for k in self.random.permutation(len(nodes)).tolist() if k not in best]
        return [nodes[k] for k in best + rest[: size - len(best)]]

    def improve(self, nodes: list[int], waiting: Iterable[int]) -> None:
        """Solve for some nodes and waiting pods only."""
        model = CountModel(self.problem, self.best, nodes, waiting)
        model.model.maximize(lexicographic(model, range(len(self.problem.priorities))))
        self.bound_of(model, self.limit * SHARE)

    def bound_of(self, model: CountModel, limit: float) -> float | None:
        """Solve from the best assignment, accept a better one, and return the bound of the goal, or None."""
        model.hint(self.best)
        solver, status = model.solve(max(limit, SMALLEST))
        self.charge(solver.response_proto.deterministic_time)
        if status not in ("OPTIMAL", "FEASIBLE"):
            return None
        self.accept(model.decode(solver))
        return float(solver.best_objective_bound)

    def held(self, below: int, apart: bool = False) -> CountModel:
        """A model of the whole cluster in which each tier before `below` keeps at least its number of placed pods."""
        model = CountModel(self.problem, self.best, range(len(self.problem.capacity)), apart=apart)
        for t, count in enumerate(self.problem.placed(self.best)[:below]):
            model.model.add(model.placed_of(t) >= count)
        return model

    def fill(self, tier: int, part: float, apart: bool = False) -> None:
        """Place as many pods of a tier as possible, in the whole cluster, within a share of the remaining time."""
        above = self.problem.placed(self.best)[:tier]
        model = self.held(tier, apart)
        weight = 1 + len(model.pods)
        model.model.maximize(weight * model.placed_of(tier) - model.disturbed())
        bound = self.bound_of(model, self.left * part)
        if bound is not None:
            self.most[above] = min(self.most[above], -int(-bound // weight))

    def undo(self) -> None:
        """Look again at pods that move or are evicted, a few nodes at a time, and let them stay if possible."""
        problem = self.problem
        stop = self.left * (1 - UNDO)
        for size in SIZES:
            pods = [*problem.moved(self.best), *problem.evicted(self.best)]
            for pod in pods:
                if self.left <= stop:
                    return
                if self.best[pod] == problem.current[pod]:
                    continue
                nodes = sorted({problem.current[pod], self.best[pod]} - {WAITS})
                rest = [n for n in self.random.permutation(len(problem.capacity)).tolist() if n not in nodes]
                waiting = self.waiting()
                self.random.shuffle(waiting)
                self.improve([*nodes, *rest[:size]], {*self.whole_units(waiting[:MOST_OTHERS])})

    def prove_least(self, limit: float) -> int:
        """A lower bound of the pods that must move or be evicted; may also find an assignment that disturbs fewer."""
        problem = self.problem
        disturbed = -problem.rank(self.best)[1]
        if disturbed == 0 or self.left <= 0:
            return 0
        model = self.held(len(problem.priorities))
        model.model.minimize(model.disturbed())
        bound = self.bound_of(model, limit)
        return 0 if bound is None else max(0, round(bound))
