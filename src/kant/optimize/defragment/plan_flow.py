"""The best flow and its bound: improve the bound, enumerate the useful patterns, and let CP-SAT choose among them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from kant.optimize.defragment.cluster import Ints, VmCluster, VmLayout
from kant.optimize.defragment.flow import Flow, Pattern, Prices
from kant.optimize.solvers import cp_sat, deterministic


def spread_bound(cluster: VmCluster, layout: VmLayout, flow: Flow, prices: Prices, moves: int) -> tuple[float, float]:
    """The bound for plans that migrate any VMs, and the least excess cost of a plan that migrates spread VMs.

    A spread VM that leaves frees its part on every slot of its host, and needs it on every slot of another. The price
    of a size lies between the most that a host saves when such a VM enters and the least that a host loses when one
    leaves. So at these prices most hosts do neither. A plan that migrates a spread VM changes at least two hosts.
    """
    top = flow.top
    entering = np.concatenate([np.full(top, np.inf), flow.entering(prices)[-1]])  # from -top free cores on
    by_kind = flow.leaving(prices, entering)[-1]
    kind = np.empty(layout.cores.size, dtype=np.int64)
    for row, slots in enumerate(flow.slots):
        kind[slots] = row
    hosts, nodes = layout.cores.shape
    value = np.full((hosts, 2 * top + 1), 0.0)  # cost of a host, by the cores that spread VMs free on each slot
    for j in range(nodes):
        real = cluster.numa > j
        cost = by_kind[kind.reshape(hosts, nodes)[:, j]]
        for shift in range(-top, top + 1):
            free = layout.cores[:, j] + shift
            now = np.where(np.abs(free) <= top, cost[np.arange(hosts), np.clip(free, -top, top) + top], np.inf)
            value[real, shift + top] += now[real]
    base = value[:, top].copy()
    sizes = sorted(set(cluster.vm_cores[cluster.spread].tolist()))
    still, active = value, np.full_like(value, np.inf)
    worth = []
    for size in sizes:
        held = np.bincount(layout.host[cluster.spread & (cluster.vm_cores == size)], minlength=hosts)
        saved = float((base - value[:, top - size]).max(initial=0.0)) if size <= top else 0.0
        costs = (value[:, top + size] - base + prices.move)[held > 0] if size <= top else np.zeros(0)
        worth.append((size, held, (saved + max(float(costs.min()), saved)) / 2 if len(costs) else saved))
    for size, _, price in worth:  # enter: from the fewest freed cores up, as often as there is room
        for at in range(size, 2 * top + 1):
            active[:, at] = np.minimum(
                active[:, at], np.minimum(still[:, at - size], active[:, at - size]) + price
            )  # fmt: skip
    for size, held, price in worth:  # leave: as many as there are
        before = np.minimum(still, active)
        for count in range(1, min(int(held.max(initial=0)), top // size) + 1):
            rows = held >= count
            shifted = before[rows, count * size :] + count * (prices.move - price)
            width = shifted.shape[1]
            active[rows, :width] = np.minimum(active[rows, :width], shifted)
    least = np.minimum(base, active[:, top])
    bound = float(least.sum()) - prices.move * moves
    above = active[:, top] - least
    return bound, 2 * float(above.min(initial=np.inf))


STEPS = 200
MOST_PATTERNS = 10_000
"""The maximum number of patterns for the solver. If there are more, the search ends without a proof."""
FEW = 8
"""At first, a pattern may cost block / FEW more than the cheapest one. Each later round doubles this amount."""
SHARE = 0.2
"""The share of the search's time limit that one run of the solver may take."""
Choice = list[Counter[tuple[int, ...]]]
"""For each kind of slot, the number of slots that take each pattern."""
Nets = list[tuple[int, tuple[int, ...]]]
"""For some slots, the VMs that enter (positive) and leave (negative), by size."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """The changes of slots, the resulting fragments, and a lower bound for all plans with the same limit of moves."""

    nets: Nets
    sizes: list[int]
    fragments: int
    bound: int
    spent: float


def plan_flow(cluster: VmCluster, layout: VmLayout, moves: int, limit: float) -> FlowPlan:
    """The fewest fragments after at most `moves` migrations of single-slot VMs, within `limit` deterministic seconds.

    The bound also holds for plans that migrate spread VMs. A few patterns are tried first, then more. Once all patterns
    of any better plan are included, infeasibility proves that there is no better plan.
    """
    flow = Flow(cluster, layout)
    value, prices = flow.climb(moves, flow.fragments, Prices(np.zeros(len(flow.sizes)), 0.0), STEPS)
    value, prices = flow.climb(moves, flow.rounded(value), prices, STEPS)
    value, freely = spread_bound(cluster, layout, flow, prices, moves)
    bound = max(flow.rounded(value), 0)
    known, spent, gap = flow.fragments, 0.0, flow.block / FEW
    best: Choice = [Counter() for _ in flow.slots]
    while known > bound and spent < limit:
        enough = known - flow.block - value
        gap = min(gap, enough)
        patterns = flow.patterns(prices, gap)
        if sum(map(len, patterns)) > MOST_PATTERNS:
            break
        model = _Choice(flow, patterns, moves, known - flow.block, bound)
        found, status = model.solve(min(limit * SHARE, limit - spent))
        spent += model.spent
        if found is not None:
            best, known = found
        elif gap == enough:
            if status == "INFEASIBLE" and gap < freely:
                bound = known
            break
        gap *= 2
    return FlowPlan(_by_slot(flow, best, layout.memory.ravel()), flow.sizes, known, min(bound, known), spent)


class _Choice:
    """The choice of a pattern for every slot, with at most `most` and at least `least` fragments."""

    def __init__(self, flow: Flow, patterns: list[list[Pattern]], moves: int, most: int, least: int) -> None:
        self.flow, self.patterns = flow, patterns
        self.spent = 0.0
        self.model: Any = cp_sat().CpModel()
        self.chosen: dict[tuple[int, tuple[int, ...]], Any] = {}
        nets: list[list[Any]] = [[] for _ in flow.sizes]
        gained, self.left, self.waits = [], [], []
        for row, own in enumerate(patterns):
            free, times = int(flow.free[row]), int(flow.times[row])
            counts = []
            for pattern in own:
                if not any(pattern.net):
                    continue
                count = self.chosen[row, pattern.net] = self.model.new_int_var(0, times, "")
                self.model.add_hint(count, 0)
                counts.append(count)
                self.left.append(pattern.leaving * count)
                gained.append((free % flow.block - pattern.fragments) * count)
                if _entering(flow, pattern.net) > free:
                    self.waits.append(count)
                for k, n in enumerate(pattern.net):
                    if n:
                        nets[k].append(n * count)
            self.model.add(sum(counts) <= times)
        for net in nets:
            self.model.add(sum(net) == 0)
        self.model.add(sum(self.left) <= moves)
        blocks = (flow.fragments - most) // flow.block, (flow.fragments - least) // flow.block
        self.blocks = self.model.new_int_var(0, max(*blocks, 0), "")
        self.model.add(self.blocks >= blocks[0])
        self.model.add(sum(gained) == flow.block * self.blocks)

    def solve(self, limit: float) -> tuple[tuple[Choice, int] | None, str]:
        """Maximise whole blocks, then minimise moves and patterns that wait for room. Also returns the status."""
        self.model.maximize(self.blocks)
        solver, status = self._run(limit)
        if solver is None:
            return None, status
        blocks = solver.value(self.blocks)
        best = solver
        self.model.add(self.blocks == blocks)
        self.model.clear_hints()
        for count in self.chosen.values():
            self.model.add_hint(count, solver.value(count))
        self.model.minimize(sum(self.left) + sum(self.waits))
        solver, _ = self._run(limit)
        best = solver or best
        choice: Choice = [Counter() for _ in self.patterns]
        for (row, net), count in self.chosen.items():
            choice[row][net] += best.value(count)
        return (choice, self.flow.fragments - self.flow.block * blocks), status

    def _run(self, limit: float) -> tuple[Any, str]:
        solver = deterministic(limit)
        status = solver.status_name(solver.solve(self.model))
        self.spent += float(solver.response_proto.deterministic_time)
        return (solver if status in ("OPTIMAL", "FEASIBLE") else None), status


def _by_slot(flow: Flow, best: Choice, memory: Ints) -> Nets:
    """Assign the chosen patterns to the slots of their kind: the most entering cores to the most free memory."""
    nets: Nets = []
    for slots, chosen in zip(flow.slots, best, strict=True):
        patterns = sorted(chosen.elements(), key=lambda net: (-_entering(flow, net), net))
        nets += zip(sorted(slots, key=lambda slot: (-memory[slot], slot)), patterns, strict=False)
    return nets


def _entering(flow: Flow, net: tuple[int, ...]) -> int:
    """The cores of the VMs that enter."""
    return sum(size * n for size, n in zip(flow.sizes, net, strict=True) if n > 0)
