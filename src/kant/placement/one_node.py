"""The cheapest node to clear for one pod: of all nodes, and of all sets of holders on each, the best in one call."""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Holders, Weights
from kant.compiled import compiled, inlined
from kant.model.placement import MASK, PODS, WIDTH
from kant.placement.clearing import EVERY, move_entry
from kant.placement.fits import capacity

NO_NODE = -1
"""The answer where no node takes the pod, whoever leaves."""

TOO_MANY = -2
"""The answer where a node has more sets, whole or in part, than `EVERY`: the best of them is not known."""


# Columns of the stack of a search: a row for each holder of an order, with what was decided about those before it.
STAGE = 0  # how much of it has been tried
ROOM = 1  # milli-GPUs that may still leave
UPPER = 2  # what those who leave weigh
LOWER = 3
OUT = 4  # 1: it leaves
TAKEN = 5  # 1: it is on the node, as it stays


@inlined
def _find_twins(holders: Holders, weights: Weights, order: Table, count: int, twin: Table) -> None:
    """For each holder of the order the last one before it that weighs and holds the same; -1 for none.

    Only holders of a single piece without devices: one device is not like another.
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
    """Branch and bound over who of the order leaves a node that takes the pod once all have left, as they have.

    1 where a set weighs no more than `bound` (its upper and its lower part): `best` then has it, and `bound` its
    weight. It is the lightest; with `leaves_first` the first that is light enough, by those who come first. 0 where
    there is none, and `TOO_MANY`. Where the search is through, without `leaves_first`, they have all left again.
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
            continue  # of those who are alike the first do what is tried first
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
    """How many holders leave a node at the least weight of all nodes so that it takes a pod of demand `d`.

    Their entries come first in `leaving`: of equal weights those whose `rows` (one for each holder) come first. A set
    holds at most `cap` milli-GPUs. Within a node entries are in the order of their rows, and `heavy` has the same
    entries, the heaviest first. The table is left as it was.
    """
    width = holders.widest
    order, twin = np.zeros(width + 1, dtype=np.int64), np.zeros(width + 1, dtype=np.int64)
    stack, found = np.zeros((width + 2, 6), dtype=np.int64), np.zeros(width + 1, dtype=np.int64)
    victims = NO_NODE
    bound, least = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    bound[0] = least[0] = 1 << LIMB  # above all
    for k in range(holders.nodes.shape[0]):
        node, first, end = holders.nodes[k], holders.first[k], holders.first[k + 1]
        for entry in range(first, end):
            if weights.may_leave[holders.who[entry]]:
                move_entry(table, holders, demands, entry, False)
        count, answer = 0, int(capacity(table, node, demands, d) > 0)
        for turn in range(2):  # the least weight; then of the sets that weigh the same, that of the first rows
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
