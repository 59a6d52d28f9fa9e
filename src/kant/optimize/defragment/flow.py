"""The class-aggregated flow: how many VMs of each size leave and enter every NUMA node, with a proven bound.

VMs of one size are interchangeable, so a plan is a *pattern* for each slot (a NUMA node): how many VMs of each size
leave and enter. Two rules link the slots: of each size as many VMs enter as leave, and at most `moves` leave in all.
Lagrange multipliers (prices) replace these rules. Then each slot takes its cheapest pattern independently, found by
dynamic programming over its free cores. The sum is a lower bound on the fragments of any plan; subgradient steps
improve the multipliers. The plans that can still be better are then enumerated: the costs of a plan's patterns exceed
those of the cheapest patterns by at most the gap between the bound and the best known plan.

The bound ignores memory and anti-affinity, so it holds for all plans that respect them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kant.optimize.defragment.cluster import Ints, VmCluster, VmLayout

Floats = npt.NDArray[np.float64]
EPSILON = 1e-6
STALL, SHRINK = 8, 0.6
"""Steps are shortened by the factor SHRINK after STALL steps without a better bound."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Multipliers, in fragment cores: the price for a VM of each size to enter a slot, and the price of a migration."""

    size: Floats
    move: float


@dataclass(frozen=True, slots=True)
class Pattern:
    """The change of one slot: the VMs that enter (positive) or leave (negative), by size, and the fragments afterwards.
    `excess` is its cost above that of the slot's cheapest pattern.
    """

    net: tuple[int, ...]
    fragments: int
    excess: float

    @property
    def leaving(self) -> int:
        return -sum(n for n in self.net if n < 0)


class Flow:
    """The slots of a layout by kind: `free` cores, VMs `held` by size, and the number of such slots (`times`)."""

    def __init__(self, cluster: VmCluster, layout: VmLayout) -> None:
        self.block = cluster.instance.block
        single = ~cluster.spread
        self.sizes: list[int] = sorted(set(cluster.vm_cores[single].tolist()))
        column = {size: k for k, size in enumerate(self.sizes)}
        hosts, nodes = layout.cores.shape
        held = np.zeros((hosts * nodes, len(self.sizes)), dtype=np.int64)
        for vm in np.flatnonzero(single).tolist():
            held[layout.host[vm] * nodes + layout.slot[vm], column[int(cluster.vm_cores[vm])]] += 1
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for slot, free in enumerate(layout.cores.ravel().tolist()):
            alike[(free, *held[slot].tolist())].append(slot)
        self.slots = list(alike.values())
        keys = np.array(list(alike), dtype=np.int64).reshape(len(alike), 1 + len(self.sizes))
        self.free: Ints = keys[:, 0]
        self.held: Ints = keys[:, 1:]
        self.times: Ints = np.array([len(slots) for slots in self.slots], dtype=np.int64)
        self.top = int(cluster.cores.max(initial=0))
        self.fragments = int((self.free % self.block) @ self.times)

    def rounded(self, bound: float) -> int:
        """A bound rounded up to a possible value: free cores only move, so fragments differ by whole blocks."""
        return self.fragments - self.block * int((self.fragments - bound + EPSILON) // self.block)

    def entering(self, prices: Prices) -> list[Floats]:
        """Tables of the least cost of a slot, by its free cores. In table k, VMs of the first k sizes may enter."""
        layers = [(np.arange(self.top + 1) % self.block).astype(np.float64)]
        for size, price in zip(self.sizes, prices.size, strict=True):
            cost = layers[-1].copy()
            for free in range(size, self.top + 1):
                cost[free] = min(cost[free], cost[free - size] + price)
            layers.append(cost)
        return layers

    def leaving(self, prices: Prices, entering: Floats) -> list[Floats]:
        """Tables of the least cost by kind of slot and free cores. In table k, VMs of the first k sizes may leave
        before others enter.

        `entering` may begin with negative free cores, at infinite cost: then at least that many cores must leave.
        """
        layers = [np.broadcast_to(entering, (len(self.free), len(entering)))]
        for k, size in enumerate(self.sizes):
            before = layers[-1]
            cost = before.copy()
            for count in range(1, min(int(self.held[:, k].max(initial=0)), self.top // size) + 1):
                rows = self.held[:, k] >= count
                shifted = before[rows, count * size :] + count * (prices.move - prices.size[k])
                width = shifted.shape[1]
                cost[rows, :width] = np.minimum(cost[rows, :width], shifted)
            layers.append(cost)
        return layers

    def evaluate(self, prices: Prices, moves: int) -> tuple[float, Ints, int]:
        """The bound at some prices; for the cheapest patterns, the net entering VMs by size, and the number leaving."""
        entering = self.entering(prices)
        leaving = self.leaving(prices, entering[-1])
        rows = np.arange(len(self.free))
        value = float(leaving[-1][rows, self.free] @ self.times) - prices.move * moves
        free = self.free.copy()
        net = np.zeros(len(self.sizes), dtype=np.int64)
        left = 0
        for k in range(len(self.sizes) - 1, -1, -1):
            cost, before, step = leaving[k + 1], leaving[k], prices.move - prices.size[k]
            count = np.zeros_like(free)
            for n in range(1, min(int(self.held[:, k].max(initial=0)), self.top // self.sizes[k]) + 1):
                target = np.minimum(free + n * self.sizes[k], self.top)
                here = (self.held[:, k] >= n) & (np.abs(before[rows, target] + n * step - cost[rows, free]) < EPSILON)
                stays = np.abs(before[rows, free] - cost[rows, free]) < EPSILON
                count[here & (count == 0) & ~stays] = n
            free = free + count * self.sizes[k]
            net[k] -= int(count @ self.times)
            left += int(count @ self.times)
        for k in range(len(self.sizes) - 1, -1, -1):
            for _ in range(self.top // self.sizes[k]):
                enters = entering[k][free] > entering[k + 1][free] + EPSILON
                if not enters.any():
                    break
                net[k] += int(self.times[enters].sum())
                free = free - enters * self.sizes[k]
        return value, net, left

    def climb(self, moves: int, best_known: float, prices: Prices, steps: int) -> tuple[float, Prices]:
        """Return the best lower bound of up to `steps` subgradient steps, and its prices (Polyak's rule)."""
        best, at = -np.inf, prices
        scale, stalled = 1.0, 0
        for _ in range(steps):
            value, net, left = self.evaluate(prices, moves)
            if value > best + EPSILON:
                best, at, stalled = value, prices, 0
            else:
                stalled += 1
            if stalled > STALL:
                scale, stalled, prices = scale * SHRINK, 0, at
                continue
            length = float(net @ net) + (left - moves) ** 2
            if length == 0:
                break
            step = scale * max(best_known - value, 1.0) / length
            prices = Prices(prices.size + step * net, max(0.0, prices.move + step * (left - moves)))
        return best, at

    def patterns(self, prices: Prices, excess: float) -> list[list[Pattern]]:
        """For each kind of slot, all patterns that cost at most `excess` more than the kind's cheapest pattern,
        including the cheapest.
        """
        entering = self.entering(prices)
        leaving = self.leaving(prices, entering[-1])
        found = []
        for row, free in enumerate(self.free.tolist()):
            least = float(leaving[-1][row, free])
            limit = least + excess + EPSILON
            own = [layer[row] for layer in leaving]
            walks = self._leave(row, free, len(self.sizes), 0.0, limit, (), prices, own, entering)
            found.append([Pattern(net, left % self.block, cost - least) for net, left, cost in walks])
        return found

    def _leave(
        self, row: int, free: int, k: int, cost: float, limit: float, out: tuple[int, ...],
        prices: Prices, own: list[Floats], entering: list[Floats],
    ) -> Iterator[tuple[tuple[int, ...], int, float]]:  # fmt: skip
        """Enumerate leaving VMs, the largest size first, then entering VMs. The tables bound the remaining cost."""
        if k == 0:
            yield from self._enter(free, len(self.sizes), cost, limit, out[::-1], (), prices, entering)
            return
        size, step = self.sizes[k - 1], prices.move - float(prices.size[k - 1])
        for count in range(int(self.held[row, k - 1]) + 1):
            if cost + count * step + own[k - 1][free + count * size] <= limit:
                yield from self._leave(
                    row, free + count * size, k - 1, cost + count * step, limit, (*out, count), prices, own, entering
                )

    def _enter(
        self, free: int, k: int, cost: float, limit: float, out: tuple[int, ...], into: tuple[int, ...],
        prices: Prices, entering: list[Floats],
    ) -> Iterator[tuple[tuple[int, ...], int, float]]:  # fmt: skip
        if k == 0:
            net = tuple(enters - leaves for enters, leaves in zip(into[::-1], out, strict=True))
            yield net, free, cost + free % self.block
            return
        size, step = self.sizes[k - 1], float(prices.size[k - 1])
        for count in range(free // size + 1 if out[k - 1] == 0 else 1):  # a size that leaves does not also enter
            if cost + count * step + entering[k - 1][free - count * size] <= limit:
                yield from self._enter(
                    free - count * size, k - 1, cost + count * step, limit, out, (*into, count), prices, entering
                )
