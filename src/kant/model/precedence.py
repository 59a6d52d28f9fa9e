"""What comes before what: an order in which everything comes after what it waits for, or the circle that forbids it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush


def order_of(ids: Sequence[str], waits: Iterable[Sequence[str]]) -> tuple[list[int], list[str]]:
    """The indices in an order in which each comes after those that it waits for, and a circle that keeps the rest out.

    Of those that may come next the first goes first. The circle names each member once, in its order; it is empty where
    everything has its place.
    """
    index = {name: i for i, name in enumerate(ids)}
    ahead = [{index[name] for name in names} for names in waits]
    behind: list[list[int]] = [[] for _ in ids]
    for i, those in enumerate(ahead):
        for j in sorted(those):
            behind[j].append(i)
    left = [len(those) for those in ahead]
    ready = [i for i, count in enumerate(left) if not count]
    heapify(ready)
    order = []
    while ready:
        i = heappop(ready)
        order.append(i)
        for j in behind[i]:
            left[j] -= 1
            if not left[j]:
                heappush(ready, j)
    if len(order) == len(ids):
        return order, []
    at = next(i for i, count in enumerate(left) if count)
    seen: dict[int, None] = {}
    while at not in seen:
        seen[at] = None
        at = min(j for j in ahead[at] if left[j])
    way = list(seen)
    return order, [ids[i] for i in reversed(way[way.index(at) :])]
