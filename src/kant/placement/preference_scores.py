"""Preference scores: how good nodes are for a pod by its preferences, combined with the policy's score.

Each of five scores is scaled to 0 to 100 over the nodes on which the pod fits, and their weighted sum decides. On ties
nodes near the previously placed pod come first, then the one with the higher policy score, then the first in tie order.

Source: kube-scheduler's plugins NodeAffinity, TaintToleration, InterPodAffinity and PodTopologySpread, their
normalisation and their default weights. Scaling the policy's score to the same range is Kant's own.
"""

from __future__ import annotations

import numpy as np

from kant.cluster.columns import D_WIDE, HBD, SUPERSPINE, WIDE, Table, counted_capacity
from kant.compiled import compiled, inlined
from kant.placement.kernels import FITTING, PLACE_OF, SCORE

# --- rows of `scores` and of `weights` ----------------------------------------------------------------------------
TOTAL = 0
POLICY = 1
NODES = 2
AVOIDED = 3
PODS = 4
SPREAD = 5
KINDS = 6

MOST = 100
"""The highest score of each kind."""

# --- columns of `terms`, which refer to pod counts -----------------------------------------------------------------
T_KIND = 0  # PODS or SPREAD
T_COUNT = 1  # column of the count in the row of the node that holds it
T_DOMAIN = 2  # column with the node that holds the counts of the domain; -1: each node has its own
T_WEIGHT = 3  # for PODS the weight, for SPREAD the skew that makes no difference
TERM_WIDTH = 4


@inlined
def log_milli(number: int) -> int:
    """Return the natural logarithm of a number from 1 on, in thousandths; the same on every machine."""
    whole, x = 0, number << 30
    while x >= 1 << 31:
        x >>= 1
        whole += 1
    part = 0
    for _ in range(16):
        x = (x * x) >> 30
        part <<= 1
        if x >= 1 << 31:
            x >>= 1
            part += 1
    return int((((whole << 16) + part) * 693_147 // 1000 + (1 << 15)) >> 16)


@inlined
def holder(table: Table, node: int, terms: Table, t: int) -> int:
    """Return the node whose row has the counts of a node's domain; -1 if the node is in no domain."""
    column = terms[t, T_DOMAIN]
    return int(table[node, column]) if column >= 0 else node


@inlined
def _domains(table: Table, nodes: Table, scores: Table, terms: Table, t: int, seen: Table) -> int:
    """Return how many domains of a term have a node on which the pod fits."""
    for node in range(table.shape[0]):
        seen[node] = 0
    found = 0
    for i in range(nodes.shape[0]):
        if scores[TOTAL, i] >= 0 and scores[SPREAD, i] >= 0:
            at = holder(table, nodes[i], terms, t)
            found += 1 - seen[at]
            seen[at] = 1
    return found


@inlined
def _count(table: Table, nodes: Table, scores: Table, terms: Table, seen: Table) -> None:
    """Add the unscaled PODS and SPREAD scores of each node, by the pods in its domains; SPREAD -1: no domain."""
    for t in range(terms.shape[0]):
        for i in range(nodes.shape[0]):
            at = holder(table, nodes[i], terms, t)
            if terms[t, T_KIND] == SPREAD and at < 0:
                scores[SPREAD, i] = -1
            elif terms[t, T_KIND] == PODS and at >= 0:
                scores[PODS, i] -= table[at, terms[t, T_COUNT]] * terms[t, T_WEIGHT]
    for t in range(terms.shape[0]):
        if terms[t, T_KIND] == SPREAD:
            times = log_milli(_domains(table, nodes, scores, terms, t, seen) + 2)
            for i in range(nodes.shape[0]):
                if scores[SPREAD, i] >= 0:
                    at = holder(table, nodes[i], terms, t)
                    scores[SPREAD, i] += 1000 * (terms[t, T_WEIGHT] - 1) - table[at, terms[t, T_COUNT]] * times


@inlined
def _scale(scores: Table, kind: int) -> None:
    """Scale one kind of score to 0 to 100 over the nodes on which the pod fits, as the corresponding plugin does."""
    least, most = 1 << 62, -(1 << 62)
    for i in range(scores.shape[1]):
        if scores[TOTAL, i] >= 0 and not (kind == SPREAD and scores[kind, i] < 0):
            if kind == SPREAD:
                scores[kind, i] = (scores[kind, i] + 500) // 1000
            least, most = min(least, scores[kind, i]), max(most, scores[kind, i])
    for i in range(scores.shape[1]):
        own, scaled = scores[kind, i], 0
        if scores[TOTAL, i] < 0:
            continue
        if kind == NODES:
            scaled = MOST * own // most if most > 0 else own
        elif kind == AVOIDED:
            scaled = MOST - (MOST * own // most if most > 0 else 0)
        elif kind == SPREAD:
            if own >= 0:
                scaled = MOST * (most + least - own) // most if most > 0 else MOST
        elif most > least:
            scaled = MOST * (own - least) // (most - least)
        scores[kind, i] = scaled


@compiled
def best_node(
    table: Table, demands: Table, d: int, index: Table, slot: int, order: Table, nodes: Table, likes: Table,
    terms: Table, weights: Table, last: int, scores: Table,
) -> int:  # fmt: skip
    """Return the index in `nodes` of the best node; -1 if the pod fits on none.

    `index`, `slot` and `order` are the demand's cached index, brought up to date (`kernels.py`). `likes` has for each
    node of the cluster the weight of its preferred node sets, and the number of its avoided node sets. `last` is the
    node of the previous pod (-1: none). `scores` receives each node's scores by kind; TOTAL -1: the pod does not fit.
    """
    count = nodes.shape[0]
    for i in range(count):
        leaf = order[PLACE_OF, nodes[i]]
        scores[TOTAL, i] = 0 if index[slot, FITTING, leaf] > 0 else -1
        if demands[d, D_WIDE] == 1 and counted_capacity(table, nodes[i], demands, d, WIDE) == 0:
            scores[TOTAL, i] = -1
        scores[POLICY, i] = index[slot, SCORE, leaf]
        scores[NODES, i] = likes[0, nodes[i]]
        scores[AVOIDED, i] = likes[1, nodes[i]]
        scores[PODS, i], scores[SPREAD, i] = 0, 0
    if terms.shape[0] > 0:
        _count(table, nodes, scores, terms, np.zeros(table.shape[0], dtype=np.int64))
    for kind in range(POLICY, KINDS):
        if weights[kind] > 0:
            _scale(scores, kind)
    best, first = -1, (-1, -1, -1)
    for i in range(count):
        if scores[TOTAL, i] < 0:
            continue
        for kind in range(POLICY, KINDS):
            scores[TOTAL, i] += weights[kind] * scores[kind, i]
        near = 0
        for column in range(HBD, SUPERSPINE + 1):
            near += int(last >= 0 and table[nodes[i], column] == table[last, column])
        worth = (int(scores[TOTAL, i]), near, int(index[slot, SCORE, order[PLACE_OF, nodes[i]]]))
        if best < 0 or worth > first:
            best, first = i, worth
    return best
