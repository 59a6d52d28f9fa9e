"""Preference weights: how much a profile values what pods prefer (`preference_scores.py` applies them)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Weight = Annotated[int, Meta(ge=0, le=100)]


class PreferenceWeights(Struct, frozen=True, forbid_unknown_fields=True):
    """Weights of pods' preferences relative to the placement policy's score; all scores are first scaled to 0 to 100.

    `node_affinity` is for preferred nodes, `taints` for avoided ones, `pod_affinity` for preferred or avoided pods
    nearby, `spread` for evenness. The defaults are those of kube-scheduler, with `policy` as the weight of its packing.
    With the other four at 0, preferences are ignored.
    """

    policy: Weight = 1
    node_affinity: Weight = 2
    taints: Weight = 3
    pod_affinity: Weight = 2
    spread: Weight = 2

    @property
    def rows(self) -> tuple[int, ...]:
        """The weights in the order that `preference_scores.best_node` expects."""
        return 0, self.policy, self.node_affinity, self.taints, self.pod_affinity, self.spread
