"""What spreading replicas over nodes must cost other jobs at least: small clusters, solved exactly.

`python -m benchmarks.preferences_bound [--nodes N,…] [--replicas R]`. Jobs of 1, 2 and 4 GPUs come at random to nodes
of 4 GPUs, as many of each size, and run for 1 on average; so does a service of so many replicas of 1 GPU, if there is
none.
Who comes is placed at once and never moved; who finds no room is lost. That is a Markov decision process: its
solution is the best that any scheduler can do that knows rates, and not what comes. It loses as few GPUs as possible,
and then has as few nodes as possible that are partly free and run other jobs. The bound is the difference of two
solutions: where the replicas lie on as many nodes as have room, and where they lie as is best for the others.

Source: relative value iteration on the uniformized chain; Puterman, Markov Decision Processes, 1994, chapters 8, 11.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

GPUS, SIZES, SERVICES = 4, (1, 2, 4), 0.3
"""GPUs of a node, of other jobs, and how many services come in 1."""
LOADS = (0.5, 0.7, 0.9)
"""GPUs that other jobs ask for, in parts of the cluster."""
LOST = 1000.0
"""What a GPU that finds no room costs, in broken nodes."""
EXACT = 1e-6

Table = NDArray[Any]
Content = tuple[int, ...]
"""Other jobs of each size on a node, and replicas."""
Cluster = tuple[Content, ...]
"""Nodes in order of their content: which is which makes no difference."""


@dataclass(frozen=True)
class Means:
    """Means over time: nodes broken by other jobs, services there, nodes that these use, GPUs lost, share in use."""

    broken: float
    services: float
    used: float
    lost: float
    allocated: float
    gain: float
    """`broken` and the cost of `lost`, as value iteration has it."""


def free(node: Content) -> int:
    return GPUS - sum(count * size for count, size in zip(node, (*SIZES, 1), strict=True))


def _with(cluster: Cluster, at: int, kind: int, more: int) -> Cluster:
    """The cluster with more jobs of a size on a node."""
    node = tuple(count + more * (k == kind) for k, count in enumerate(cluster[at]))
    return tuple(sorted((*cluster[:at], node, *cluster[at + 1 :])))


def coming(cluster: Cluster, kind: int) -> set[Cluster]:
    """The clusters that a job of this size may lead to; empty where it finds no room."""
    found = set[Cluster]()
    for at, node in enumerate(cluster):
        if free(node) >= SIZES[kind]:
            found.add(_with(cluster, at, kind, 1))
    return found


def serving(cluster: Cluster, replicas: int, apart: bool) -> set[Cluster]:
    """The clusters that a service may lead to: on as many nodes as have room, or as many as one likes."""
    if any(node[3] for node in cluster):
        return {cluster}  # there is one
    room = [min(free(node), replicas) for node in cluster]
    most = min(sum(one > 0 for one in room), replicas) if apart else 0
    ways = (way for way in product(*(range(one + 1) for one in room)) if sum(way) == replicas)
    return {
        tuple(sorted((*node[:3], own) for node, own in zip(cluster, way, strict=True)))
        for way in ways
        if np.count_nonzero(way) >= most
    }


def ending(cluster: Cluster) -> Counter[Cluster]:
    """The clusters that an end leads to, by rate: each job ends at rate 1, and a service as a whole."""
    found = Counter[Cluster]()
    for at, node in enumerate(cluster):
        for kind in range(len(SIZES)):
            if node[kind]:
                found[_with(cluster, at, kind, -1)] += node[kind]
    if any(node[3] for node in cluster):
        found[tuple(sorted((*node[:3], 0) for node in cluster))] += 1
    return found


def solve(nodes: int, replicas: int, load: float, apart: bool) -> Means:
    """The best long-run average, and the means of a policy that reaches it."""
    index: dict[Cluster, int] = {((0, 0, 0, 0),) * nodes: 0}
    order = list(index)
    ends, moves = list[list[tuple[int, int]]](), [list[list[int]]() for _ in range(4)]

    def known(cluster: Cluster) -> int:
        if cluster not in index:
            index[cluster] = len(order)
            order.append(cluster)
        return index[cluster]

    for cluster in order:  # it grows
        ends.append([(known(other), rate) for other, rate in ending(cluster).items()])
        for kind in range(3):
            moves[kind].append([known(other) for other in coming(cluster, kind)])
        moves[3].append([known(other) for other in serving(cluster, replicas, apart)])
    count, each = len(order), load * GPUS * nodes / sum(SIZES)
    rates = [each] * 3 + [SERVICES]
    total = max(sum(rate for _, rate in one) for one in ends) + sum(rates)
    rows = np.repeat(np.arange(count), [len(one) for one in ends])
    to, rate = np.array([end for one in ends for end in one]).T
    stays = 1 - (np.bincount(rows, rate, count) + sum(rates)) / total

    broken = np.array([sum(free(one) > 0 and any(one[:3]) for one in cluster) for cluster in order], dtype=float)
    lost, arrivals = np.zeros(count), []
    for kind, options in enumerate(moves):
        none = np.array([not one for one in options])
        lost += none * rates[kind] * (*SIZES, replicas)[kind]
        flat = np.array([other for at, one in enumerate(options) for other in one or [at]])
        begins = np.cumsum([0, *(max(len(one), 1) for one in options)])
        arrivals.append((rates[kind] / total, flat, begins))

    value, cost = np.zeros(count), (broken + LOST * lost) / total
    while True:
        new = cost + stays * value + np.bincount(rows, rate / total * value[to], count)
        for share, flat, begins in arrivals:
            new += share * np.minimum.reduceat(value[flat], begins[:-1])
        step = new - value
        value = new - new[0]
        if np.ptp(step) * total < EXACT:
            break
    part = _stationary(value, stays, (rows, to, rate / total), arrivals)
    services = np.array([any(one[3] for one in cluster) for cluster in order])
    used = np.array([sum(one[3] > 0 for one in cluster) for cluster in order])
    taken = np.array([sum(GPUS - free(one) for one in cluster) for cluster in order]) / (GPUS * nodes)
    means = [float(part @ one) for one in (broken, services, used, lost, taken)]
    return Means(*means, float(step.mean() * total))


def _stationary(
    value: Table, stays: Table, ends: tuple[Table, Table, Table], arrivals: list[tuple[float, Table, Table]]
) -> Table:
    """The share of time in each state under a policy that takes the option of the least value."""
    rows, to, rate = ends
    chosen = []
    for share, flat, begins in arrivals:
        owner = np.repeat(np.arange(len(value)), np.diff(begins))
        by_value = np.lexsort((value[flat], owner))
        chosen.append((share, flat[by_value[begins[:-1]]]))
    part: Table = np.full(len(value), 1 / len(value))
    while True:
        new = stays * part + np.bincount(to, rate * part[rows], len(part))
        for share, goes in chosen:
            new += np.bincount(goes, share * part, len(part))
        part, change = new, np.abs(new - part).sum()
        if change < EXACT / 1000:
            return part


def bounds(nodes: list[int], replicas: int) -> Iterator[tuple[int, float, Means, Means]]:
    """For each cluster and load: the best where replicas are spread over nodes, and the best for others without it."""
    for many in nodes:
        for load in LOADS:
            yield many, load, solve(many, replicas, load, True), solve(many, replicas, load, False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preferences_bound")
    parser.add_argument("--nodes", default="3,4,5")
    parser.add_argument("--replicas", type=int, default=2)
    asked = parser.parse_args()
    print("| nodes | allocated | nodes of a service | free to lie | broken % | free to lie | lost | an extra node |")
    print("|---|---|---|---|---|---|---|---|")
    for many, _, apart, at_will in bounds([int(one) for one in asked.nodes.split(",")], asked.replicas):
        spread, without = apart.used / apart.services, at_will.used / at_will.services
        more = apart.broken - at_will.broken
        print(
            f"| {many} | {apart.allocated:.0%} | {spread:.2f} | {without:.2f} | {100 * apart.broken / many:.1f} "
            f"| {100 * at_will.broken / many:.1f} | {100 * more / many:.1f} "
            f"| {more / (apart.services * (spread - without)):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
