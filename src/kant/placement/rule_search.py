"""The search for a gang whose own pods limit each other: pod by pod, with all choices of nodes.

A pod may use a node if the rules allow it after the pods placed before, so a gang fits if its pods can be placed in
some order. Affinity to pods of another group is an exception: it is checked once all pods are placed. Greedy placement,
group by group, may fail although a placement exists: affinity draws all pods to the domain of the first pod, and
anti-affinity takes nodes from other groups. Nodes with equal rows and equal domains are interchangeable while they have
no pod of the gang, and so are pods of a group; a failed state is not tried again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kant.cluster import columns as c
from kant.cluster.columns import Table, admits, counted_capacity, extra_at, note_piece
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Trial, move
from kant.compiled import compiled
from kant.model.placement import GROUP
from kant.placement.fits import amounts_capacity, tightest
from kant.placement.pieces import put

LOOKS = 1 << 18
"""Maximum number of nodes that one search examines. Beyond that the gang counts as not fitting."""


@compiled
def takers(table: Table, demands: Table, d: int, nodes: Table, fits: Table, near: Table) -> None:
    """Write to `fits` how many pods of a demand fit on each of these nodes; to `near`, how many without affinity."""
    for i in range(nodes.shape[0]):
        near[i] = amounts_capacity(table, nodes[i], demands, d, nodes[i])
        if near[i] > 0:
            near[i] = min(near[i], counted_capacity(table, nodes[i], demands, d, c.BUT_AFFINITY))
        fits[i] = min(near[i], counted_capacity(table, nodes[i], demands, d, c.ALL)) if near[i] > 0 else 0


@compiled
def put_alone(table: Table, log: Table, demands: Table, d: int, node: int, pieces: Table, used: int) -> None:
    """Place a pod, which must fit, on the tightest devices of a node, as the piece in row `used`."""
    put(table, node, tightest(table, node, demands, d), demands, d, pieces, used, used)
    note_piece(table, log, pieces[used], demands)


@compiled
def admitting_bits(table: Table, demands: Table, asked: Table, bits: Table) -> None:
    """Write for each node, as bits, which demands may use it."""
    for node in range(table.shape[0]):
        for group in range(asked.shape[0]):
            if admits(demands, asked[group], table[node, 1], node):
                bits[node] |= 1 << group


def search_places(trial: Trial, shape: Shape, pieces: Table) -> int:
    """Place and take the whole gang, a row of `pieces` for each pod; -1, and nothing taken, if it finds no place."""
    return _Search(trial, shape, pieces).run()


class _Search:
    def __init__(self, trial: Trial, shape: Shape, pieces: Table) -> None:
        self.table, self.log, self.demands = trial.table, trial.log, trial.state.shapes.demands
        self.parts, self.numbers, self.pieces = shape.parts, shape.numbers, pieces
        self.left = [pods for pods, _ in shape.parts]
        self.placed: list[tuple[int, int, bool]] = []  # by pod: group, node, whether it waits for another group
        self.wanted = [self._wanted(group) for group in range(len(shape.parts))]
        self.coming = [self._wanted_of_others(group) for group in range(len(shape.parts))]
        self.looks = LOOKS
        kinds = self._kinds()
        order = np.argsort(kinds, kind="stable")
        begins = np.flatnonzero(np.diff(kinds[order], prepend=-1))
        self.members = np.split(order, begins[1:])  # interchangeable nodes
        self.kind_of = kinds

    def _kinds(self) -> Table:
        """Return a number for each node; nodes with equal numbers do not differ in anything relevant to the gang."""
        table = self.table.copy()
        table[:, [c.REVISION, *range(c.HBD, c.SUPERSPINE + 1)]] = 0
        extra, rows = extra_at(table), np.arange(len(table))
        for topology, column, more in self._counted_elsewhere():
            first = self.table[:, extra + topology]
            if ((first == rows) | (first < 0)).all():  # each node is a domain: its own counts distinguish it
                table[:, extra + topology] = first < 0
            else:
                table[:, extra + column : extra + column + 1 + more] = 0
        bits: Table = np.zeros(len(table), dtype=np.int64)
        admitting_bits(table, self.demands, np.array([demand for _, demand in self.parts], dtype=np.int64), bits)
        found: Table = np.unique(np.column_stack([table, bits]), axis=0, return_inverse=True)[1]
        return found.reshape(-1)

    def _counted_elsewhere(self) -> list[tuple[int, int, int]]:
        """Return the gang's counters kept in rows of domains: topology, column, and how many further columns."""
        found = []
        for _, demand in self.parts:
            for topology, column, _, kind, *_ in self._entries(demand):
                if topology >= 0:
                    found.append((topology, column, int(kind != c.AT_MOST)))
        return found

    def run(self) -> int:
        failed = set[tuple[tuple[int, int, int], ...]]()
        tries = [self._choices()]
        while tries:
            choice = next(tries[-1], None)
            if choice is None:
                tries.pop()
                failed.add(self._placed_counts())
                if self.placed:
                    self._undo()
                continue
            self._do(*choice)
            if not any(self.left):
                if all(not waits or self._has_affinity(group, node) for group, node, waits in self.placed):
                    return self._in_order()
                self._undo()
            elif self._placed_counts() in failed:
                self._undo()
            else:
                tries.append(self._choices())
        return -1

    def _wanted(self, group: int) -> list[tuple[int, int, int]]:
        """Return topology and column of each class that a group has affinity to, and 1 if its pods are in the class."""
        return [
            (topology, column, each)
            for topology, column, each, kind, limit, _ in self._entries(self.parts[group][1])
            if kind == c.AFFINITY and limit > 0
        ]

    def _entries(self, demand: int) -> list[list[int]]:
        """Return the rows of a demand for the classes that its pods count in or require of others (`columns.N_…`)."""
        end = c.DEMAND_WIDTH + c.ENTRY_WIDTH * self.demands.item(demand, c.D_ENTRIES)
        rows: list[list[int]] = self.demands[demand, c.DEMAND_WIDTH : end].reshape(-1, c.ENTRY_WIDTH).tolist()
        return rows

    def _wanted_of_others(self, group: int) -> list[list[int]]:
        """Return, by class that a group has affinity to, the groups that count in it and do not require it."""
        found = []
        for topology, column, _ in self.wanted[group]:
            of_it = []
            for other, (_, demand) in enumerate(self.parts):
                wants = any(own == column for _, own, _ in self.wanted[other])
                if other != group and not wants and self._counts(demand, topology, column):
                    of_it.append(other)
            found.append(of_it)
        return found

    def _counts(self, demand: int, topology: int, column: int) -> bool:
        """Return whether pods of a demand count in a column."""
        return any(own[:2] == [topology, column] and own[c.N_EACH] > 0 for own in self._entries(demand))

    def _there(self, node: int, topology: int, column: int) -> int:
        """Return the number of pods of a class in the domain of a node."""
        extra = extra_at(self.table)
        row = self.table.item(node, extra + topology)
        return -self.table.item(row, extra + column) if row >= 0 else 0

    def _may_wait(self, group: int, node: int) -> bool:
        """Return whether each affinity of a pod on this node is satisfied, or may be once later groups are placed."""
        return all(
            self._there(node, topology, column) > 0 or any(self.left[other] for other in others)
            for (topology, column, _), others in zip(self.wanted[group], self.coming[group], strict=True)
        )

    def _has_affinity(self, group: int, node: int) -> bool:
        """Return whether the affinity of a pod on a node is satisfied by other pods."""
        return all(self._there(node, topology, column) > each for topology, column, each in self.wanted[group])

    def _placed_counts(self) -> tuple[tuple[int, int, int], ...]:
        """Return the number of pods by group and node, which determines which pods can still be placed."""
        counts: dict[tuple[int, int], int] = {}
        for group, node, _ in self.placed:
            counts[group, node] = counts.get((group, node), 0) + 1
        return tuple(sorted((*where, pods) for where, pods in counts.items()))

    def _choices(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the group whose pod may be next, with a node for it; groups in the order of the job."""
        taken = {node for _, node, _ in self.placed}
        fresh = (self._first_free(own, taken) for own in self.members)
        nodes: Table = np.array([*sorted(taken), *(node for node in fresh if node >= 0)], dtype=np.int64)
        fits, near = np.zeros_like(nodes), np.zeros_like(nodes)
        found, waiting = [], []
        for group, (_, demand) in enumerate(self.parts):
            if self.left[group] and self.looks > 0:
                self.looks -= len(nodes)
                takers(self.table, self.demands, demand, nodes, fits, near)
                found += [(group, node, False) for node in nodes[fits > 0].tolist()]
                closed = nodes[(fits == 0) & (near > 0)].tolist() if any(self.coming[group]) else []
                waiting += [(group, node, True) for node in closed if self._may_wait(group, node)]
        return iter(found + waiting)

    @staticmethod
    def _first_free(own: Sequence[int] | Table, taken: set[int]) -> int:
        return next((int(node) for node in own if int(node) not in taken), -1)

    def _do(self, group: int, node: int, waits: bool) -> None:
        demand = self.parts[group][1]
        put_alone(self.table, self.log, self.demands, demand, node, self.pieces, len(self.placed))
        self.placed.append((group, node, waits))
        self.left[group] -= 1

    def _undo(self) -> None:
        group, _, _ = self.placed.pop()
        self.left[group] += 1
        at = len(self.placed)
        move(self.table, self.log, self.pieces[at : at + 1], self.demands, False)

    def _in_order(self) -> int:
        """Sort the pieces by group, each with its GROUP."""
        used = len(self.placed)
        groups = np.array([group for group, _, _ in self.placed], dtype=np.int64)
        self.pieces[:used, GROUP] = np.array(self.numbers, dtype=np.int64)[groups]
        self.pieces[:used] = self.pieces[:used][np.argsort(groups, kind="stable")]
        return used
