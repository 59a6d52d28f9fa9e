"""Defines a node policy: a score of nodes, and a choice of devices. `kernels.py` places pods by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import Table
from kant.compiled import inlined
from kant.model.job import Level
from kant.model.taxonomy import EVERY_CLUSTER_POLICY, Tags, tagged
from kant.placement.fits import tightest

Unit = Annotated[int, Meta(gt=0, le=1 << 40)]
"""A unit in which other amounts are measured."""

Score = Callable[[Table, int, Table, int, Table, Any, int], int]
"""score(table, node, demands, d, typical, params, draw): how good the node is for a pod of demand d; never negative.

Called only for nodes on which the pod fits. The highest score wins, and ties go to the first node in tie order.
`typical` is the typical pods (rows: cpu, gpus, milli, pool mask, weight), `params` the policy's numbers. A score
depends only on the row of its node, so it is recomputed only when that node changes. A policy whose score uses `draw`
sets `fresh = True` and is scored again for every pod.
"""

Pick = Callable[[Table, int, Table, int, Table, Any, int], int]
"""pick(table, node, demands, d, typical, params, draw): the devices that the pod gets, as bits."""


Terms = dict[str, float]
"""The terms of a score, for people: names with numbers in GPUs, cores or counts."""


@inlined
def pick_tightest(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table, draw: int) -> int:
    return tightest(table, node, demands, d)


class NodePolicy(Struct, frozen=True, tag_field="policy", forbid_unknown_fields=True):
    """Base of the policies that choose a node for one pod at a time.

    `ties` says which of equal nodes is first: the one with the lowest index, or the first in a random order that is
    drawn once from the seed.
    """

    ties: Literal["index", "random"] = "index"

    source: ClassVar[str] = ""
    tags: ClassVar[Tags] = tagged(EVERY_CLUSTER_POLICY, knowledge="none", method="packing")
    """The policy's tags in `kant.model.taxonomy`. Subclasses add `objective` and `resources`, and override others."""
    score: ClassVar[Any]  # staticmethod of a Score
    pick: ClassVar[Any] = staticmethod(pick_tightest)  # staticmethod of a Pick
    fresh: ClassVar[bool] = False
    preferred_level: ClassVar[Level] = ""
    """The level at which one domain should hold a gang that requests no level; "": the fabric is ignored."""
    spreads: ClassVar[bool] = False
    """Whether pods of one service are kept apart (`spreading`). Gangs that name a level are still placed by score."""

    @staticmethod
    def terms(table: Table, node: int, demands: Table, d: int, typical: Table, params: Table) -> Terms:
        """Return the terms of a node's `score` for a pod of demand d, for `kant explain`; empty: show only the number.

        The score must follow from the terms: nodes with equal terms have equal scores. Called like `score`, but in
        plain Python, never compiled.
        """
        return {}

    ignores_topology: ClassVar[bool] = False
    """Whether a pod smaller than a node may go to any node; if not, a policy with `preferred_level` chooses a leaf."""
    reads_typical_pods: ClassVar[bool] = False
    """Whether `score`, `pick` or `numbers` use the typical pods. Other policies get none."""
    learns: ClassVar[bool] = False
    """Whether the typical pods are those of recent arrivals. Otherwise a simulation gives them in advance."""

    @property
    def params(self) -> tuple[int, ...]:
        """The numbers that `score` and `pick` read."""
        return ()

    def numbers(self, typical: Table, empty: Table) -> Table:
        """Return the policy's numbers as a table, plus anything expensive that is computed once for the typical pods.

        `empty` is the node table of the empty cluster.
        """
        return np.array(self.params or (0,), dtype=np.int64)

    def policy_for(self, group: int, groups: int, pods: int) -> tuple[NodePolicy, bool]:
        """Return the policy that places group number `group` of `groups`, and whether it fills node by node."""
        return self, False
