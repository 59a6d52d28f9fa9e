"""Small columns of the compiled instants (`advance.py`): the numbers of names, and the cached scores of nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster.columns import Table
from kant.cluster.quota_columns import Q_PART, Q_QUOTA
from kant.placement.capacity import NodeScores
from kant.placement.group_kernel import Scores
from kant.placement.policy import NodePolicy
from kant.queueing.evictable import RUNNING_WIDTH, Running
from kant.sim.blocked import Quotas


class Names:
    """The numbers that the state gives to the names of a workload, by the workload's codes; -1: the state has no number
    yet.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._codes = {name: code for code, name in reversed(list(enumerate(names)))}
        self._known = 0
        self.numbers = np.full(len(names), -1, dtype=np.int64)

    def in_order(self, codes: NDArray[np.integer]) -> list[int]:
        """Return one code for each name that these codes have, in the order in which the names first occur."""
        _, first = np.unique(codes, return_index=True)
        names = dict.fromkeys(self._names[code] for code in codes[np.sort(first)].tolist())
        return list(map(self._codes.__getitem__, names))

    def meet(self, state: dict[str, int]) -> None:
        """Copy the numbers of names that are new in the state."""
        for name in list(state)[self._known :] if len(state) > self._known else ():
            if name in self._codes:
                self.numbers[self._codes[name]] = state[name]
        self._known = len(state)

    def new(self, state: dict[str, int]) -> list[str]:
        """Add to the state the names that a compiled call has numbered, and return them in order."""
        codes = np.flatnonzero(self.numbers >= len(state))
        names = [self._names[code] for code in codes[np.argsort(self.numbers[codes])].tolist()]
        for name in names:
            state[name] = len(state)
        self._known = len(state)
        return names


def last_of(rows: Table) -> Table:
    """Return each row once, in the order of the last occurrences."""
    _, places = np.unique(rows[::-1], return_index=True)
    return rows[len(rows) - 1 - np.sort(places)[::-1]]


def kept(nodes: NodeScores) -> Scores:
    return Scores(nodes.params, nodes.order, nodes.index, nodes.marks)


def node_policies(placement: NodePolicy) -> list[NodePolicy]:
    """Return the policies that score nodes for single-pod jobs, for gangs and for the remaining pods of gangs."""
    asked = (0, 1, 1), (0, 1, 2), (0, 2, 2), (1, 2, 1)
    return list(dict.fromkeys(placement.policy_for(*one)[0] for one in asked))


def room_for_running(quotas: Quotas, jobs: int) -> Running:
    """Return columns with room for `jobs` running jobs under these quotas; the rows are not set."""
    keys, limits = quotas.amounts.shape[1], quotas.limits
    table, held = np.empty((jobs, RUNNING_WIDTH), dtype=np.int64), np.empty((jobs, keys), dtype=np.int64)
    parts, entitled = limits[:, Q_PART].copy(), limits[:, Q_QUOTA].copy()
    return Running(table, held, np.empty((jobs, keys), dtype=np.bool_), limits, quotas.used, parts, entitled)
