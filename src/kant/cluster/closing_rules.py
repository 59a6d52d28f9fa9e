"""Which rule closes which nodes to a pod, by the name that people know."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.counters import Counter, Counters
from kant.model.rules import HOST, PodRules

Mask = NDArray[np.bool_]


def closing_rules(table: Table, counters: Counters, rules: PodRules) -> dict[str, Mask]:
    """For each rule and amount of a pod the nodes that it alone closes, as `table` has them."""
    found: dict[str, Mask] = {}
    for name, amount in rules.amounts:
        found[f"too little {name}"] = table[:, c.extra_at(table) + counters.amounts[name]] < amount
    for anti in rules.anti_affinity:
        there, _ = _counts(table, counters, (anti.pod_class, anti.topology, c.AT_MOST))
        found[f"anti-affinity with class {anti.pod_class}{_in(anti.topology)}"] = there > anti.most
    for near in rules.affinity:
        there, first = _counts(table, counters, (near.pod_class, near.topology, c.AFFINITY))
        is_first = near.pod_class in rules.classes and not first
        found[f"affinity to class {near.pod_class}{_in(near.topology)}"] = (there < 0) | ((there == 0) & (not is_first))
    for even in rules.spread:
        there, fewest = _counts(table, counters, (even.pod_class, even.topology, c.SPREAD))
        domains = table.item(0, c.extra_at(table) + counters.topologies[even.topology] + 1)
        least = fewest if domains >= even.min_domains else 0
        too_many = there + (even.pod_class in rules.classes) - least > even.max_skew
        found[f"spread of class {even.pod_class} over {even.topology}"] = (there < 0) | too_many
    return found


def _in(topology: str) -> str:
    return "" if topology == HOST else f" in one {topology}"


def _counts(table: Table, counters: Counters, counter: Counter) -> tuple[Table, int]:
    """The pods of a class in the domain of each node, -1 where it has none; and what is known of all domains."""
    extra, topology, column = c.extra_at(table), counters.topology_of(counter), counters.counters[counter]
    rows: Table = np.arange(len(table)) if topology < 0 else table[:, extra + topology]
    there: Table = np.where(rows < 0, -1, -table[rows, extra + column])
    return there, 0 if counter[2] == c.AT_MOST else table.item(0, extra + column + 1)
