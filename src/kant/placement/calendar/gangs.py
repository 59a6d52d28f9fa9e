"""Places whole gangs at one time: group by group, in one domain of the fabric if the gang requires one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.compiled import compiled, inlined
from kant.model.placement import GROUP, WIDTH
from kant.model.units import FOREVER
from kant.placement.calendar.book import (
    ANYWHERE,
    FULL,
    G_COLUMN,
    G_FIRST,
    G_PARTS,
    G_PODS,
    ONE_NODE,
    Q_DEMAND,
    Q_NUMBER,
    Q_PODS,
    Book,
)
from kant.placement.calendar.commitments import NEVER
from kant.placement.calendar.earliest_start import find_earliest, place_at
from kant.placement.calendar.store import commit, release

TRIED = -1
"""The key of groups that are placed provisionally while a place for the next group is searched."""


@compiled
def place_gang(
    book: Book, store: Table, gang: int, duration: int, now: int, start: int, column: int, domain: int,
    stale: NDArray[np.bool_],
) -> tuple[int, Table, Table]:  # fmt: skip
    """Place the gang at `start`. Returns a time, the gang's pieces and the store. The time is `start` if the gang fits;
    else there are no pieces, and it is when to try next: NEVER if unknown, as with `stale` nodes (`place_at`), FULL as
    in `find_earliest`. A group that does not fit goes first in the next try, as in `group_order.py`.
    """
    nothing = book.arena[:0]
    first, count = book.gangs[gang, G_FIRST], book.gangs[gang, G_PARTS]
    pieces = np.zeros((book.gangs[gang, G_PODS], WIDTH), dtype=np.int64)
    order = np.arange(count)
    later = NEVER
    for _ in range(2 * count):
        written = 0
        failed = -1
        possible = start
        for k in range(count):
            part = book.parts[first + order[k]]
            d, pods = part[Q_DEMAND], part[Q_PODS]
            if stale.shape[0] > 0:
                possible, found = place_at(book, store, d, pods, duration, now, start, column, domain, stale)
            else:
                possible, found = find_earliest(
                    book, store, d, pods, duration, now, start, column, domain, NEVER, nothing, TRIED, 0, 0
                )
            if possible != start:
                failed = k
                break
            found[:, GROUP] = part[Q_NUMBER]
            pieces[written : written + found.shape[0]] = found
            written += found.shape[0]
            if count > 1:  # without an end, so that the next group is not placed after these pods have ended
                store = commit(store, book.used, book.ledgers, book.taken, found, TRIED, start, FOREVER)
        if count > 1:
            release(store, book.ledgers, book.freed, pieces[:written], TRIED, True)
        if possible == FULL:
            return FULL, nothing, store
        if failed < 0:
            return start, pieces[:written], store
        if failed == 0:  # the group does not fit alone either
            return possible, nothing, store
        later = min(later, possible)
        ahead = order[failed]
        order[1 : failed + 1] = order[:failed].copy()
        order[0] = ahead
    return later, nothing, store


@inlined
def place_somewhere(
    book: Book, store: Table, gang: int, duration: int, now: int, start: int, stale: NDArray[np.bool_]
) -> tuple[int, Table, Table]:
    """Call `place_gang` for the first domain where it succeeds, if the gang requires one."""
    column, part = book.gangs[gang, G_COLUMN], book.parts[book.gangs[gang, G_FIRST]]
    if column == ANYWHERE and book.gangs[gang, G_PARTS] == 1:  # the same as `place_gang`
        made, pieces = place_at(book, store, part[Q_DEMAND], part[Q_PODS], duration, now, start, column, 0, stale)
        pieces[:, GROUP] = part[Q_NUMBER]
        return made, pieces, store
    if column == ANYWHERE:
        return place_gang(book, store, gang, duration, now, start, column, 0, stale)
    domains = book.empty.shape[0] if column == ONE_NODE else book.table[:, column].max() + 1
    found = NEVER, book.arena[:0], store
    for domain in range(domains):
        found = place_gang(book, found[2], gang, duration, now, start, column, domain, stale)
        if found[0] == start or found[0] == FULL:
            break
    return found
