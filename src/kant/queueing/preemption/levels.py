"""Which jobs a waiting job evicts, level by level: one loop, built from functions of its caller.

Where a count of the pods that fit tells whether the job fits, the whole loop is one compiled call (`sim/evict.py`). For
all other jobs the same loop runs as plain Python and makes trial placements (`policy.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kant.cluster.columns import Table
from kant.compiled import inlined
from kant.model.units import FOREVER
from kant.queueing.evictable import PASSED, R_MILLI, R_UNTIL, STOPS

BestLevel = Callable[..., tuple[Table, Table, int, bool]]


@inlined
def goes_before(one: Table, other: Table) -> bool:
    """Return whether a row of numbers is smaller than another one, compared from the left."""
    for k in range(min(one.shape[0], other.shape[0])):
        if one[k] != other[k]:
            return bool(one[k] < other[k])
    return False


def make_best_level(
    mark: Callable[[Any, int, Table], None], fits: Callable[[Any, Table], bool],
    search: Callable[[Any, Table, Table, int, bool], tuple[Table, Table, bool, bool]], kernel: Callable[[Any], Any],
) -> BestLevel:  # fmt: skip
    """Build the function that chooses victims, from callbacks that take `view`. `view.table` has the jobs that may
    leave, in the columns of `evictable.Running`.

    `mark(view, level, marks)` writes which jobs may leave at a level, as `evictable.mark` does. `fits(view, places)`
    returns whether the job fits once the jobs at these indices of the table have left. `search(view, places, marks,
    level, later)` returns the jobs that must leave, in order; their weight, compared from the left (the smallest goes
    first); whether there are such jobs; and whether the search was exact. With `later` it only says whether victims
    could be found once all jobs have run for their minimum time.
    """

    def best_level(
        view: Any, now: int, levels: Table, whole: int, cap: int, exact: int, limited: bool, steady: bool
    ) -> tuple[Table, Table, int, bool]:
        """Return the victims of the best level, as `search` returns them, and the marks of that level; then, if there
        are none: when (µs) time alone may change that (-1: never), and whether it is proven that nothing else does.

        The first `whole` rows of the table are jobs that would stop; the others are gangs that would shrink, and the
        cap does not apply to them. `limited`: quotas count. `steady`: more room never makes the job fit less.
        """
        count, retry, definitive, found_some = view.table.shape[0], -1, True, False
        best, best_marks, best_weight = (
            np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        )  # fmt: skip
        for level in levels:
            marks, places = np.zeros(count, dtype=np.int64), np.empty((3, count), dtype=np.int64)
            mark(view, level, marks)
            may, ready, light, total, age, shrinks = 0, 0, 0, 0, FOREVER, False
            for i in range(count):
                if marks[i] & STOPS == 0:
                    continue
                exempt, until = marks[i] & PASSED != 0, view.table[i, R_UNTIL]
                size = 0 if exempt else view.table[i, R_MILLI]
                shrinks = shrinks or i >= whole
                places[0, may] = i
                may, total = may + 1, total + size
                if size <= cap:
                    places[1, light] = i
                    light += 1
                if exempt or until <= now:
                    places[2, ready] = i
                    ready += 1
                else:
                    age = min(age, until)
            everyone, able = places[0, :may].copy(), places[2, :ready].copy()
            if age < FOREVER:
                if steady and not limited and not fits(view, everyone):
                    continue
                forbidden, proven = False, True
                if total > cap and not shrinks:
                    small = places[1, :light].copy()
                    if steady and light < may and not fits(view, small):
                        forbidden = True
                    elif light <= exact or (steady and not limited):
                        _, _, found, sure = search(view, everyone, marks, level, True)
                        forbidden, proven = not found, sure or found
                if forbidden and proven:
                    continue
                definitive = definitive and proven
                if not forbidden:
                    retry = age if retry < 0 else min(retry, age)
            if ready == 0:
                continue
            chosen, weight, found, sure = search(view, able, marks, level, False)
            if not found:
                # Costs grow with time, so a later search may find a set, unless this one was exact or all are too few.
                if not sure and not (steady and not limited and not fits(view, able)):
                    definitive = False
            elif not found_some or goes_before(weight, best_weight):
                best, best_marks, best_weight, found_some = chosen, marks, weight, True
        return best, best_marks, int(retry), bool(definitive)

    return kernel(best_level)  # type: ignore[no-any-return]
