"""CounterTables: updates the extra columns of a state's node tables.

This module handles nodes and their domains, pods that belong to no job, and new columns. Allocations change the columns
in `columns.take_piece` and `give_piece`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.counters import Counter
from kant.compiled import compiled
from kant.model.errors import StateError
from kant.model.job import LEVELS
from kant.model.placement import COUNTED
from kant.model.rules import CLUSTER, HOST
from kant.model.status import NodeStatus

if TYPE_CHECKING:
    from kant.cluster.state_data import StateData

Others = tuple[dict[str, int], dict[str, int]]
"""The pods on a node that belong to no job: their number by class, and their use of each amount."""

NO_OTHERS: Others = ({}, {})


@compiled
def count_pieces(table: Table, pieces: Table, demands: Table, column: int) -> None:
    """Count the pods of these pieces in one column, but do not update the value over all domains."""
    at = c.extra_at(table) + column
    for i in range(pieces.shape[0]):
        d = pieces[i, 8] - 1
        for entry in range(demands[d, c.D_ENTRIES] if d >= 0 else 0):
            begin = c.DEMAND_WIDTH + c.ENTRY_WIDTH * entry
            row = c.domain_row(table, pieces[i, 0], demands[d, begin + c.N_TOPOLOGY])
            if row >= 0 and demands[d, begin + c.N_COLUMN] == column:
                table[row, at] -= pieces[i, 1] * demands[d, begin + c.N_EACH]


class CounterTables:
    """Keeps the extra columns of `state.table`, `state.empty` and (without pods that belong to no job) `state.left`."""

    def __init__(self, state: StateData) -> None:
        self.state = state
        self.counters = state.shapes.rules.counters
        self.counters.on_new = self._allotted
        self.said: dict[str, dict[int, str]] = {}
        """The domain of each row, by topology, as named by events."""
        self.members: dict[str, dict[Hashable, list[int]]] = {}
        """The rows of each domain, for topologies with columns. The first row has the counts."""
        self._domains: dict[str, dict[int, Hashable]] = {}
        self.others: dict[int, Others] = {}
        self.version = 0
        """Counts changes of the columns, of domains, and of pods that belong to no job."""

    # --- queries ----------------------------------------------------------------------------------------------

    def domain(self, topology: str, row: int) -> Hashable | None:
        """Return the domain of a row in a topology; None if it is in none."""
        state = self.state
        if topology == CLUSTER:  # also for a node that has left: a limit holds for jobs that wait for its return
            return ()
        if state.empty.item(row, c.STATUS) == NodeStatus.RETIRED:
            return None
        if topology == HOST:
            return row
        if topology not in LEVELS:
            return self.said.get(topology, {}).get(row)
        superspine, spine, leaf, hbd = state.node_rows.places[row]
        path: tuple[Hashable, ...] = (superspine, spine, leaf, hbd or row)
        return path[: len(LEVELS) - LEVELS.index(topology)]

    # --- new columns ---------------------------------------------------------------------------------------

    def _allotted(self, amounts: list[str], topologies: list[str], counters: list[Counter]) -> None:
        state, counters_of = self.state, self.counters
        self.version += 1
        if self._widen():
            state.layout += 1
        extra = c.extra_at(state.table)
        for name in amounts:
            column = extra + counters_of.amounts[name]
            own: Table = np.array([dict(node.amounts).get(name, 0) for node in state.nodes], dtype=np.int64)
            if state.left is not None:
                state.left[:, column] = own
            own[state.empty[:, c.STATUS] == NodeStatus.RETIRED] = 0
            for row, (_, taken) in self.others.items():
                own[row] -= taken.get(name, 0)
            state.table[:, column] = state.empty[:, column] = own
        for name in topologies:
            self.members[name], self._domains[name] = {}, {}
            for table in self.state.tables:
                table[:, extra + counters_of.topologies[name]] = -1
            for row in range(len(state.table)):
                self._enter(name, row)
        self._recount(counters)
        if amounts or topologies:
            state.look_at_all()

    def _widen(self) -> bool:
        """Make room for the allotted columns. Returns whether the tables were widened."""
        state = self.state
        has = state.table.shape[1] - c.extra_at(state.table)
        blocks = -(-self.counters.width // c.EXTRA)
        if blocks * c.EXTRA == has:
            return False
        more = np.zeros((len(state.table), blocks * c.EXTRA - has), dtype=np.int64)
        state.empty, state.table = np.hstack([state.empty, more]), np.hstack([state.table, more])
        if state.left is not None:
            state.left = np.hstack([state.left, more])
        return True

    def _amount(self, row: int, name: str) -> int:
        if self.state.empty.item(row, c.STATUS) == NodeStatus.RETIRED:
            return 0
        return dict(self.state.nodes[row].amounts).get(name, 0)

    # --- nodes and their domains ------------------------------------------------------------------------------------

    def rows_added(self, first: int) -> None:
        """Initialise new rows from `first` on, which no node has taken yet."""
        extra = c.extra_at(self.state.table)
        for table in self.state.tables:
            for column in self.counters.topologies.values():
                table[first:, extra + column] = -1
        for row in range(first, len(self.state.table)) if CLUSTER in self.members else ():
            self._enter(CLUSTER, row)

    def has_left(self, row: int) -> None:
        """Update a row whose node has left or was replaced; no pods are on it."""
        if row in self.others:
            self.count_others(row, NO_OTHERS)
        for domains in self.said.values():
            domains.pop(row, None)
        self.place([row])

    def place(self, rows: Iterable[int], topologies: Iterable[str] | None = None) -> None:
        """Write the present amounts and domains of nodes into their rows. Running pods stay counted."""
        rows = list(rows)
        self.version += 1
        if self.counters.width == 0:
            return
        for row in rows if topologies is None else ():
            self._place_amounts(row)
        for name in self.counters.topologies if topologies is None else topologies:
            if name in self.members:
                self._place_in(name, rows)

    def _place_amounts(self, row: int) -> None:
        state, extra = self.state, c.extra_at(self.state.table)
        for name, column in self.counters.amounts.items():
            amount, taken = self._amount(row, name), self.others.get(row, NO_OTHERS)[1].get(name, 0)
            more = amount - taken - state.empty.item(row, extra + column)
            state.empty[row, extra + column] += more
            state.table[row, extra + column] += more
            if state.left is not None and state.empty.item(row, c.STATUS) != NodeStatus.RETIRED:
                state.left[row, extra + column] = amount

    def _place_in(self, topology: str, rows: list[int]) -> None:
        known, moved, anew = self._domains[topology], False, False
        for row in rows:
            domain = self.domain(topology, row)
            if domain != known.get(row):
                anew = anew or row in self.others or self._counts_there(topology, row) or self._is_used(row)
                self._leave(topology, row)
                self._enter(topology, row)
                moved = True
        counters = [one for one in self.counters.counters if one[1] == topology and self.counters.topology_of(one) >= 0]
        if anew:
            self._recount(counters)
        elif moved:
            for table in self.state.tables:
                for one in counters:
                    if one[2] == c.SPREAD:
                        at, column = self.counters.topology_of(one), self.counters.counters[one]
                        table[0, c.extra_at(table) + column + 1] = c.fewest_in(table, at, column)

    def _counts_there(self, topology: str, row: int) -> bool:
        """Return whether the counts of the row's domain are stored in this row."""
        domain = self._domains[topology].get(row)
        return domain is not None and self.members[topology][domain][0] == row

    def _is_used(self, row: int) -> bool:
        """Return whether a job holds something on a node."""
        state, extra = self.state, c.extra_at(self.state.table)
        held = state.table[row, c.FREE : extra] - state.empty[row, c.FREE : extra]
        return bool(held.any()) or (state.shapes.ask_nothing and bool(state.jobs_on(row)))

    def _enter(self, topology: str, row: int) -> None:
        domain = self.domain(topology, row)
        if domain is not None:
            self._domains[topology][row] = domain
            rows = self.members[topology].setdefault(domain, [])
            rows.append(row)
            self._point(topology, [row], rows[0])

    def _leave(self, topology: str, row: int) -> None:
        domain = self._domains[topology].pop(row, None)
        if domain is not None:
            rows = self.members[topology][domain]
            first = rows[0]
            rows.remove(row)
            if not rows:
                del self.members[topology][domain]
            self._point(topology, [row], -1)
            if rows and first == row:
                self._point(topology, rows, rows[0])

    def _point(self, topology: str, rows: list[int], to: int) -> None:
        """Record that the row `to` holds the counts for these rows."""
        state, column = self.state, c.extra_at(self.state.table) + self.counters.topologies[topology]
        for table in self.state.tables:
            table[rows, column] = to
            table[0, column + 1] = len(self.members[topology])
        for row in (*rows, 0):
            c.note_change(state.log, row)

    # --- counts ------------------------------------------------------------------------------------------------

    def count_others(self, row: int, others: Others) -> None:
        """Set the counts of pods on a node that belong to no job."""
        state = self.state
        self.version += 1
        if state.left is None:
            state.left = state.empty.copy()
        classes, amounts = self.others.get(row, NO_OTHERS)
        if others == NO_OTHERS:
            self.others.pop(row, None)
        else:
            self.others[row] = others
        if self.counters.width == 0:
            return
        extra = c.extra_at(state.table)
        for table in (state.table, state.empty):
            for name in {*amounts, *others[1]} & self.counters.amounts.keys():
                table[row, extra + self.counters.amounts[name]] -= others[1].get(name, 0) - amounts.get(name, 0)
            for name in {*classes, *others[0]}:
                for counter in self.counters.of_class.get(name, ()):
                    self._add(table, row, counter, others[0].get(name, 0) - classes.get(name, 0))
        c.note_change(state.log, row)

    def _add(self, table: Table, row: int, counter: Counter, pods: int) -> None:
        topology, log = self.counters.topology_of(counter), self.state.log
        at = c.domain_row(table, row, topology)
        if at >= 0 and pods:
            c.add_count(table, at, topology, self.counters.counters[counter], counter[2], pods)
            c.note_change(log, at)
            c.note_change(log, 0)

    def _recount(self, counters: Iterable[Counter]) -> None:
        """Recompute the given counters on all nodes."""
        state, counters = self.state, list(counters)
        if not counters:
            return
        held = [one for one in state.running.values() if one[:, COUNTED].any()]
        pieces = np.concatenate(held) if held else None
        for number, table in enumerate(self.state.tables):
            extra = c.extra_at(table)
            for counter in counters:
                name, _, kind = counter
                column, topology = self.counters.counters[counter], self.counters.topology_of(counter)
                table[:, extra + column] = 0
                for row, (classes, _) in self.others.items() if number < 2 else ():
                    at = c.domain_row(table, row, topology) if name in classes else -1
                    if at >= 0:
                        table[at, extra + column] -= classes[name]
                if pieces is not None and number == 0:
                    count_pieces(table, pieces, state.shapes.demands, column)
                if kind == c.AFFINITY:
                    table[0, extra + column + 1] = -int(table[:, extra + column].sum())
                elif kind == c.SPREAD:
                    table[0, extra + column + 1] = c.fewest_in(table, topology, column)
        state.look_at_all()

    def check(self) -> None:
        """Raise StateError unless the columns match the nodes, domains and pods."""
        before = [table.copy() for table in self.state.tables]
        log = self.state.log.copy()
        for name in self.counters.topologies:
            rows = {row: domain for domain, own in self.members[name].items() for row in own}
            there = {row: self.domain(name, row) for row in range(len(self.state.table))}
            if rows != {row: domain for row, domain in there.items() if domain is not None}:
                raise StateError(f"violated invariant: topology {name!r} has the domains that its nodes name")
        self._recount(self.counters.counters)
        self.state.log[:] = log
        for table, known in zip(self.state.tables, before, strict=True):
            if not np.array_equal(table, known):
                raise StateError("violated invariant: every domain counts the pods in it")
