"""A router of policies: rules over features of the cluster state propose the active policy, a look-ahead confirms it.

The idea of a scheduler above several agents, one of which acts, learned from demonstrations, is from SEIHAI (arXiv
2111.08857). The first rule that holds proposes its policy; if none does, `floor` acts. A driver asks for the look-ahead
(`sim/look_ahead.py`) and records its answer as an event.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta, Struct

from kant.cluster.columns import J_ATTAINED, J_END, J_MILLI, J_P50, J_SINCE, P_ALLOCATED, P_CAPACITY
from kant.cluster.state import ClusterState
from kant.model.decision import Route
from kant.model.taxonomy import EVERY_CLUSTER_POLICY, Tags, tagged
from kant.model.units import DAY, MINUTE, SECOND

LARGE = 8
"""A gang is large if it asks for at least 1 / LARGE (an eighth) of the cluster's GPUs."""

FEATURES = {
    "waiting": "jobs wait",
    "backlog": "% of all GPUs are waited for",
    "largest": "% of all GPUs are requested by the largest waiting gang",
    "large_backlog": "% of all GPUs are waited for by large gangs",
    "large_running": "% of all GPUs are held by large gangs",
    "oldest": "minutes have passed since the first of them began to wait",
    "free": "% of all GPUs are free",
    "shorter": "% of jobs ran for less than a hundredth of what was predicted",
    "longer": "% of jobs ran for more than ten times what was predicted",
}
"""The features that rules may use, with their text in messages. All are whole numbers."""

LATELY, ENOUGH = 3 * DAY, 30
"""Predictions are judged by the jobs that ended in this span (µs), if there are at least this many."""


class SwitchRule(Struct, frozen=True, forbid_unknown_fields=True):
    """`policy` is proposed if each feature of `where` lies between its two bounds. `says`: the reason in few words."""

    policy: str
    says: str
    where: dict[str, tuple[int, int]]


class PolicyRouter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which of several policies acts: `floor`, unless a rule proposes another and a look-ahead confirms it.

    While a rule holds, the look-ahead is asked every `hold_s` seconds, also about the policy that acts. The floor acts
    again as soon as that policy's rule no longer holds, or after twice as long without a confirmation. The bounds of a
    rule are wider by `band` percentage points while its policy acts. With a `pin` that policy always acts.
    """

    floor: str
    rules: tuple[SwitchRule, ...] = ()
    hold_s: Annotated[int, Meta(ge=1, le=10**9)] = 3600
    band: Annotated[int, Meta(ge=0, le=1000)] = 2
    pin: str = ""

    source: ClassVar[str] = "the scheduler above agents of SEIHAI, arXiv 2111.08857, with rules as a classifier"
    tags: ClassVar[Tags] = tagged(
        EVERY_CLUSTER_POLICY,
        objective="jct",
        knowledge="learned",
        preemption="evict",
        method="learned",
        resources="none",
    )

    def __post_init__(self) -> None:
        for rule in self.rules:
            for name, (least, most) in rule.where.items():
                if name not in FEATURES or least > most:
                    raise ValueError(f"`where` of {rule.policy} must be of {', '.join(FEATURES)}, each with two bounds")

    def acts(self, state: ClusterState) -> str:
        """Return the policy that acts now; the floor if the last switch names a policy of another router."""
        known = {rule.policy for rule in self.rules}
        chosen = state.routed.policy if state.routed is not None and state.routed.policy in known else self.floor
        return self.pin or chosen

    def look(self, state: ClusterState, now: int) -> Route | None:
        """Return the switch back to the floor if it is due now, else None. Called while jobs wait."""
        acts = self.acts(state)
        if self.pin or acts == self.floor or state.routed is None:
            return None
        since = now - state.routed.time
        if since >= 2 * self.hold_s * SECOND:
            return Route(self.floor, f"no look-ahead has confirmed {acts} for {since // SECOND:,} s")
        rules, found = [rule for rule in self.rules if rule.policy == acts], self._features(state, now)
        if any(self._holds(rule, found, self.band) for rule in rules):
            return None
        return Route(self.floor, f"no longer true: {self._facts(found, rules[0])}")

    def proposal(self, state: ClusterState, now: int) -> tuple[str, str] | None:
        """Return the policy that a rule proposes instead of the floor, and why; None if no rule holds or nobody waits.

        The proposed policy may be the one that acts already.
        """
        if self.pin or not state.pending:
            return None
        acts, found = self.acts(state), self._features(state, now)
        for rule in self.rules:
            if rule.policy != self.floor and self._holds(rule, found, self.band if rule.policy == acts else 0):
                return rule.policy, f"{rule.says}: {self._facts(found, rule)}"
        return None

    def _features(self, state: ClusterState, now: int) -> dict[str, int]:
        return features(state, now) | self._predictions(state, now)

    def _holds(self, rule: SwitchRule, found: dict[str, int], slack: int) -> bool:
        return all(least - slack <= found[name] <= most + slack for name, (least, most) in rule.where.items())

    def _predictions(self, state: ClusterState, now: int) -> dict[str, int]:
        """Return the accuracy of predictions; empty if no rule uses it, because it scans all jobs."""
        return predictions(state, now) if any({"shorter", "longer"} & rule.where.keys() for rule in self.rules) else {}

    def _facts(self, found: dict[str, int], rule: SwitchRule) -> str:
        return ", ".join(f"{found[name]:,} {FEATURES[name]}" for name in rule.where)


def features(state: ClusterState, now: int) -> dict[str, int]:
    """Return the features of the state; at least one job must wait."""
    jobs, pending, running = state.jobs, list(state.pending), list(state.running)
    asked, held = jobs[pending, J_MILLI], jobs[running, J_MILLI]
    capacity = max(int(state.pools[:, P_CAPACITY].sum()), 1)

    def percent(milli: np.ndarray) -> int:
        return int(milli.sum()) * 100 // capacity

    return {
        "waiting": len(pending),
        "backlog": percent(asked),
        "largest": percent(asked.max(keepdims=True)),
        "large_backlog": percent(asked[asked * LARGE >= capacity]),
        "large_running": percent(held[held * LARGE >= capacity]),
        "oldest": (now - int(jobs[pending, J_SINCE].min())) // MINUTE,
        "free": 100 - percent(state.pools[:, P_ALLOCATED]),
    }


def predictions(state: ClusterState, now: int) -> dict[str, int]:
    """Return which % of recently ended jobs ran far shorter, and far longer, than their P50; 100 if too few ended."""
    jobs = state.jobs[: len(state.ids) if state.history is not None else 0]
    ended = jobs[jobs[:, J_END] > now - LATELY]
    ended = ended[ended[:, J_P50] > 0] if len(ended) else ended
    if len(ended) < ENOUGH:
        return {"shorter": 100, "longer": 100}
    ran, predicted = ended[:, J_ATTAINED], ended[:, J_P50]
    shorter, longer = int((ran * 100 < predicted).sum()), int((ran > predicted * 10).sum())
    return {"shorter": 100 * shorter // len(ended), "longer": 100 * longer // len(ended)}
