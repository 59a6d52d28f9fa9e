"""Precedence: a topological order, or a cycle that prevents one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush


def order_of(ids: Sequence[str], waits: Iterable[Sequence[str]]) -> tuple[list[int], list[str]]:
    """Return the indices in topological order (each after those that it waits for), and a cycle that blocks the rest.

    Among those that may come next, the smallest index goes first. The cycle names each member once, in its order; it is
    empty if there is none.
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
