"""The cheapest node to clear for one pod: the best of all nodes, and of all sets of holders on each, in one call."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Holders, Weights
from kant.compiled import compiled, inlined
from kant.model.placement import MASK, PODS, WIDTH
from kant.placement.clearing import EVERY, move_entry
from kant.placement.fits import capacity

NO_NODE = -1
"""The result where no node takes the pod, whichever jobs leave."""

TOO_MANY = -2
"""The result where a node has more sets, whole or partial, than `EVERY`: the best of them is not known."""


# Columns of the search stack: a row for each holder in order, with the decisions about those before it.
STAGE = 0  # how much of its subtree has been tried
ROOM = 1  # milli-GPUs that may still leave
UPPER = 2  # weight of those that leave
LOWER = 3
OUT = 4  # 1: it leaves
TAKEN = 5  # 1: it is taken on the node, since it stays


@inlined
def _find_twins(holders: Holders, weights: Weights, order: Table, count: int, twin: Table) -> None:
    """For each holder in the order find the last one before it with equal weight and piece; -1: none.

    Only holders of a single piece without devices: devices are not interchangeable.
    """
    for at in range(count):
        twin[at] = -1
        who, piece = holders.who[order[at]], holders.start[order[at]]
        if holders.end[order[at]] - piece > 1 or holders.pieces[piece, MASK] != 0:
            continue
        for before in range(at - 1, -1, -1):
            whose, other = holders.who[order[before]], holders.start[order[before]]
            same = weights.lower[whose] == weights.lower[who] and weights.upper[whose] == weights.upper[who]
            same = same and holders.end[order[before]] - other == 1
            for column in range(PODS, WIDTH):
                same = same and holders.pieces[other, column] == holders.pieces[piece, column]
            if same:
                twin[at] = before
                break


@inlined
def _search(
    table: Table,
    node: int,
    demands: Table,
    d: int,
    holders: Holders,
    weights: Weights,
    order: Table,
    twin: Table,
    count: int,
    cap: int,
    leaves_first: bool,
    bound: Table,
    stack: Table,
    best: Table,
) -> int:
    """Branch and bound over which holders leave a node that takes the pod once all have left, as is the case on entry.

    Returns 1 where a set weighs no more than `bound` (its upper and its lower part); it is then in `best`, its weight
    in `bound`. It is the lightest set; with `leaves_first` the first in order that is light enough. 0: none; or
    `TOO_MANY`. After a complete search without `leaves_first`, all have left again.
    """
    visits, at, found, mask = 0, 0, 0, (1 << LIMB) - 1
    stack[0, STAGE], stack[0, ROOM], stack[0, UPPER], stack[0, LOWER] = 0, cap, 0, 0
    for i in range(count):
        stack[i, TAKEN] = 0
    while at >= 0:
        room, upper, lower = stack[at, ROOM], stack[at, UPPER], stack[at, LOWER]
        if stack[at, STAGE] == 0:
            visits += 1
            if visits > EVERY:
                return TOO_MANY
            equal = upper == bound[0] and lower == bound[1]
            if room < 0 or upper > bound[0] or (upper == bound[0] and lower > bound[1]) or (found == 1 and equal):
                at -= 1
                continue
            if at == count:
                found, bound[0], bound[1] = 1, upper, lower
                for i in range(count):
                    best[i] = stack[i, OUT]
                if leaves_first:
                    return found
                at -= 1
                continue
        who, entry = holders.who[order[at]], order[at]
        if stack[at, TAKEN] == 1:
            move_entry(table, holders, demands, entry, False)
            stack[at, TAKEN] = 0
        if stack[at, STAGE] == 2:
            at -= 1
            continue
        leaves = int((stack[at, STAGE] == 0) == leaves_first)
        stack[at, STAGE] += 1
        if stack[at, STAGE] == 1 and twin[at] >= 0 and stack[twin[at], OUT] != leaves:
            continue  # of equal holders the first ones do what is tried first
        if leaves == 1:
            total = lower + weights.lower[who]
            room, upper, lower = room - weights.milli[who], upper + weights.upper[who] + (total >> LIMB), total & mask
        else:
            move_entry(table, holders, demands, entry, True)
            stack[at, TAKEN] = 1
            if capacity(table, node, demands, d) == 0:
                continue
        stack[at, OUT] = leaves
        at += 1
        stack[at, STAGE], stack[at, ROOM], stack[at, UPPER], stack[at, LOWER] = 0, room, upper, lower
    return found


@compiled
def cheapest_node(
    table: Table,
    demands: Table,
    d: int,
    holders: Holders,
    heavy: Table,
    rows: Table,
    weights: Weights,
    cap: int,
    leaving: Table,
) -> int:
    """Return how many holders leave a node so that it takes a pod of demand `d`, at the least weight of all nodes.

    Their entries come first in `leaving`: of equal weights those whose `rows` (one for each holder) come first. A set
    holds at most `cap` milli-GPUs. Within a node entries are in the order of their rows, and `heavy` has the same
    entries, the heaviest first. The table is left unchanged.
    """
    width = holders.widest
    order, twin = np.zeros(width + 1, dtype=np.int64), np.zeros(width + 1, dtype=np.int64)
    stack, found = np.zeros((width + 2, 6), dtype=np.int64), np.zeros(width + 1, dtype=np.int64)
    victims = NO_NODE
    bound, least = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    bound[0] = least[0] = 1 << LIMB  # above all weights
    for k in range(holders.nodes.shape[0]):
        node, first, end = holders.nodes[k], holders.first[k], holders.first[k + 1]
        for entry in range(first, end):
            if weights.may_leave[holders.who[entry]]:
                move_entry(table, holders, demands, entry, False)
        count, answer = 0, int(capacity(table, node, demands, d) > 0)
        for turn in range(2):  # the least weight; then, of the sets of equal weight, that of the first rows
            if answer != 1:
                break
            count = 0
            for place in range(first, end):
                entry = place if turn == 1 else heavy[place]
                if weights.may_leave[holders.who[entry]]:
                    order[count] = entry
                    count += 1
            _find_twins(holders, weights, order, count, twin)
            answer = _search(
                table, node, demands, d, holders, weights, order, twin, count, cap, turn == 1, bound, stack, found
            )
        for i in range(count):
            if stack[i, TAKEN] == 1:
                move_entry(table, holders, demands, order[i], False)
        for entry in range(first, end):  # all have left by now, and what they count as elsewhere too
            if weights.may_leave[holders.who[entry]]:
                move_entry(table, holders, demands, entry, True)
        if answer == TOO_MANY:
            return TOO_MANY
        if answer == 0:
            continue
        better, place = bound[0] != least[0] or bound[1] != least[1], 0
        for i in range(count):
            if found[i] == 1 and not better:
                row, other = rows[holders.who[order[i]]], rows[holders.who[leaving[place]]]
                if row > other:
                    break
                better, place = row < other, place + 1
        if better:
            victims, least[0], least[1] = 0, bound[0], bound[1]
            for i in range(count):
                if found[i] == 1:
                    leaving[victims] = order[i]
                    victims += 1
    return victims
