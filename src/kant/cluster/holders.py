"""What jobs hold on which nodes, and the cost of evicting them: the arguments of the kernels that search victims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table, copy_row
from kant.compiled import compiled, inlined
from kant.model.placement import NODE, WIDTH, Allocation

LIMB = 62
"""Bits of the lower part of a weight."""


Ints = TypeVar("Ints", int, Table)


@compiled
def group_by_node(
    pieces: Table, begin: Table, order: Table, nodes: Table
) -> tuple[Table, Table, Table, Table, Table, int]:
    """Group the pieces of holders by node, and on a node by holder, in this order. Pieces on other nodes are left out.

    Holder `i` has the pieces from `begin[i]` to `begin[i + 1]`. Returns the columns of `Holders` after `nodes`.
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
    """The holders on some nodes, at most `widest` on one.

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

    @classmethod
    def of(cls, held: Sequence[Allocation], rank: Table, nodes: Table | None = None) -> Holders:
        """Create it from what each holder holds. On a node those of the lowest `rank` come first.

        Only `nodes` (rows in order) count; None: those on which somebody holds something.
        """
        pieces = np.concatenate([np.zeros((0, WIDTH), dtype=np.int64), *held])
        if nodes is None:
            nodes = np.unique(pieces[:, NODE])
        begin = np.array([0, *map(len, held)], dtype=np.int64).cumsum()
        return cls(nodes, *group_by_node(pieces, begin, np.argsort(rank, kind="stable"), nodes))

    def places(self) -> Table:
        """Return for each entry the place of its node in `nodes`."""
        return np.repeat(np.arange(len(self.nodes)), np.diff(self.first))


class Weights(NamedTuple):
    """The cost of evicting each holder: its weight in two parts, its milli-GPUs, and whether it may leave at all."""

    upper: Table
    lower: Table
    milli: Table
    may_leave: NDArray[np.bool_]

    @classmethod
    def of(cls, weights: Sequence[int], milli: Sequence[int], may_leave: Sequence[bool]) -> Weights:
        """Create it from one weight for each holder; their sum is below 2**(2 * LIMB)."""
        upper = np.array([weight >> LIMB for weight in weights], dtype=np.int64)
        lower = np.array([weight & ((1 << LIMB) - 1) for weight in weights], dtype=np.int64)
        return cls(upper, lower, np.array(milli, dtype=np.int64), np.array(may_leave, dtype=np.bool_))


_NONE: Table = np.zeros(0, dtype=np.int64)


class Candidates(NamedTuple):
    """Jobs that may leave, in order of `rank` (dense), cost, milli-GPUs and row; what they hold, and what they weigh.

    Candidate `i` has the entries `entries_of[first_of[i]]` up to `entries_of[first_of[i + 1]]` of the holders, and
    entry `e` is on the node of place `place_of[e]`. `capped` are the milli-GPUs that count towards the cap. `by_row`
    has the candidates in the order of their rows.

    There are four weights: by cost first or by `capped` first, each of them whole or divided among the nodes of a
    candidate. `heavy` has, for each weight, the entries of each node, the heaviest first. The others have two entries,
    one for each whole weight: `light` is the order of candidates with the lightest first, `dense` that with the most
    weight per milli-GPU first, and `shared` says whether the divided weight differs from the whole one.
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

    @classmethod
    def of(
        cls, held: Sequence[Allocation], rank: Table, cost: Table, milli: Table, capped: Table, row: Table,
        nodes: Table, few: bool,
    ) -> Candidates:  # fmt: skip
        """Create it from columns of candidates in order, and what they hold. Only what is on these `nodes` counts.

        With `few` the weight by cost is the only one, and no entries are put in order.
        """
        count = len(rank)
        holders = Holders.of(held, np.arange(count), nodes)
        place_of, entries_of = holders.places(), np.argsort(holders.who, kind="stable")
        first_of = np.searchsorted(holders.who[entries_of], np.arange(count + 1))
        lower, low = (cost & 3) << 60, LIMB - 20
        by_cost = cost >> 2, lower + (milli << 20) + 1  # one number that sorts like cost, milli, 1
        by_milli = (capped << (100 - LIMB)) + (cost >> low), ((cost & ((1 << low) - 1)) << 20) + 1  # capped, cost, 1
        weights, light, dense, heavy = [], [], [], []
        spread, size = np.maximum(np.diff(first_of), 1), np.maximum(milli, 1)
        for upper, lower in (by_cost,) if few else (by_cost, by_milli):
            light.append(np.lexsort((lower, upper)))
            if few:
                weights.append((upper, lower))
                break
            per_upper, per_lower, _ = divided(upper, lower, size)
            order = light[-1][::-1]
            dense.append(order[np.lexsort((-per_lower[order], -per_upper[order]))])
            for own in ((upper, lower), divided(upper, lower, spread)[:2]):
                at = np.empty(count, dtype=np.int64)
                at[np.lexsort(own[::-1])] = np.arange(count)
                heavy.append(np.lexsort((-at[holders.who], place_of)))
                weights.append(own)
        return cls(
            holders, place_of, first_of, entries_of, rank, cost, milli, capped, np.argsort(row, kind="stable"),
            np.array([upper for upper, _ in weights]), np.array([lower for _, lower in weights]),
            np.array(heavy or [_NONE]), np.array(light), np.array(dense or [_NONE]), bool((spread > 1).any()),
        )  # fmt: skip


@inlined
def divided(upper: Ints, lower: Ints, by: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide numbers in two parts by others below 2**31: the quotients in two parts, and the remainders."""
    half, mask = LIMB // 2, (1 << (LIMB // 2)) - 1
    middle = ((upper % by) << half) + (lower >> half)
    last: Ints = ((middle % by) << half) + (lower & mask)
    first, second, rest = upper // by, ((middle // by) << half) + last // by, last % by
    return first, second, rest
