"""When a waiting job may preempt jobs that are still protected, because they have not run for their `min_run` yet."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from kant.cluster.columns import J_QUEUE, J_SINCE
from kant.cluster.shapes import Shape
from kant.cluster.state import ClusterState
from kant.insight.diagnosis import Diagnosis
from kant.insight.facts import AwaitsNode, ProtectedVictims, VictimsTooLarge
from kant.insight.victims_too_large import victims_too_large
from kant.model.decision import NoFit, OverQuota, Reason
from kant.model.units import FOREVER
from kant.queueing.admission import awaits_node_until
from kant.queueing.evictable import PASSED
from kant.queueing.preemption.entitlement import Entitlements
from kant.queueing.preemption.policy import Preemption, candidates_of, fits_without
from kant.queueing.preemption.rules import PreemptionRules
from kant.queueing.preemption.search import search
from kant.scheduler.profile import Profile

TRIALS = 200
"""Maximum number of placements that are tried, for all waiting jobs together."""


class MinRunWaits:
    """Finds for each waiting job the first time at which enough victims have reached their minimum run time.

    No victim is counted twice: a victim of an earlier job is not available to a later job.
    """

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        self._entitlements: Entitlements | None = None
        self._taken: set[int] = set()
        self._trials = TRIALS

    def renewed(self, diagnosis: Diagnosis) -> MinRunWaits:
        """Return an equal object for the current state."""
        again = MinRunWaits(diagnosis)
        again._taken, again._trials = self._taken, self._trials
        return again

    def of(self, row: int, before: int = FOREVER) -> ProtectedVictims | None:
        """Return the protected victims that this job waits for; None if there are none before the time `before`."""
        policy, state = self.diagnosis.profile.preemption, self.diagnosis.state
        if policy is None or not state.shape_of(row).ask.preempts:
            return None
        if self._entitlements is None:
            self._entitlements = policy.entitlements(self.diagnosis.cycle)
        entitlements = self._entitlements
        if not (entitlements.preemptible & (entitlements.protected_until > self.diagnosis.now)).any():
            return None
        shape = state.shape_of(row)
        options = self.diagnosis.admission.options(row, shape) if self.diagnosis.uses_quotas else [shape]
        found = [self._in_shape(row, option, policy) for option in options]
        best = min((one for one in found if one is not None), key=lambda one: one[0].at, default=None)
        if best is None or best[0].at >= before:
            return None
        self._taken |= best[1]
        return best[0]

    def _in_shape(self, row: int, shape: Shape, policy: Preemption) -> tuple[ProtectedVictims, set[int]] | None:
        rules = policy.rules(self.diagnosis.cycle, row, shape)
        if not rules.could_ever:
            return None
        best: tuple[ProtectedVictims, set[int]] | None = None
        for level in rules.levels():
            places, marks, until = rules.victims(level)
            rows, order = rules.entitlements.rows[places], np.argsort(until, kind="stable")
            order = order[~np.isin(rows[order], list(self._taken))]
            rows, marks, until, places = rows[order], marks[order], until[order], places[order]
            count = self._enough(rules, row, shape, level, rows, marks)
            if count and (at := until.item(count - 1)) > self.diagnosis.now and (best is None or at < best[0].at):
                best = self._fact(places.item(count - 1), at, count), set(rows[:count].tolist())
        return best

    def _enough(
        self, rules: PreemptionRules, row: int, shape: Shape, level: int, rows: np.ndarray, marks: np.ndarray
    ) -> int:
        """Return how many of `rows`, from the first on, must be preempted to start the job; 0: all are too few."""

        def suffice(count: int) -> bool:
            return self._suffice(rules, row, shape, level, rows[:count], marks[:count])

        if not len(rows) or not suffice(len(rows)):
            return 0
        return bisect_left(range(len(rows)), True, 1, key=suffice)

    def _suffice(
        self, rules: PreemptionRules, row: int, shape: Shape, level: int, rows: np.ndarray, marks: np.ndarray
    ) -> bool:
        if self._trials <= 0:
            return False
        self._trials -= 1
        victims = candidates_of(self.diagnosis.cycle, rows, marks & PASSED)
        admits = rules.quota(level)
        if admits is not None and not admits(victims):
            return False
        if not fits_without(rules.entitlements, rows.tolist(), row, shape):
            return False
        policy = self.diagnosis.profile.preemption
        cap = int(policy.most * shape.gpu_milli) if policy is not None else 0
        if victims.capped.sum() <= cap:
            return True
        with self.diagnosis.rolled_back():
            return search(self.diagnosis.placer, shape, row, victims, cap, admits)[0] is not None

    def _fact(self, last: int, at: int, jobs: int) -> ProtectedVictims:
        entitlements, state = self._entitlements, self.diagnosis.state
        assert entitlements is not None
        row = int(entitlements.rows[last])
        names = {index: name for name, index in state.queues.items()}
        queue = names.get(int(state.jobs[row, J_QUEUE]), "")
        return ProtectedVictims(queue, jobs, at - int(entitlements.started[last]), at)


def protected_victims(
    diagnosis: Diagnosis, row: int, reason: Reason | None
) -> tuple[AwaitsNode | ProtectedVictims | VictimsTooLarge, ...]:
    """Return which of `node_wait`, `min_run` and `most` keep a job that lacks capacity or quota from preempting."""
    if not isinstance(reason, NoFit | OverQuota):
        return ()
    node = awaits_node(diagnosis.profile, diagnosis.state, row, diagnosis.now) if isinstance(reason, NoFit) else None
    found = MinRunWaits(diagnosis).of(row)
    if node is not None:
        return (node, found) if found is not None and found.at > node.at else (node,)
    if found is not None:
        return (found,)
    policy, large = diagnosis.profile.preemption, victims_too_large(diagnosis, row)
    if policy is None or large is None:
        return ()
    job = diagnosis.state.ids[large.rows[0]]
    return (VictimsTooLarge(job, len(large.rows), large.held, large.asked, policy.most),)


def awaits_node(profile: Profile, state: ClusterState, row: int, now: int) -> AwaitsNode | None:
    """Return until when a job that has quota waits for an autoscaler's node instead of preempting. None if the job does
    not wait for a node, or may not preempt.
    """
    at = awaits_node_until(state, row, now)
    if not at or profile.preemption is None or not state.shape_of(row).ask.preempts:
        return None
    wait = at - state.jobs.item(row, J_SINCE)
    return AwaitsNode("" if wait == state.shape_of(row).ask.node_wait else state.live[row].queue, wait, at)
