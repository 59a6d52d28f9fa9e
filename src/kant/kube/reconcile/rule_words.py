"""Explanations: which affinity rules and amounts of other resources keep pods from all otherwise suitable nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from kant.cluster import columns as c
from kant.cluster.closing_rules import Mask, Rule, closing_rules
from kant.cluster.columns import Table
from kant.cluster.node_sets import admitting
from kant.cluster.state import ClusterState
from kant.kube.translate.pod_rules import PODS, named_class, named_topology
from kant.kube.translate.resources import is_bytes
from kant.model.rules import HOST, PodAffinity, PodAntiAffinity, PodRules, TopologySpread
from kant.model.status import NodeStatus

Example = Callable[[str, list[int]], str]
"""Returns the name of a pod of a class on one of these nodes (rows of the node table); "" for none."""


def rule_words(state: ClusterState, job: int, example: Example = lambda name, rows: "") -> list[str]:
    """Return, as sentences, what keeps a group of a waiting job's pods from all nodes with enough capacity for a pod:
    free capacity, or if no node has enough, total capacity. Only the first such group is explained. If there is none, a
    gang's requests besides GPUs, CPU and memory are named.
    """
    shape = state.shape_of(job)
    for rules, (_, demand) in zip(shape.ask.rules, shape.parts, strict=False):
        able = _able(state, state.table, demand)
        able = able if able.any() else _able(state, state.empty, demand)
        masks = closing_rules(state.table, state.shapes.rules.counters, rules)
        closed = [(rule, mask & able) for rule, mask in masks if (mask & able).any()]
        if able.any() and not (able & ~np.logical_or.reduce([mask for _, mask in closed] or [~able])).any():
            others = (one for one in closed if not (isinstance(one[0], tuple) and one[0][0] == PODS))
            return list(dict.fromkeys(_words(state, rule, mask, example) for rule, mask in others))
    kinds = dict.fromkeys(word for rules in shape.ask.rules for word in _kinds(rules)) if shape.pods > 1 else {}
    return [f"each of its pods asks for {', '.join(kinds)}"] if kinds else []


def _able(state: ClusterState, table: Table, demand: int) -> Mask:
    """Return a mask of the nodes that a pod may use and that have, by `table`, the GPUs, CPU and memory for it."""
    asked = state.shapes.demands[demand]
    able: Mask = admitting(asked, table[:, c.POOL])
    rows = able.nonzero()[0]  # often few, and rows of a large table are slow to read
    status, cpu, memory, free = table[rows[:, None], [c.STATUS, c.CPU_FREE, c.MEMORY_FREE, c.FREE]].T
    fits = (cpu >= asked[c.D_CPU]) & (memory >= asked[c.D_MEMORY]) & (free >= asked[c.D_GPUS] * asked[c.D_MILLI])
    able[rows] = fits & (status == NodeStatus.IN_SERVICE)
    return able


def _words(state: ClusterState, rule: Rule, closed: Mask, example: Example) -> str:
    match rule:
        case PodAntiAffinity():
            return _apart_words(state, rule, closed, example)
        case PodAffinity():
            return "no node where it would fit has a pod that its podAffinity requires"
        case TopologySpread():
            key = named_topology(rule.topology)
            return f"nodes where it would fit have too many matching pods already (topologySpreadConstraints by {key})"
    name, amount = rule
    return f"no suitable node has {amount}{' MiB' if is_bytes(name) else ''} of {name} left"


def _apart_words(state: ClusterState, anti: PodAntiAffinity, closed: Mask, example: Example) -> str:
    what = named_class(anti.pod_class)
    if what:
        return f"{what} is in use on the suitable nodes"
    tables, rows = state.counter_tables, np.flatnonzero(closed).tolist()
    if anti.topology != HOST:
        domains = {tables.domain(anti.topology, row) for row in rows}
        rows = [row for row in range(len(state.table)) if tables.domain(anti.topology, row) in domains]
    other = example(anti.pod_class, rows)
    such = f", such as pod {other}" if other else ""
    return f"the suitable nodes have pods that exclude it (podAntiAffinity){such}"


def _kinds(rules: PodRules) -> Iterator[str]:
    """Yield, in the terms of a pod's spec, its amounts of other resources and its affinity rules."""
    for name, amount in rules.amounts:
        if name != PODS:
            yield f"{amount}{' MiB' if is_bytes(name) else ''} of {name}"
    for anti in rules.anti_affinity:
        if not named_class(anti.pod_class):
            yield f"podAntiAffinity by {named_topology(anti.topology)}"
    for near in rules.affinity:
        yield f"podAffinity by {named_topology(near.topology)}"
    for even in rules.spread:
        yield f"topologySpreadConstraints by {named_topology(even.topology)}"
