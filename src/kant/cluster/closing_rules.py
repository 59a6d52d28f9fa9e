"""Finds which nodes each rule and each amount of a pod excludes, to explain why the pod does not fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kant.cluster import columns as c
from kant.cluster.columns import Table
from kant.cluster.counters import Counter, Counters
from kant.model.rules import CLUSTER, HOST, Limit, PodAffinity, PodAntiAffinity, PodRules, TopologySpread

Mask = NDArray[np.bool_]
Rule = Limit | tuple[str, int]
"""An affinity rule, or the name of an amount and how much of it a pod needs."""


def closing_rules(table: Table, counters: Counters, rules: PodRules) -> list[tuple[Rule, Mask]]:
    """Return, for each rule and amount of a pod, a mask of the nodes of `table` that it excludes on its own."""
    found: list[tuple[Rule, Mask]] = []
    for name, amount in rules.amounts:
        found.append(((name, amount), table[:, c.extra_at(table) + counters.amounts[name]] < amount))
    for name, each, most in rules.shared:
        taken, _ = _counts(table, counters, (name, CLUSTER, c.AT_MOST))
        found.append(((name, each), taken + each > most))
    for anti in rules.anti_affinity:
        there, _ = _counts(table, counters, (anti.pod_class, anti.topology, c.AT_MOST))
        found.append((anti, there > anti.most))
    wanted = [_counts(table, counters, (one.pod_class, one.topology, c.AFFINITY)) for one in rules.affinity]
    anywhere = any(total for _, total in wanted)
    for near, (there, _) in zip(rules.affinity, wanted, strict=True):
        is_first = near.pod_class in rules.classes and not anywhere
        found.append((near, (there < 0) | ((there == 0) & (not is_first))))
    for even in rules.spread:
        there, fewest = _counts(table, counters, (even.pod_class, even.topology, c.SPREAD))
        domains = table.item(0, c.extra_at(table) + counters.topologies[even.topology] + 1)
        least = fewest if domains >= even.min_domains else 0
        too_many = there + (even.pod_class in rules.classes) - least > even.max_skew
        found.append((even, (there < 0) | too_many))
    return found


def rule_words(rule: Rule) -> str:
    """Return a rule or an amount in words."""
    if isinstance(rule, tuple):
        return f"not enough {rule[0]}"
    where = "" if rule.topology == HOST else f" in one {rule.topology}"
    match rule:
        case PodAntiAffinity(pod_class=name):
            return f"anti-affinity with class {name}{where}"
        case PodAffinity(pod_class=name):
            return f"affinity to class {name}{where}"
        case TopologySpread(pod_class=name, topology=topology):
            return f"spread of class {name} over {topology}"


def _counts(table: Table, counters: Counters, counter: Counter) -> tuple[Table, int]:
    """Return the pods of a class in each node's domain (-1: no domain), and the value of `add_count` in row 0."""
    extra, topology, column = c.extra_at(table), counters.topology_of(counter), counters.counters[counter]
    rows: Table = np.arange(len(table)) if topology < 0 else table[:, extra + topology]
    there: Table = np.where(rows < 0, -1, -table[rows, extra + column])
    return there, 0 if counter[2] == c.AT_MOST else table.item(0, extra + column + 1)
