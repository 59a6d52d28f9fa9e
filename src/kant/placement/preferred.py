"""Placement by preferences: each pod uses the node with the best sum of its preferences and its policy's score.

Whether a gang fits does not depend on its preferences. A gang without requests for topology is placed anywhere, pod by
pod. For a gang with such requests the domains are chosen first, and its pods choose inside them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kant.cluster.columns import Table, extra_at
from kant.cluster.shapes import Shape
from kant.cluster.snapshot import Snapshot, Trial, move
from kant.model.decision import NoFit
from kant.model.placement import Allocation
from kant.model.preference import Preferences
from kant.placement.capacity import NodeScores
from kant.placement.fits import mixed
from kant.placement.kernels import COUNT_ALL, NODE_AT, PLACE_OF, SCORE, slice_kernel
from kant.placement.pieces import PieceBuffer
from kant.placement.policy import NodePolicy
from kant.placement.preference_scores import KINDS, PODS, SPREAD, TERM_WIDTH, best_node
from kant.placement.preference_weights import PreferenceWeights
from kant.placement.scored import Route, ScoredPlacement


class PreferringGroup:
    """The preferences of the pods of one group, and the worth of each node to these pods."""

    def __init__(
        self,
        snapshot: Snapshot,
        demand: int,
        preferences: Preferences,
        nodes: NodeScores,
        weights: PreferenceWeights,
        seed: int,
    ) -> None:
        self.snapshot, self.demand, self.preferences, self.nodes = snapshot, demand, preferences, nodes
        self.weights: Table = np.array(weights.rows, dtype=np.int64)
        self.terms = terms_of(snapshot, preferences)
        self.scores: Table = np.zeros((KINDS, 0), dtype=np.int64)
        self.seed = seed
        self._run = slice_kernel(type(nodes.policy))
        self._likes: Table = np.zeros((2, 0), dtype=np.int64)
        self._version = -1

    def put(self, nodes: Table, count: int, pieces: PieceBuffer, used: int, job_row: int) -> int:
        """Place `count` pods, which must fit, on these nodes, given in tie order.

        Returns the number of rows of `pieces` in use. If rules among the pods allow only f of them, returns -1 - f and
        takes nothing.
        """
        snapshot, scores, last, begin = self.snapshot, self.nodes, -1, used
        demands = snapshot.state.shapes.demands
        for pod in range(count):
            drawn = mixed(mixed(self.seed, job_row), pod) if scores.fresh else 0
            best = self.best(nodes, last, drawn)
            if best < 0:
                move(snapshot.table, snapshot.log, pieces.rows[begin:used], demands, False)
                return -1 - pod
            last = int(nodes[best])
            used = self._run(
                snapshot.table, snapshot.log, demands, self.demand, scores.typical_pods, scores.params,
                np.array([last], dtype=np.int64), 1, False, drawn, pieces.rows, used,
            )  # fmt: skip
        return used

    def best(self, nodes: Table, last: int = -1, drawn: int = 0) -> int:
        """Return the index in `nodes` of the best one for the next pod, -1: none takes it; `scores` has the reasons."""
        snapshot, scores = self.snapshot, self.nodes
        demands = snapshot.state.shapes.demands
        slot = scores.slot_of.get(self.demand)
        if slot is None:
            (slot,) = scores.slots([self.demand])
        scores.kernel(
            snapshot.table, snapshot.log, demands, self.demand, scores.typical_pods, scores.params, scores.order,
            scores.index, scores.marks, slot, COUNT_ALL, False, drawn, np.zeros((1, 1), dtype=np.int64), 0,
        )  # fmt: skip
        if self.scores.shape[1] < len(nodes):
            self.scores = np.zeros((KINDS, len(nodes)), dtype=np.int64)
        return best_node(
            snapshot.table, demands, self.demand, scores.index, slot, scores.order, nodes, self._liked(), self.terms,
            self.weights, last, self.scores,
        )  # fmt: skip

    def worth(self, node: int) -> int:
        """Return the policy's score of a node, as of the last call of `best`; -1 if no pod fits."""
        scores = self.nodes
        return int(scores.index[scores.slot_of[self.demand], SCORE, scores.order[PLACE_OF, node]])

    def _liked(self) -> Table:
        """Return for each node the weight of its preferred node sets, and the number of its avoided ones."""
        sets = self.snapshot.state.shapes.node_sets
        if self._version != sets.version or self._likes.shape[1] != len(self.snapshot.table):
            self._version = sets.version
            self._likes = np.zeros((2, len(self.snapshot.table)), dtype=np.int64)
            for liked in self.preferences.nodes:
                self._likes[0, sets.nodes(liked.node_set)] += liked.weight
            for name in self.preferences.avoided:
                self._likes[1, sets.nodes(name)] += 1
        return self._likes


def terms_of(snapshot: Snapshot, preferences: Preferences) -> Table:
    """Return where in the node table the counts for these preferences are, in the format of `best_node`."""
    counters, extra = snapshot.state.shapes.rules.counters, extra_at(snapshot.table)
    wanted = [(PODS, one.pod_class, one.topology, one.weight) for one in preferences.pods]
    wanted += [(SPREAD, one.pod_class, one.topology, one.max_skew) for one in preferences.spread]
    found = []
    for kind, pod_class, topology, weight in wanted:
        count, domain = counters.place(pod_class, topology)
        found.append((kind, extra + count, extra + domain if domain >= 0 else -1, weight))
    return np.array(found, dtype=np.int64).reshape(-1, TERM_WIDTH)


class Preferring:
    """Creates groups that place each pod by the policy for single pods. `scores`: returns a policy's node scores."""

    def __init__(
        self, snapshot: Snapshot, weights: PreferenceWeights, seed: int, scores: Callable[[NodePolicy], NodeScores]
    ) -> None:
        self.snapshot, self.weights, self.seed, self.scores = snapshot, weights, seed, scores

    def groups(self, shape: Shape, policy: NodePolicy) -> list[PreferringGroup] | None:
        """Return the groups of a shape; None if it has no preferences, or the profile does not use them."""
        if not shape.ask.preferences or not any(self.weights.rows[2:]):
            return None
        chosen = [self.scores(policy.policy_for(i, len(shape.parts), 1)[0]) for i in range(len(shape.parts))]
        return [
            PreferringGroup(self.snapshot, demand, preferences, own, self.weights, self.seed)
            for (_, demand), preferences, own in zip(shape.parts, shape.ask.preferences, chosen, strict=True)
        ]


class PreferredPlacement(ScoredPlacement):
    """Places gangs whose pods may be placed anywhere and prefer some nodes.

    Groups of one gang may use up each other's nodes, and so may pods with rules about each other. A gang that finds no
    place for this reason is placed by `otherwise`, without its preferences.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        trial: Trial,
        shape: Shape,
        groups: list[PreferringGroup],
        seed: int,
        pieces: PieceBuffer,
        otherwise: Route,
    ) -> None:
        super().__init__(snapshot, trial, shape, [(group.nodes, False) for group in groups], seed, pieces)
        self.preferring, self.otherwise = groups, otherwise
        self._choices_matter = shape.wide or len(groups) > 1

    def place(self, job_row: int) -> Allocation | NoFit:
        """Place and take the whole gang by preferences, else by `otherwise`; or return why it does not fit."""
        found = super().place(job_row)
        return self.otherwise.place(job_row) if isinstance(found, NoFit) and self._choices_matter else found

    def may_fit(self) -> bool:
        """Return False if `otherwise` certainly finds no place."""
        return self.otherwise.may_fit()

    def _place_group(self, group: int, job_row: int, used: int, asked: int = 0) -> int:
        fits = -1 - super()._place_group(group, job_row, used, COUNT_ALL)
        pods = asked or self.groups[group][0]
        if fits < pods:
            return -1 - fits
        own = self.preferring[group]
        return own.put(own.nodes.order[NODE_AT], pods, self.pieces, used, job_row)
