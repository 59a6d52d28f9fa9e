"""NodeRows: which node has which row of the node table, now and before.

The row of a node that has left is kept for its return, or for a new node with the same description. The row that a
node gets follows from the events alone, so a journal need not record it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

import numpy as np
from msgspec.structs import replace

from kant.cluster.columns import Table
from kant.model.node import Node

Place = tuple[str, str, str, str]
"""The superspine, spine, leaf and HBD of a row; the HBD is empty for a node that is its own HBD."""

Domain = tuple[object, ...]
"""The names that identify a domain of the fabric at its level; for a node that is its own HBD, its row."""

NO_NODE = Node("", 0)
"""The node of rows that no node has taken yet."""


def spare_rows(rows: int) -> int:
    """Return by how many rows a table of `rows` rows grows: a quarter but at least 64, and at most to double."""
    return min(rows, max(64, rows // 4))


def place_of(node: Node) -> Place:
    return node.superspine, node.spine, node.leaf, node.hbd


class NodeRows:
    """The rows of one node table.

    `nodes` has the node of each row, and `names` their names; a row whose node has left keeps its last description.
    `index` has the rows of the present nodes, by name, and `places` the place of each row in the fabric. A free row
    keeps its place, so a node that joins there does not change the fabric.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = list(nodes)
        self.names = [node.name for node in nodes]
        self.index = {node.name: row for row, node in enumerate(nodes)}
        self.places = [(node.superspine, node.spine, node.leaf, node.hbd) for node in nodes]
        self._domains: Domains | None = None  # numbered when a row first moves after the table has grown
        self._left: dict[str, int] = {}  # rows of nodes that have left, by name; the earliest departure first
        self._alike: dict[Node, dict[int, None]] = {}  # the free rows, by their node without its name
        self._spare: dict[int, None] = {}  # rows that no node has taken yet

    def rows_for(self, nodes: Sequence[Node], kept: Container[int]) -> list[int]:
        """Return a row for each of these nodes, -1 if the table must grow.

        The row is the node's old row; otherwise that of an equal node that has left; otherwise a spare one; otherwise
        any free one, if more than half of the table is free. Rows in `kept` are only for the nodes that have left them.
        """
        rows = [self._left.get(node.name, -1) for node in nodes]
        given = set(rows)
        many = 2 * (len(self._left) + len(self._spare)) > len(self.nodes)
        for i, node in enumerate(nodes):
            if rows[i] < 0:
                for free in (self._alike.get(_unnamed(node), ()), self._spare, self._left.values() if many else ()):
                    rows[i] = next((row for row in free if row not in given and row not in kept), -1)
                    if rows[i] >= 0:
                        break
                given.add(rows[i])
        return rows

    def grow(self, rows: int, place: Place) -> None:
        """Grow to `rows` rows. The new rows are spare, and at this place in the fabric."""
        new = range(len(self.nodes), rows)
        self.nodes += [NO_NODE] * len(new)
        self.names += [NO_NODE.name] * len(new)
        self.places += [place] * len(new)
        self._spare.update(dict.fromkeys(new))

    def number(self) -> None:
        """Number the domains now, rather than when the first row moves."""
        self._domains = Domains(self.places)

    def put(self, row: int, node: Node, anew: bool = False) -> list[int]:
        """Put a node into a free row, or replace its description.

        Returns the columns HBD to SUPERSPINE of the row; empty if it has not moved, or all are renumbered (`anew`).
        """
        before = self.nodes[row]
        self._spare.pop(row, None)
        if self._left.get(before.name) == row:
            del self._left[before.name]
            alike = self._alike[_unnamed(before)]
            del alike[row]
            if not alike:
                del self._alike[_unnamed(before)]
        last, place, columns = self.places[row], place_of(node), list[int]()
        if last != place and not anew:
            self._domains = self._domains or Domains(self.places)
            columns = self._domains.move(row, last, place)
        self.nodes[row], self.names[row], self.places[row] = node, node.name, place
        self.index[node.name] = row
        return columns

    def columns(self) -> Table:
        """Return the columns HBD to SUPERSPINE of all rows, with renumbered domains."""
        self._domains = None
        return place_columns(self.places)

    def retire(self, row: int) -> None:
        """Free the row of a node that leaves."""
        node = self.nodes[row]
        del self.index[node.name]
        self._left[node.name] = row
        self._alike.setdefault(_unnamed(node), {})[row] = None


def _unnamed(node: Node) -> Node:
    return replace(node, name="")


class Domains:
    """The columns HBD to SUPERSPINE, updated row by row: rows of one domain have one number, below the number of rows.

    A new domain gets the number freed last, otherwise the next one. `place_columns` assigns the initial numbers.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        counts: list[Counter[Domain]] = [Counter(), Counter(), Counter(), Counter()]
        for place, rows in Counter(places).items():
            for level, key in enumerate(_domains(-1, place)):
                counts[level][key] += rows
        # Each domain has its number and its count of rows; a row that is its own HBD is the only one there.
        self._of = [
            {key: [number, count.get(key, 1)] for key, number in numbers.items()}
            for numbers, count in zip(_numbered(places)[0], counts, strict=True)
        ]
        self._free: list[list[int]] = [[], [], [], []]

    def move(self, row: int, before: Place, after: Place) -> list[int]:
        """Return the columns of a row that has moved."""
        found = []
        for level, (left, entered) in enumerate(zip(_domains(row, before), _domains(row, after), strict=True)):
            known, free = self._of[level], self._free[level]
            known[left][1] -= 1
            if not known[left][1]:
                free.append(known.pop(left)[0])
            if entered not in known:
                known[entered] = [free.pop() if free else len(known), 0]
            known[entered][1] += 1
            found.append(known[entered][0])
        return found


def _domains(row: int, place: Place) -> tuple[Domain, ...]:
    """Return the domain of each level that a row at this place is in."""
    return place if place[3] else (row,), place[:3], place[:2], place[:1]


def place_columns(places: Sequence[Place]) -> Table:
    """Return the columns HBD to SUPERSPINE of all rows: domains of each level are numbered by first occurrence."""
    return np.array(_numbered(places)[1], dtype=np.int64).reshape(-1, 4)


def _numbered(places: Sequence[Place]) -> tuple[list[dict[Domain, int]], list[list[int]]]:
    """Return the number of each domain by level, and the columns of `place_columns` as lists."""
    domains: list[dict[Domain, int]] = [{}, {}, {}, {}]
    above: dict[Place, list[int]] = {}  # rows at one place differ only in the first column
    columns: list[list[int]] = []
    for row, place in enumerate(places):
        if place not in above:
            wider = (place[:3], place[:2], place[:1])
            above[place] = [names.setdefault(key, len(names)) for names, key in zip(domains[1:], wider, strict=True)]
        own = place if place[3] else (row,)
        columns.append([domains[0].setdefault(own, len(domains[0])), *above[place]])
    return domains, columns
