"""Guesses for the search for victims: which nodes are the cheapest to clear for a gang, one after the other.

kube-scheduler preempts for one pod in the same way: it chooses victims for each node, and then the node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.holders import LIMB, Candidates, Weights, divided
from kant.compiled import compiled, inlined
from kant.model.placement import WIDTH
from kant.placement.clearing import LEVELS, clear, move_entry
from kant.placement.fits import tightest
from kant.placement.pieces import put

# Columns of an option: some candidates leave a node so that more pods fit on it.
O_PODS = 0  # how many more pods fit; 0: no option
O_VERSION = 1  # version of the node for which the option holds
O_UPPER = 2  # the candidates' weight per pod, in three parts
O_LOWER = 3
O_REST = 4
OPTION_WIDTH = 5

MASK = (1 << LIMB) - 1


class Newcomer(NamedTuple):
    """A gang, and the nodes with all candidates in place. `groups`: pods and demand of each, the largest pods first."""

    table: Table
    demands: Table
    groups: Table


@compiled
def put_pods(table: Table, node: int, demands: Table, d: int, pods: int) -> None:
    """Place `pods` pods of demand `d`, which must fit, on the tightest devices of the node."""
    pieces = np.zeros((pods + 1, WIDTH), dtype=np.int64)
    used = 0
    for _ in range(pods):
        used = put(table, node, tightest(table, node, demands, d), demands, d, pieces, 0, used)


@compiled
def find_options(
    table: Table, demands: Table, d: int, left: int, places: Table, candidates: Candidates, heavy: Table,
    weights: Weights, cap: int, versions: Table, options: Table, leaves: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Find for each of these nodes the option of least weight per pod among those for 1, 2, 4, … up to `left` pods.

    `leaves` marks the entries of the node that leave for this option. For the last pod only the best node matters, so a
    node that is no better than an earlier one has no option.
    """
    levels, holders = 1, candidates.holders
    while levels < LEVELS and left >> (levels - 1) > 0:
        levels += 1
    pods = np.zeros((places.shape[0], levels), dtype=np.int64)
    leaving = np.zeros((places.shape[0], levels, leaves.shape[1]), dtype=np.bool_)
    clear(table, demands, d, left, places, holders, heavy, weights, cap, pods, leaving)
    for k in range(places.shape[0]):
        place = places[k]
        option, first = options[place], holders.first[place]
        option[O_PODS] = 0
        for level in range(levels):
            count = pods[k, level]
            if count == 0:
                break
            upper, lower = 0, 0
            for e in range(holders.first[place + 1] - first):
                if leaving[k, level, e]:
                    total = lower + weights.lower[holders.who[first + e]]
                    upper, lower = upper + weights.upper[holders.who[first + e]] + (total >> LIMB), total & MASK
            upper, lower, rest = divided(upper, lower, count)
            rest = (rest << 20) // count
            if option[O_PODS] == 0 or (upper, lower, rest) < (option[O_UPPER], option[O_LOWER], option[O_REST]):
                option[O_PODS], option[O_VERSION] = count, versions[place]
                option[O_UPPER], option[O_LOWER], option[O_REST] = upper, lower, rest
                for e in range(leaves.shape[1]):
                    leaves[place, e] = leaving[k, level, e]


@compiled
def guess(
    newcomer: Newcomer, candidates: Candidates, upper: Table, lower: Table, heavy: Table, among: int, start: Table,
    cap: int, kept: int | np.int64, options: Table, leaves: NDArray[np.bool_], chosen: Table,
) -> bool:  # fmt: skip
    """Write to `chosen` candidates without which the gang fits: the set `start`, and some of the first `among`.

    Returns False if it finds no set. `kept` is a candidate that may not leave, -1 for none. The node with the least
    weight per pod comes first. After each node the others are weighed again, since a job leaves all of its nodes at
    once. At most `cap` milli-GPUs leave. `options` and `leaves` are the options of the untouched nodes for the first
    group.
    """
    table, holders = newcomer.table.copy(), candidates.holders
    nodes, options, leaves = holders.nodes.shape[0], options.copy(), leaves.copy()
    versions, changed = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.bool_)
    weights = Weights(upper, lower, candidates.capped, np.arange(chosen.shape[0]) < among)
    victims, first_guess = np.zeros(chosen.shape[0], dtype=np.int64), True
    for i in range(chosen.shape[0]):
        chosen[i], victims[i] = 0, start[i]
        first_guess = first_guess and start[i] == 0
    cap = _evict(table, newcomer, candidates, weights, victims, chosen, cap, versions, changed)
    changed[:] = False
    if cap < 0:
        return False
    for group in range(newcomer.groups.shape[0]):
        left, d = newcomer.groups[group]
        if group > 0 or not first_guess:
            changed[:] = True
        elif kept >= 0:
            weights.may_leave[kept] = False
            for k in range(candidates.first_of[kept], candidates.first_of[kept + 1]):
                changed[candidates.place_of[candidates.entries_of[k]]] = True
        while left > 0:
            again = np.flatnonzero(changed)
            if again.shape[0] > 0:
                find_options(
                    table, newcomer.demands, d, left, again, candidates, heavy, weights, cap, versions, options, leaves
                )
                changed[:] = False
            place = -1
            for k in range(nodes):
                one, best = options[k], options[max(place, 0)]
                if one[O_PODS] > 0 and (
                    place < 0
                    or one[O_UPPER] < best[O_UPPER]
                    or (one[O_UPPER] == best[O_UPPER] and (one[O_LOWER], one[O_REST]) < (best[O_LOWER], best[O_REST]))
                ):
                    place = k
            if place < 0:
                return False
            victims[:] = 0
            held, first = 0, holders.first[place]
            for e in range(holders.first[place + 1] - first):
                if leaves[place, e]:
                    victims[holders.who[first + e]] = 1
                    held += candidates.capped[holders.who[first + e]]
            changed[place] = True
            if options[place, O_VERSION] == versions[place] and options[place, O_PODS] <= left and held <= cap:
                cap = _evict(table, newcomer, candidates, weights, victims, chosen, cap, versions, changed)
                put_pods(table, holders.nodes[place], newcomer.demands, d, options[place, O_PODS])
                versions[place] += 1
                left -= options[place, O_PODS]
    return True


@inlined
def _evict(
    table: Table, newcomer: Newcomer, candidates: Candidates, weights: Weights, victims: Table, chosen: Table, cap: int,
    versions: Table, changed: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Evict the jobs marked 1 in `victims` from all their nodes. Returns how many more milli-GPUs may leave."""
    touched = np.zeros(versions.shape[0], dtype=np.bool_)
    for i in range(victims.shape[0]):
        if victims[i] == 1:
            chosen[i], weights.may_leave[i] = 1, False
            cap -= candidates.capped[i]
            for k in range(candidates.first_of[i], candidates.first_of[i + 1]):
                entry = candidates.entries_of[k]
                move_entry(table, candidates.holders, newcomer.demands, entry, False)
                touched[candidates.place_of[entry]] = True
    for place in range(versions.shape[0]):
        if touched[place]:
            versions[place] += 1
            changed[place] = True
    return cap
