"""What is known of every plan of a graph: how much its stages may slip, and what no plan can go below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from kant.optimize.workflow.graph import NEVER, Graph, Run


def slack(graph: Graph, runs: Sequence[Run]) -> list[int]:
    """For each stage of a plan how much later it could end without the plan ending later.

    Stages keep their processors and the order there, in which one without duration has no place; `runs` are those of
    this one graph.
    """
    of = {run.stage: run for run in runs}
    end = max(run.end for run in runs)
    latest = [end] * len(graph.stages)
    by_time = sorted(runs, key=lambda run: (run.end, run.start, run.stage), reverse=True)
    following: dict[int, Run] = {}
    for run in by_time:
        late = end
        for j, ticks in graph.after[run.stage]:
            then = of[j]
            takes = then.end - then.start
            late = min(late, latest[j] - takes - (ticks if then.processor != run.processor else 0))
        if run.start < run.end:
            if run.processor in following:
                then = following[run.processor]
                late = min(late, latest[then.stage] - (then.end - then.start))
            following[run.processor] = run
        latest[run.stage] = late
    return [latest[i] - of[i].end for i in range(len(graph.stages))]


def lower_bound(graph: Graph) -> int:
    """No plan ends before: the longest way without transfers, and the least work that the processors must share.

    Where data goes to another processor a way only gets longer, so transfers are left out.
    """
    ways = [0] * len(graph.stages)
    for i, stage in enumerate(graph.stages):
        ways[i] = stage.least + max((ways[j] for j, _ in stage.before), default=0)
    work = sum(stage.least for stage in graph.stages)
    able = sum(any(stage.durations[p] != NEVER for stage in graph.stages) for p in range(len(graph.processors)))
    return max(*ways, -(-work // able))


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
