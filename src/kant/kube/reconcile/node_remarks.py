"""Remarks to waiting jobs about nodes that accept no new pods because of their status or their limit of pods."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kant.cluster import columns as c
from kant.cluster.closing_rules import closing_rules
from kant.cluster.state import ClusterState
from kant.kube.translate.pod_rules import PODS
from kant.model.rules import PodRules
from kant.model.status import NodeStatus


def node_remarks(closed: Collection[str], nodes: Collection[str], state: ClusterState) -> list[str]:
    """Return the remarks, each as one sentence; [] if all nodes accept pods."""
    return [one for one in (_crowded(state), out_of_service(closed, nodes)) if one]


def _crowded(state: ClusterState) -> str:
    counters = state.shapes.rules.counters
    one = PodRules(amounts=((PODS, 1),) if PODS in counters.amounts else ())
    there = state.table[:, c.STATUS] != NodeStatus.RETIRED
    masks = [mask & there for _, mask in closing_rules(state.table, counters, one)]
    full = [state.nodes[row] for mask in masks for row in np.flatnonzero(mask).tolist()]
    if len(full) == 1:
        return f"node {full[0].name} has reached its limit of {dict(full[0].amounts)[PODS]} pods"
    return f"{len(full):,} nodes have reached their limits of pods" if full else ""


def out_of_service(closed: Collection[str], nodes: Collection[str]) -> str:
    """Return, as one sentence, how many of `nodes` are `closed` because of their own status; "" for none."""
    shut = sorted(name for name in closed if name in nodes)
    why = "(cordoned, not ready or malformed)"
    if not nodes:
        return "the cluster has no nodes"
    if len(shut) == 1:
        return f"node {shut[0]} accepts no new pods {why}"
    return f"{len(shut):,} of {len(nodes):,} nodes accept no new pods {why}" if shut else ""
