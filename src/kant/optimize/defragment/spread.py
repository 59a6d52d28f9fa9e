"""The bound of the flow if VMs that are spread over all NUMA nodes of a host may migrate, too."""

from __future__ import annotations

import numpy as np

from kant.optimize.defragment.cluster import Cluster, Layout
from kant.optimize.defragment.flow import Flow, Prices


def spread_bound(cluster: Cluster, layout: Layout, flow: Flow, prices: Prices, moves: int) -> tuple[float, float]:
    """The bound for plans that migrate any VMs; and the least excess cost of a plan that migrates spread VMs.

    A spread VM that leaves frees its part on every slot of its host, and takes it on every slot of another. Each of
    their sizes gets a price between the most that entering saves and the least that leaving costs, so that most hosts
    prefer to do neither. In a plan that migrates one, at least two hosts do one of the two.
    """
    top = flow.top
    entering = np.concatenate([np.full(top, np.inf), flow.entering(prices)[-1]])  # from -top free cores on
    by_kind = flow.leaving(prices, entering)[-1]
    kind = np.empty(layout.cores.size, dtype=np.int64)
    for row, slots in enumerate(flow.slots):
        kind[slots] = row
    hosts, nodes = layout.cores.shape
    value = np.full((hosts, 2 * top + 1), 0.0)  # of a host, by the cores that spread VMs free on each of its slots
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
    for size, _, price in worth:  # enter: from the least cores freed up, as often as there is room
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
