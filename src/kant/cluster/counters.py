"""Counters: the meaning of the extra columns of a node row, and the entries of a demand for them.

There are three kinds of columns. The column of an *amount* has what is left of the amount on each node. The column of a
*topology* has, for each node, the row that holds the counts of its domain: the row of one of the domain's nodes (-1: no
domain). Row 0 of the next column has the number of domains. The column of a *counter* has minus the number of pods of
one class, in the row of each domain of one topology. Counters of affinity and of spreads have one more column, whose
row 0 has the value over all domains (`columns.add_count`).

A column is allotted when a demand first needs it, and stays. A demand has an entry for each counter of its classes,
also those allotted for other demands, and for each of its own rules and amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kant.cluster.columns import AFFINITY, AT_MOST, NO_LIMIT, SPREAD
from kant.model.rules import CLUSTER, HOST, PodRules

Counter = tuple[str, str, int]
"""A class, a topology, and AT_MOST, AFFINITY or SPREAD."""

Entry = tuple[int, int, int, int, int, int]
"""Columns N_* of `kant.cluster.columns`."""


class Counters:
    """The extra columns of one cluster. `on_new` is called with new columns, once the demands have entries for them."""

    def __init__(self) -> None:
        self.width = 0
        """Columns allotted so far."""
        self.amounts: dict[str, int] = {}
        self.topologies: dict[str, int] = {}
        self.counters: dict[Counter, int] = {}
        self.of_class: dict[str, list[Counter]] = {}
        self.on_new: Callable[[list[str], list[str], list[Counter]], None] | None = None

    def column(self, pod_class: str, topology: str = HOST) -> int:
        """Return the column that counts a class in the domains of a topology; -1 if none is allotted."""
        known = self._known(pod_class, topology)
        return self.counters[known] if known is not None else -1

    def place(self, pod_class: str, topology: str) -> tuple[int, int]:
        """Return the column that counts a class in a topology, and the column of the topology (-1 for hosts)."""
        counter = self._known(pod_class, topology)
        assert counter is not None
        return self.counters[counter], self.topology_of(counter)

    def _known(self, pod_class: str, topology: str) -> Counter | None:
        each = ((pod_class, topology, kind) for kind in (AT_MOST, AFFINITY, SPREAD))
        return next((one for one in each if one in self.counters), None)

    def watch(self, pairs: Iterable[tuple[str, str]]) -> tuple[list[str], list[Counter]]:
        """Allot the columns that count (class, topology) pairs. Returns the new topologies and counters."""
        _, topologies, counters = self._allot((), [(*one, AT_MOST) for one in pairs if self._known(*one) is None])
        return topologies, counters

    def allot(self, rules: PodRules) -> tuple[list[str], list[str], list[Counter]]:
        """Allot the columns that rules need. Returns the new amounts, topologies and counters."""
        wanted = [(one.pod_class, one.topology, AT_MOST) for one in rules.anti_affinity]
        wanted += [(one.pod_class, one.topology, AFFINITY) for one in rules.affinity]
        wanted += [(one.pod_class, one.topology, SPREAD) for one in rules.spread]
        wanted += [(name, CLUSTER, AT_MOST) for name, _, _ in rules.shared]
        return self._allot([name for name, _ in rules.amounts if name not in self.amounts], wanted)

    def _allot(self, amounts: Sequence[str], wanted: Iterable[Counter]) -> tuple[list[str], list[str], list[Counter]]:
        counters = [one for one in dict.fromkeys(wanted) if one not in self.counters]
        named = dict.fromkeys(topology for _, topology, kind in counters if topology != HOST or kind != AT_MOST)
        topologies = [name for name in named if name not in self.topologies]
        for name in amounts:
            self.amounts[name] = self._next(1)
        for name in topologies:
            self.topologies[name] = self._next(2)
        for one in counters:
            self.counters[one] = self._next(1 if one[2] == AT_MOST else 2)
            self.of_class.setdefault(one[0], []).append(one)
        return list(amounts), topologies, counters

    def _next(self, columns: int) -> int:
        self.width += columns
        return self.width - columns

    def topology_of(self, counter: Counter) -> int:
        """Return the column of the topology of a counter; -1 if its domains are the nodes themselves."""
        _, topology, kind = counter
        return -1 if topology == HOST and kind == AT_MOST else self.topologies[topology]

    def entries(self, rules: PodRules) -> list[Entry]:
        """Return the entries of a demand with these rules: one for each counter and amount, with its limit."""
        found: list[Entry] = [(-1, self.amounts[name], each, AT_MOST, 0, 0) for name, each in rules.amounts]
        limits: dict[Counter, tuple[int, int]] = {}
        for name in rules.classes:
            for counter in self.of_class.get(name, ()):
                limits[counter] = (NO_LIMIT if counter[2] == AT_MOST else 0), 0
        for anti in rules.anti_affinity:
            own = int(anti.pod_class in rules.classes)  # the pod does not count against itself
            limits[anti.pod_class, anti.topology, AT_MOST] = anti.most + own, 0
        for near in rules.affinity:
            limits[near.pod_class, near.topology, AFFINITY] = 1, 0
        for even in rules.spread:
            limits[even.pod_class, even.topology, SPREAD] = even.max_skew, even.min_domains
        takes = {(name, CLUSTER, AT_MOST): each for name, each, _ in rules.shared}
        limits |= {(name, CLUSTER, AT_MOST): (most, 0) for name, _, most in rules.shared}
        for counter, (limit, domains) in limits.items():
            each = takes.get(counter, int(counter[0] in rules.classes))
            found.append((self.topology_of(counter), self.counters[counter], each, counter[2], limit, domains))
        return found
