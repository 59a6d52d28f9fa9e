"""Clearing nodes: which jobs must leave a node so that more pods fit on it, for many nodes in one compiled call.

`clear` finds such a set of jobs for each node; `on_one_node` finds the best of all sets for a gang of one pod. Both use
`lightest_set`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Candidates, Holders, Weights
from kant.compiled import compiled, inlined
from kant.model.placement import MASK, PODS, WIDTH
from kant.placement.fits import capacity

FEW = 12
"""On a node with at most this many holders, the lightest set is searched; on others, a set is chosen greedily."""

EVERY = 2 << FEW
"""Maximum number of visits on one node if one pod is left: enough for every set of `FEW`, so the best node is found."""

NO_NODE = -1
"""The result if the pod fits on no node, whichever jobs leave."""

TOO_MANY = -2
"""The result if the sets of a node, also partial ones, need more visits than `EVERY`: the best set is unknown."""

VISITS = 500
"""Maximum number of search steps for a node and a number of pods, while more than one pod is still to be placed."""

LEVELS = 24
"""Maximum number of pod counts tried on one node: 1, 2, 4, … and the most that fit."""


# Columns of the search stack: a row for each holder in order, with the decisions on those before it.
STAGE = 0  # how many of the holder's two decisions have been tried
ROOM = 1  # milli-GPUs that may still leave
UPPER = 2  # total weight of the holders that leave
LOWER = 3
OUT = 4  # 1: the holder leaves
TAKEN = 5  # 1: the holder stays, and its pieces are taken on the node


@inlined
def move_entry(table: Table, holders: Holders, demands: Table, entry: int, taking: bool) -> None:
    for piece in range(holders.start[entry], holders.end[entry]):
        if taking:
            c.take_piece(table, holders.pieces[piece], demands)
        else:
            c.give_piece(table, holders.pieces[piece], demands)


@inlined
def find_twins(holders: Holders, weights: Weights, order: Table, count: int, twin: Table) -> None:
    """For each holder in order, find the last one before it with equal weight, size and piece; -1 if there is none.

    Only holders of a single piece without devices have twins: devices are not interchangeable.
    """
    for at in range(count):
        twin[at] = -1
        who, piece = holders.who[order[at]], holders.start[order[at]]
        if holders.end[order[at]] - piece > 1 or holders.pieces[piece, MASK] != 0:
            continue
        for before in range(at - 1, -1, -1):
            whose, other = holders.who[order[before]], holders.start[order[before]]
            same = weights.lower[whose] == weights.lower[who] and weights.upper[whose] == weights.upper[who]
            same = same and weights.milli[whose] == weights.milli[who]
            same = same and holders.end[order[before]] - other == 1
            for column in range(PODS, WIDTH):
                same = same and holders.pieces[other, column] == holders.pieces[piece, column]
            if same:
                twin[at] = before
                break


class OnNode(NamedTuple):
    """A node and the entries of its holders, for `lightest_set`. The condition is that `wanted` pods of `d` fit."""

    table: Table
    demands: Table
    holders: Holders
    node: int
    d: int
    wanted: int


@inlined
def _move_on_node(view: OnNode, entry: int, taking: bool) -> None:
    move_entry(view.table, view.holders, view.demands, entry, taking)


@inlined
def _fit_on_node(view: OnNode) -> bool:
    return bool(capacity(view.table, view.node, view.demands, view.d) >= view.wanted)


def branch_and_bound(move: Callable[..., None], holds: Callable[..., bool]) -> Callable[..., int]:
    """Build the function that searches the lightest set of items without which a condition holds.

    `move(view, item, taking)` puts an item back or removes it; `holds(view)` returns whether the condition holds now.
    Removing more items never makes it false.
    """

    def lightest_set(
        view: NamedTuple, weights: Weights, order: Table, who: Table, twin: Table, count: int, cap: int,
        leaves_first: bool, visits: int, bound: Table, stack: Table, best: Table,
    ) -> int:  # fmt: skip
        """Branch and bound over which items leave. On entry and return all items have left, and the condition holds.

        Item `order[i]` belongs to holder `who[i]`. Returns 1 if some set weighs at most `bound` (upper and lower part),
        else 0. With 1, `best` has the lightest set, and `bound` its weight; of equally light sets, the first one if
        items are tried in order, staying before leaving. With `leaves_first`, `best` has the first set within `bound`
        if leaving is tried before staying. After `visits` visits the search stops: it takes the best set so far or,
        with more than `FEW` items, returns `TOO_MANY`.
        """
        visited, at, found, mask = 0, 0, 0, (1 << LIMB) - 1
        stack[0, STAGE], stack[0, ROOM], stack[0, UPPER], stack[0, LOWER] = 0, cap, 0, 0
        for i in range(count):
            stack[i, TAKEN] = 0
        while at >= 0:
            room, upper, lower = stack[at, ROOM], stack[at, UPPER], stack[at, LOWER]
            if stack[at, STAGE] == 0:
                visited += 1
                if visited > visits and count > FEW:
                    found = TOO_MANY
                    break
                equal = upper == bound[0] and lower == bound[1]
                late = found == 1 and (equal or visited > visits)
                if room < 0 or upper > bound[0] or (upper == bound[0] and lower > bound[1]) or late:
                    at -= 1
                    continue
                if at == count:
                    found, bound[0], bound[1] = 1, upper, lower
                    for i in range(count):
                        best[i] = stack[i, OUT]
                    if leaves_first:
                        break
                    at -= 1
                    continue
            if stack[at, TAKEN] == 1:
                move(view, order[at], False)
                stack[at, TAKEN] = 0
            if stack[at, STAGE] == 2:
                at -= 1
                continue
            leaves = int((stack[at, STAGE] == 0) == leaves_first)
            stack[at, STAGE] += 1
            if stack[at, STAGE] == 1 and twin[at] >= 0 and stack[twin[at], OUT] != leaves:
                continue  # of equal items, the first get the decision that is tried first
            if leaves == 1:
                total = lower + weights.lower[who[at]]
                room, upper = room - weights.milli[who[at]], upper + weights.upper[who[at]] + (total >> LIMB)
                lower = total & mask
            else:
                move(view, order[at], True)
                stack[at, TAKEN] = 1
                if not holds(view):
                    continue
            stack[at, OUT] = leaves
            at += 1
            stack[at, STAGE], stack[at, ROOM], stack[at, UPPER], stack[at, LOWER] = 0, room, upper, lower
        for i in range(count):
            if stack[i, TAKEN] == 1:
                move(view, order[i], False)
                stack[i, TAKEN] = 0
        return found

    return lightest_set


lightest_on_node = inlined(branch_and_bound(_move_on_node, _fit_on_node))


@compiled
def clear(
    table: Table,
    demands: Table,
    d: int,
    left: int,
    places: Table,
    holders: Holders,
    heavy: Table,
    weights: Weights,
    cap: int,
    pods: Table,
    leaving: NDArray[np.bool_],
) -> None:
    """For each of `places` (indices into the nodes of `holders`), find which jobs must leave for pods of demand `d`.

    `pods[k, level]` is a number of pods (0: there are no more levels). `leaving[k, level, e - first]` marks the jobs
    that must leave for this number; none if the node has room for the pods. A set holds at most `cap` milli-GPUs. If
    `left` is 1, only a node cheaper than all before it gets an answer. `heavy` has the entries of each node, the
    heaviest first. The table is left unchanged.
    """
    width = leaving.shape[2]
    there, whose, twin = np.zeros((3, width + 1), dtype=np.int64)
    stack, out = np.zeros((width + 2, 6), dtype=np.int64), np.zeros(width + 1, dtype=np.int64)
    bound = np.zeros(2, dtype=np.int64)
    least_upper, least_lower = 1 << LIMB, 0  # more than any weight
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
        for place in range(first, holders.first[places[k] + 1]):
            if weights.may_leave[holders.who[heavy[place]]]:
                there[count], whose[count] = heavy[place], holders.who[heavy[place]]
                count += 1
        if count == 0:
            continue
        for i in range(count):
            move_entry(table, holders, demands, there[i], False)
        if count <= FEW:
            find_twins(holders, weights, there, count, twin)
        most, wanted, level = min(capacity(table, node, demands, d), left), 1, 0
        while wanted <= most and level < pods.shape[1]:
            found = False
            if count <= FEW:  # lighter than the best so far
                bound[0], bound[1] = least_upper, least_lower - 1
                if bound[1] < 0:
                    bound[0], bound[1] = least_upper - 1, mask
                visits = EVERY if left == 1 else VISITS
                view = OnNode(table, demands, holders, node, d, wanted)
                found = lightest_on_node(
                    view, weights, there, whose, twin, count, cap, False, visits, bound, stack, out
                ) == 1  # fmt: skip
                for i in range(count):
                    if found:
                        leaving[k, level, there[i] - first] = out[i] == 1
            else:  # the heaviest first: each stays if the pods still fit
                total_upper, total_lower, milli = 0, 0, 0
                for i in range(count):
                    move_entry(table, holders, demands, there[i], True)
                    out[i] = int(capacity(table, node, demands, d) < wanted)
                    if out[i] == 1:
                        move_entry(table, holders, demands, there[i], False)
                        total = total_lower + weights.lower[whose[i]]
                        total_upper, total_lower = total_upper + weights.upper[whose[i]] + (total >> LIMB), total & mask
                        milli += weights.milli[whose[i]]
                cheap = total_upper < least_upper or (total_upper == least_upper and total_lower < least_lower)
                found = cheap and milli <= cap
                bound[0], bound[1] = total_upper, total_lower
                for i in range(count):
                    if out[i] == 0:
                        move_entry(table, holders, demands, there[i], False)
                    if found:
                        leaving[k, level, there[i] - first] = out[i] == 1
            if found:
                pods[k, level] = wanted
                level += 1
                if left == 1:
                    least_upper, least_lower = bound[0], bound[1]
            wanted = most if wanted < most < 2 * wanted else 2 * wanted
        for i in range(count):  # put back all holders, and with them the counts of their pods
            move_entry(table, holders, demands, there[i], True)


@compiled
def cheapest_node(
    table: Table, demands: Table, d: int, candidates: Candidates, weights: Weights, cap: int, best: Table
) -> int:  # fmt: skip
    """Return how many candidates leave a node so that it takes a pod of demand `d`, at the least weight of all nodes.

    `best` has the set; of sets of equal weight, the one with the smallest rows. A set holds at most `cap` milli-GPUs.
    The table is left unchanged.
    """
    holders, heavy, place_of = candidates.holders, candidates.heavy[0], np.empty_like(candidates.by_row)
    for place in range(place_of.shape[0]):  # Numba takes seconds to compile an assignment by an array
        place_of[candidates.by_row[place]] = place
    width = holders.widest
    order, whose, twin, leaving = np.zeros((4, width + 1), dtype=np.int64)
    stack, found = np.zeros((width + 2, 6), dtype=np.int64), np.zeros(width + 1, dtype=np.int64)
    victims = NO_NODE
    bound, least = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    bound[0] = least[0] = 1 << LIMB  # more than any weight
    for k in range(holders.nodes.shape[0]):
        node, first, end = holders.nodes[k], holders.first[k], holders.first[k + 1]
        for entry in range(first, end):
            if weights.may_leave[holders.who[entry]]:
                move_entry(table, holders, demands, entry, False)
        count, answer = 0, int(capacity(table, node, demands, d) > 0)
        for turn in range(2):  # first find the least weight, then the set of this weight with the smallest rows
            if answer != 1:
                break
            count = 0
            for entry in heavy[first:end]:
                if weights.may_leave[holders.who[entry]]:
                    at = count
                    while turn == 1 and at > 0 and place_of[whose[at - 1]] > place_of[holders.who[entry]]:
                        order[at], whose[at] = order[at - 1], whose[at - 1]
                        at -= 1
                    order[at], whose[at] = entry, holders.who[entry]
                    count += 1
            find_twins(holders, weights, order, count, twin)
            view = OnNode(table, demands, holders, node, d, 1)
            answer = lightest_on_node(
                view, weights, order, whose, twin, count, cap, turn == 1, EVERY, bound, stack, found
            )
        for entry in range(first, end):  # put back all holders, and with them the counts of their pods
            if weights.may_leave[holders.who[entry]]:
                move_entry(table, holders, demands, entry, True)
        if answer == TOO_MANY:
            return TOO_MANY
        if answer == 0:
            continue
        better, place = bound[0] != least[0] or bound[1] != least[1], 0
        for i in range(count):
            if found[i] == 1 and not better:
                if place_of[whose[i]] > place_of[leaving[place]]:
                    break
                better, place = place_of[whose[i]] < place_of[leaving[place]], place + 1
        if better:
            victims, least[0], least[1] = 0, bound[0], bound[1]
            for i in range(count):
                if found[i] == 1:
                    leaving[victims] = whose[i]
                    victims += 1
    best[:] = 0
    for i in range(max(victims, 0)):
        best[leaving[i]] = 1
    return victims


@compiled
def on_one_node(table: Table, demands: Table, d: int, candidates: Candidates, cap: int, best: Table) -> int:
    """Write to `best` the best set of candidates without which a pod of demand `d` fits on a node, or an empty set.

    Only candidates of the lowest sufficient ranks leave. Returns how many leave, NO_NODE or TOO_MANY.
    """
    count, victims, asked = best.shape[0], NO_NODE, -1
    top = candidates.rank[count - 1] if count > 0 else -1
    low, high, may_leave = 0, top + 1, candidates.capped <= cap
    while low < high or asked != high:
        rank = top if high > top else (low + high) // 2  # first: whether all of them suffice
        leaves = may_leave & (candidates.rank <= rank)
        weights = Weights(candidates.upper[0], candidates.lower[0], candidates.capped, leaves)
        victims, asked = cheapest_node(table, demands, d, candidates, weights, cap, best), rank
        if victims == 0 or (victims == NO_NODE and rank == top):
            break
        if victims == NO_NODE:
            low = rank + 1
        else:
            high = rank
    return victims
