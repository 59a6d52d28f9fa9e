"""What jobs hold on which nodes, and the cost of evicting them: the arguments of the compiled search for victims."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table, copy_row
from kant.compiled import compiled, inlined
from kant.model.placement import NODE

LIMB = 62
"""Bits of the lower part of a weight."""


Ints = TypeVar("Ints", int, Table)


@compiled
def group_by_node(
    pieces: Table, begin: Table, order: Table, nodes: Table
) -> tuple[Table, Table, Table, Table, Table, int]:
    """Group the pieces of holders by node, and on each node by holder, in order. Pieces on other nodes are left out.

    Holder `i` has the pieces from `begin[i]` to `begin[i + 1]`. Returns the columns of `Holders` except `nodes`.
    """
    places, last_node = nodes.shape[0], -1
    for node in nodes:
        last_node = max(last_node, node)
    for i in range(pieces.shape[0]):
        last_node = max(last_node, pieces[i, NODE])
    place_of, latest = np.full(last_node + 1, -1, dtype=np.int64), np.full(places, -1, dtype=np.int64)
    for place in range(places):
        place_of[nodes[place]] = place
    first, widest = np.zeros(places + 1, dtype=np.int64), 0
    for i in order:
        for piece in range(begin[i], begin[i + 1]):
            place = place_of[pieces[piece, NODE]]
            if place >= 0 and latest[place] != i:
                latest[place] = i
                first[place + 1] += 1
    for place in range(places):
        widest = max(widest, first[place + 1])
        first[place + 1] += first[place]
    entries, used, entry_of = first[places], first.copy(), np.full(pieces.shape[0], -1, dtype=np.int64)
    who, size = np.zeros(entries, dtype=np.int64), np.zeros(entries, dtype=np.int64)
    latest[:] = -1
    for i in order:
        for piece in range(begin[i], begin[i + 1]):
            place = place_of[pieces[piece, NODE]]
            if place >= 0:
                if latest[place] != i:
                    latest[place] = i
                    who[used[place]] = i
                    used[place] += 1
                entry_of[piece] = used[place] - 1
                size[used[place] - 1] += 1
    start, end, total = np.zeros(entries, dtype=np.int64), np.zeros(entries, dtype=np.int64), 0
    for entry in range(entries):
        start[entry] = end[entry] = total
        total += size[entry]
    grouped = np.zeros((total, pieces.shape[1]), dtype=np.int64)
    for piece in range(pieces.shape[0]):
        entry = entry_of[piece]
        if entry >= 0:
            copy_row(pieces, piece, grouped, end[entry])
            end[entry] += 1
    return first, who, start, end, grouped, widest


class Holders(NamedTuple):
    """The holders on some nodes, at most `widest` on each node.

    Node `k` has the entries `first[k]` up to `first[k + 1]`. Entry `e` is holder `who[e]`; its pieces on that node are
    rows `start[e]` up to `end[e]` of `pieces`.
    """

    nodes: Table
    first: Table
    who: Table
    start: Table
    end: Table
    pieces: Table
    widest: int


class Weights(NamedTuple):
    """The cost of evicting each holder: its weight in two parts, its milli-GPUs, and whether it may leave at all."""

    upper: Table
    lower: Table
    milli: Table
    may_leave: NDArray[np.bool_]


class PoolColumns(NamedTuple):
    """Candidates for eviction, unsorted. Candidate `i` holds the pieces from `begin[i]` to `begin[i + 1]`.

    `ranks` has a row for each candidate; smaller rows leave first. `passed`: the candidate started while the preempting
    job of higher priority waited, so it does not count towards the most milli-GPUs that victims may hold.
    """

    rows: Table
    pieces: Table
    begin: Table
    milli: Table
    cost: Table
    ranks: Table
    passed: NDArray[np.bool_]


class Candidates(NamedTuple):
    """Candidates for eviction in order of `rank`, cost, milli-GPUs and row, with what they hold and their weights.

    Candidate `i` has the entries `entries_of[first_of[i]]` up to `entries_of[first_of[i + 1]]` of `holders`, and entry
    `e` is on the node `holders.nodes[place_of[e]]`. Ranks are 0, 1, 2, … without gaps. `capped` has the milli-GPUs that
    count towards the most that victims may hold. `by_row` has the candidates in the order of their rows.

    There are four weights: by cost first or by `capped` first, each either whole or divided among the nodes of a
    candidate. `heavy` has, for each weight, the entries of each node, the heaviest first. The others have two entries,
    one for each whole weight: `light` is the order of candidates from the lightest, `dense` the order from the most
    weight per milli-GPU, and `shared` says whether the divided weight differs from the whole one.
    """

    holders: Holders
    place_of: Table
    first_of: Table
    entries_of: Table
    rank: Table
    cost: Table
    milli: Table
    capped: Table
    by_row: Table
    upper: Table
    lower: Table
    heavy: Table
    light: Table
    dense: Table
    shared: bool


@compiled
def in_columns(
    pieces: Table, begin: Table, rank: Table, cost: Table, milli: Table, capped: Table, row: Table, nodes: Table,
    few: bool,
) -> Candidates:  # fmt: skip
    """Return candidates from columns that are in order. Candidate `i` holds the pieces `begin[i]` to `begin[i + 1]`.

    Only pieces on these `nodes` count. With `few`, cost is the only weight, and `dense` and `heavy` stay empty.
    """
    count, kinds, weights = rank.shape[0], 1 if few else 2, 1 if few else 4
    first, who, start, end, grouped, widest = group_by_node(pieces, begin, np.arange(count), nodes)
    entries, first_of = who.shape[0], np.zeros(count + 1, dtype=np.int64)
    place_of, entries_of = np.empty(entries, dtype=np.int64), np.empty(entries, dtype=np.int64)
    for place in range(nodes.shape[0]):
        place_of[first[place] : first[place + 1]] = place
    for entry in range(entries):
        first_of[who[entry] + 1] += 1
    for i in range(count):
        first_of[i + 1] += first_of[i]
    used = first_of.copy()
    for entry in range(entries):
        entries_of[used[who[entry]]] = entry
        used[who[entry]] += 1
    spread = np.maximum(first_of[1:] - first_of[:-1], 1)
    upper, lower = np.empty((weights, count), dtype=np.int64), np.empty((weights, count), dtype=np.int64)
    light = np.empty((kinds, count), dtype=np.int64)
    dense = np.empty((kinds, 0 if few else count), dtype=np.int64)
    heavy = np.empty((weights, 0 if few else entries), dtype=np.int64)
    low, at = LIMB - 20, np.empty(count, dtype=np.int64)
    keys, of_entry = np.empty((2, count), dtype=np.int64), np.empty((2, entries), dtype=np.int64)
    for kind in range(kinds):
        own = 2 * kind
        for i in range(count):
            if kind == 0:  # one number that sorts like cost, milli, 1
                upper[own, i], lower[own, i] = cost[i] >> 2, ((cost[i] & 3) << 60) + (milli[i] << 20) + 1
            else:  # capped, cost, 1
                upper[own, i] = (capped[i] << (100 - LIMB)) + (cost[i] >> low)
                lower[own, i] = ((cost[i] & ((1 << low) - 1)) << 20) + 1
            keys[0, i], keys[1, i] = lower[own, i], upper[own, i]
        order = sort_by(keys)
        for k in range(count):
            light[kind, k] = order[k]
        if few:
            break
        for k in range(count):
            i = order[count - 1 - k]
            per_upper, per_lower, _ = divided(upper[own, i], lower[own, i], max(milli[i], 1))
            keys[0, k], keys[1, k] = -per_lower, -per_upper
        by_size = sort_by(keys)
        for k in range(count):
            dense[kind, k] = order[count - 1 - by_size[k]]
        for i in range(count):
            part = divided(upper[own, i], lower[own, i], spread[i])
            upper[own + 1, i], lower[own + 1, i] = part[0], part[1]
        for weight in range(own, own + 2):
            for i in range(count):
                keys[0, i], keys[1, i] = lower[weight, i], upper[weight, i]
            by_weight = sort_by(keys)
            for k in range(count):
                at[by_weight[k]] = k
            for entry in range(entries):
                of_entry[0, entry], of_entry[1, entry] = -at[who[entry]], place_of[entry]
            heaviest = sort_by(of_entry)
            for k in range(entries):
                heavy[weight, k] = heaviest[k]
    holders = Holders(nodes, first, who, start, end, grouped, widest)
    return Candidates(
        holders, place_of, first_of, entries_of, rank, cost, milli, capped, np.argsort(row, kind="mergesort"), upper,
        lower, heavy, light, dense, bool(spread.max() > 1 if count > 0 else False),
    )  # fmt: skip


@compiled
def sort_by(keys: Table) -> Table:
    """Return the indices that sort the columns of `keys` by the last row, then by the row before (as `np.lexsort`)."""
    order = np.arange(keys.shape[1])
    for k in range(keys.shape[0]):
        order = order[np.argsort(keys[k][order], kind="mergesort")]
    return order


@inlined
def divided(upper: Ints, lower: Ints, by: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide `upper` << LIMB plus `lower` by numbers below 2**31. Returns quotients in two parts, and remainders."""
    half, mask = LIMB // 2, (1 << (LIMB // 2)) - 1
    middle = ((upper % by) << half) + (lower >> half)
    last: Ints = ((middle % by) << half) + (lower & mask)
    first, second, rest = upper // by, ((middle // by) << half) + last // by, last % by
    return first, second, rest
