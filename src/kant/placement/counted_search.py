"""The search for victims as one compiled call, for gangs that fit if the count of free places in a domain suffices.

Python calls `search_counted` for one waiting job; the compiled code of a simulation also does (`sim/evict.py`).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import FREE, J_PIECE, J_PIECES, Table, copy_row, give_piece
from kant.cluster.holders import LIMB, Candidates, PoolColumns, in_columns, sort_by
from kant.cluster.quota_condition import QuotaCondition, admits
from kant.compiled import compiled, inlined
from kant.model.placement import NODE
from kant.placement.clearing import TOO_MANY, on_one_node
from kant.placement.fits import capacity
from kant.placement.guesses import Newcomer
from kant.placement.victims import COUNTING, KNOWN, Counted, count_without

cheapest_of_few, cheapest_of_many = COUNTING.cheapest_of_few, COUNTING.cheapest_of_many


@compiled
def counting(
    newcomer: Newcomer, candidates: Candidates, domain: Table, quota: QuotaCondition, random: Table
) -> Counted:
    """Return the view of the nodes while no candidate has left, for a gang of one group. `domain` is by node."""
    count, nodes, last = candidates.rank.shape[0], candidates.holders.nodes, 0
    of_node, free = domain[nodes], np.zeros(nodes.shape[0], dtype=np.int64)
    for place in range(nodes.shape[0]):
        last = max(last, of_node[place])
    totals, d = np.zeros(last + 1, dtype=np.int64), newcomer.groups[0, 1]
    for place in range(nodes.shape[0]):
        free[place] = capacity(newcomer.table, nodes[place], newcomer.demands, d)
        totals[of_node[place]] += free[place]
    known = min(KNOWN, 16 << min(count, 20))
    return Counted(
        newcomer.table.copy(), newcomer.demands, d, newcomer.groups[0, 0], candidates, of_node, free, totals,
        np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), random[:count],
        np.zeros(known, dtype=np.int64), np.zeros(known, dtype=np.int64), np.zeros(2, dtype=np.int64), quota,
    )  # fmt: skip


@compiled
def fits_without(
    table: Table, rows: Table, jobs: Table, held: Table, demands: Table, groups: Table, own: NDArray[np.bool_],
    domain: Table,
) -> bool:  # fmt: skip
    """Return whether a gang of one group fits after these running jobs have left. Their pieces are in `held`.

    `groups` has its pods and their demand, `own` the nodes that it may use, and `domain` the domain of each node.
    """
    table, last = table.copy(), 0
    for row in rows:
        for piece in range(jobs[row, J_PIECE], jobs[row, J_PIECE] + jobs[row, J_PIECES]):
            give_piece(table, held[piece], demands)
    for node in range(own.shape[0]):
        last = max(last, domain[node])
    totals = np.zeros(last + 1, dtype=np.int64)
    for node in range(own.shape[0]):
        if own[node]:
            totals[domain[node]] += capacity(table, node, demands, groups[0, 1])
    return bool(totals.max() >= groups[0, 0])


@cache
def _random_numbers(bits: int) -> Table:
    return np.random.Generator(np.random.PCG64(0)).integers(0, 1 << LIMB, 1 << bits)


def random_numbers(count: int) -> Table:
    """Return at least `count` random numbers, the same in every run."""
    return _random_numbers(max(10, count.bit_length()))


@inlined
def _at(column: Table, places: Table) -> Table:
    """Return `column[places]`, an expression that takes Numba long to compile."""
    found = np.empty(places.shape[0], dtype=np.int64)
    for k in range(places.shape[0]):
        found[k] = column[places[k]]
    return found


@compiled
def search_counted(
    table: Table, demands: Table, groups: Table, asked: int, own: NDArray[np.bool_], domain: Table, pool: PoolColumns,
    condition: QuotaCondition, cap: int, exact: int, trials: int, random: Table,
) -> tuple[Table, bool, bool]:  # fmt: skip
    """Return the candidates that must leave, in order, whether there are any, and whether the search was exact.

    `groups` has the pods and the demand of the gang's one group, which asks for `asked` milli-GPUs on its `own` nodes;
    `domain` has the domain of each node.
    """
    rows, pieces, begin, milli, cost, ranks, passed = pool
    count, free, exempt, nobody = rows.shape[0], 0, 0, np.zeros(rows.shape[0], dtype=np.int64)
    limited = not admits(condition, nobody)  # more victims never make it false
    if limited and not admits(condition, np.ones(count, dtype=np.int64)):
        return nobody[:0], False, True
    for node in range(own.shape[0]):
        free += table[node, FREE] if own[node] else 0
    for i in range(count):
        exempt += milli[i] if passed[i] else 0
    if asked - free > cap + exempt:
        return nobody[:0], False, True
    width = ranks.shape[1]
    keys, capped = np.empty((3 + width, count), dtype=np.int64), np.empty(count, dtype=np.int64)
    for i in range(count):
        keys[0, i], keys[1, i], keys[2, i] = rows[i], milli[i], cost[i]
        for k in range(width):
            keys[3 + k, i] = ranks[i, width - 1 - k]
        capped[i] = 0 if passed[i] else milli[i]
    order, kept = sort_by(keys), 0
    for i in order:
        near = limited
        for piece in range(begin[i], begin[i + 1]):
            near = near or own[pieces[piece, NODE]]  # a candidate without pieces on these nodes frees nothing
        if near:
            order[kept] = i
            kept += 1
    few = kept <= exact
    if few:  # a candidate over the cap can be in no set
        within = 0
        for k in range(kept):
            if capped[order[k]] <= cap:
                order[within] = order[k]
                within += 1
        kept = within
    order = order[:kept]
    rank, held, used = np.zeros(kept, dtype=np.int64), np.zeros(kept + 1, dtype=np.int64), 0
    for k in range(kept):
        held[k + 1] = held[k] + begin[order[k] + 1] - begin[order[k]]
    theirs = np.empty((held[kept], pieces.shape[1]), dtype=np.int64)
    for k in range(kept):
        i = order[k]
        for piece in range(begin[i], begin[i + 1]):
            copy_row(pieces, piece, theirs, used)
            used += 1
        if k > 0:
            rank[k] = rank[k - 1]
            for column in range(width):
                if ranks[i, column] != ranks[order[k - 1], column]:
                    rank[k] = rank[k - 1] + 1
    columns = in_columns(
        theirs, held, rank, _at(cost, order), _at(milli, order), _at(capped, order), _at(rows, order),
        np.flatnonzero(own), few,
    )  # fmt: skip
    home, amounts = condition.home, condition.amounts
    if limited:
        home, amounts = _at(home, order), np.empty((kept, amounts.shape[1]), dtype=np.int64)
        for k in range(kept):
            copy_row(condition.amounts, order[k], amounts, k)
    quota = QuotaCondition(
        condition.limits, condition.used, condition.first if limited else -1, condition.asked, home, amounts,
        condition.part, condition.entitled, condition.level, condition.limited,
    )  # fmt: skip
    best = np.zeros(kept, dtype=np.int64)
    newcomer = Newcomer(table.copy(), demands, groups)
    view = counting(newcomer, columns, domain, quota, random)
    if groups[0, 0] == 1 and not few and not limited:
        alone = on_one_node(newcomer.table, demands, groups[0, 1], columns, cap, best)
        if alone != TOO_MANY and count_without(view, best):
            return order[best == 1], True, True
        if alone != TOO_MANY and alone <= 0:
            return nobody[:0], False, True
        best[:] = 0
    if few:
        found = cheapest_of_few(view, columns, cap, best)
    else:
        found = cheapest_of_many(view, newcomer, columns, cap, trials, True, best)
    return order[best == 1], found, few
