"""Clearing nodes: which jobs must leave a node so that it takes more pods, for many nodes in one compiled call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Holders, Weights
from kant.compiled import compiled, inlined
from kant.placement.fits import capacity

FEW = 12
"""On a node with at most this many holders a cheaper set than the greedy one is searched."""

EVERY = 2 << FEW
"""Enough visits to see every set of `FEW`: for the last pod, and so for the only one, the best node is found."""

VISITS = 500
"""Maximum number of visits on one node for one pod count, while more than one pod has no place."""

LEVELS = 24
"""Maximum number of pod counts tried on one node: 1, 2, 4, … and the most that it takes."""


@inlined
def move_entry(table: Table, holders: Holders, demands: Table, entry: int, taking: bool) -> None:
    for piece in range(holders.start[entry], holders.end[entry]):
        if taking:
            c.take_piece(table, holders.pieces[piece], demands)
        else:
            c.give_piece(table, holders.pieces[piece], demands)


@compiled
def clear(
    table: Table,
    demands: Table,
    d: int,
    left: int,
    places: Table,
    holders: Holders,
    weights: Weights,
    cap: int,
    pods: Table,
    leaving: NDArray[np.bool_],
) -> None:
    """For each of `places` (indices into the nodes of `holders`), find which jobs must leave for pods of demand `d`.

    `pods[k, level]` is a number of pods, 0 where no more is found, and `leaving[k, level, e - first]` marks the jobs
    that leave for it: none where the node takes the pods as it is. A set holds at most `cap` milli-GPUs. With one pod
    left only a node that is cheaper than those before it gets an answer. The table is left unchanged.
    """
    width = leaving.shape[2]
    there = np.zeros(width + 1, dtype=np.int64)
    stage, room = np.zeros(width + 2, dtype=np.int64), np.zeros(width + 2, dtype=np.int64)
    upper, lower = np.zeros(width + 2, dtype=np.int64), np.zeros(width + 2, dtype=np.int64)
    out = np.zeros(width + 1, dtype=np.bool_)
    least_upper, least_lower = 1 << LIMB, 0  # above all weights
    mask = (1 << LIMB) - 1
    for k in range(places.shape[0]):
        node, first = holders.nodes[places[k]], holders.first[places[k]]
        now = capacity(table, node, demands, d)
        if now > 0:
            pods[k, 0] = min(now, left)
            if left == 1:
                least_upper, least_lower = 0, 0
            continue
        count = 0
        for entry in range(first, holders.first[places[k] + 1]):
            if weights.may_leave[holders.who[entry]]:
                there[count] = entry
                count += 1
        if count == 0:
            continue
        for i in range(count):
            move_entry(table, holders, demands, there[i], False)
        most, wanted, level = min(capacity(table, node, demands, d), left), 1, 0
        while wanted <= most and level < pods.shape[1]:
            found = False
            best_upper, best_lower = least_upper, least_lower
            if count <= FEW:  # branch and bound: each stays, if the pods still fit; or it leaves
                visits = EVERY if left == 1 else VISITS
                at, stage[0], room[0], upper[0], lower[0] = 0, 0, cap, 0, 0
                while at >= 0:
                    if stage[at] == 0:
                        visits -= 1
                        dear = upper[at] > best_upper or (upper[at] == best_upper and lower[at] >= best_lower)
                        if room[at] < 0 or dear or (found and visits < 0):
                            at -= 1
                            continue
                        if at == count:
                            found, best_upper, best_lower = True, upper[at], lower[at]
                            for i in range(count):
                                leaving[k, level, there[i] - first] = out[i]
                            at -= 1
                            continue
                        move_entry(table, holders, demands, there[at], True)
                        if capacity(table, node, demands, d) >= wanted:
                            stage[at], stage[at + 1] = 1, 0
                            room[at + 1], upper[at + 1], lower[at + 1] = room[at], upper[at], lower[at]
                            at += 1
                            continue
                    if stage[at] == 2:
                        out[at] = False
                        at -= 1
                        continue
                    move_entry(table, holders, demands, there[at], False)
                    who = holders.who[there[at]]
                    total = lower[at] + weights.lower[who]
                    room[at + 1] = room[at] - weights.milli[who]
                    upper[at + 1], lower[at + 1] = upper[at] + weights.upper[who] + (total >> LIMB), total & mask
                    stage[at], stage[at + 1], out[at] = 2, 0, True
                    at += 1
            else:  # the heaviest first, each stays if the pods still fit with it
                total_upper, total_lower, milli = 0, 0, 0
                for i in range(count):
                    move_entry(table, holders, demands, there[i], True)
                    out[i] = capacity(table, node, demands, d) < wanted
                    if out[i]:
                        move_entry(table, holders, demands, there[i], False)
                        who = holders.who[there[i]]
                        total = total_lower + weights.lower[who]
                        total_upper, total_lower = total_upper + weights.upper[who] + (total >> LIMB), total & mask
                        milli += weights.milli[who]
                cheap = total_upper < least_upper or (total_upper == least_upper and total_lower < least_lower)
                found = cheap and milli <= cap
                best_upper, best_lower = total_upper, total_lower
                for i in range(count):
                    if not out[i]:
                        move_entry(table, holders, demands, there[i], False)
                    if found:
                        leaving[k, level, there[i] - first] = out[i]
                    out[i] = False
            if found:
                pods[k, level] = wanted
                level += 1
                if left == 1:
                    least_upper, least_lower = best_upper, best_lower
            wanted = most if wanted < most < 2 * wanted else 2 * wanted
        for i in range(count):  # all have left by now, and what they count as elsewhere too
            move_entry(table, holders, demands, there[i], True)
