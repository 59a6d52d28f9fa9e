"""Keeps the pod classes of affinity rules up to date: a new rule may match pods that already run.

A job of the core states, for each group, the classes that all pods of the group have. Other classes of single pods, and
pods that belong to no job, are counted by node apart from the jobs (`PodsCounted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from kant.kube.objects.views import Pod
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.pod_rules import amounts_of
from kant.model.errors import InputError
from kant.model.event import JobRuled, PodsCounted
from kant.model.preference import Preferences
from kant.model.rules import PodAntiAffinity, PodRules


class RuleChanges:
    """Reports changes in the classes and affinity rules of pods to the core, as events."""

    def __init__(self, transitions: Transitions, members: Membership) -> None:
        self.transitions = transitions
        self.core = transitions.core
        self.mirror = transitions.mirror
        self.translation = transitions.translation
        self.members = members
        self.touched: dict[str, None] = {}  # uids of pods that may have new labels, or are ending
        self._beside: dict[str, tuple[dict[str, int], dict[str, int]]] = {}  # counts outside the jobs, by node
        self._counted: set[str] = set()  # uids of the pods in these counts

    def take(self) -> dict[str, None]:
        """Emit the changed rules of jobs. Returns the keys of waiting workloads whose jobs must be created again."""
        new, again = self.translation.rule_book.take_new(), dict[str, None]()
        self.translation.stale |= self.translation.rule_book.is_overgrown
        touched, self.touched = self.touched, {}
        if new:
            about = (uid for uid, pod in self.mirror.pods.items() if any(rule.is_about(pod) for rule in new))
            touched.update(dict.fromkeys(about))
        for key in dict.fromkeys(key for uid in touched if (key := self.members.key_of.get(uid)) is not None):
            workload = self.members.by_key.get(key)
            if workload is None:
                continue
            if workload.job and not self._rule(workload):
                again[key] = None
            for uid in self.members.pods_of.get(key, ()):
                pod = self.mirror.pods.get(uid)
                if pod is not None and pod.spec.node_name:
                    self.transitions.changed[uid, pod.spec.node_name] = None
        self.translation.eligible.topologies.tell(self.core)
        return again

    def _rule(self, workload: Workload) -> bool:
        """Update the rules of a job. Returns False if the job was ended: it waited, and its groups have changed."""
        groups = [list[PodRules]() for _ in workload.kinds]
        waits = workload.phase is not Phase.PLACED
        pods, members = self.mirror.pods, [member.pod for member in workload.members]
        apart = self.translation.apart(workload.key, members) if waits else None
        placed = [(slot.group, slot.pod, slot.expects) for slot in workload.slots]
        for group, uid, pod in (*placed, *((one.group, one.pod.metadata.uid, one.pod) for one in workload.members)):
            found = pods.get(uid) or pod
            if found is not None and group < len(groups):
                groups[group].append(self._rules(workload, found, apart))
        if waits and (any(set(own) - {own[0]} for own in groups if own) or self._likes_others(workload)):
            self.transitions.end(workload)
            return False
        now = [
            kind._replace(rules=_common(own)) if own else kind for kind, own in zip(workload.kinds, groups, strict=True)
        ]
        if now != workload.kinds:
            workload.kinds = now
            self.core.happen(JobRuled(self.core.now, workload.job, tuple(kind.rules for kind in now)))
        return True

    def _likes_others(self, workload: Workload) -> bool:
        """Whether a waiting pod's preferences for other pods have changed since its job was created."""
        state = self.core.state
        job = state.live.get(state.rows[workload.job])
        if job is None:  # the job has ended, and the workload is not updated yet
            return False
        said = job.preferences or (Preferences(),) * len(workload.kinds)
        pulls = self.translation.rule_book.pulls
        return any(pulls(one.pod) != said[one.group].pods for one in workload.members if one.group < len(said))

    def _rules(self, workload: Workload, pod: Pod, apart: PodAntiAffinity | None) -> PodRules:
        try:
            return self.translation.rules(pod, apart)
        except InputError:
            return self.translation.rules_there(pod, foreign=True)

    def count_beside(self, changed: Collection[tuple[str, str]]) -> None:
        """Emit how many pods outside the jobs are on the nodes of these pods (uid, node), which may have changed.

        A node may have hundreds of pods. So a pod that is not and was not in the counts causes no new count.
        """
        pods, counted, again = self.mirror.pods, self._counted, dict[str, None]()
        for uid, node in changed:
            if uid in counted or (uid in pods and any(self._beyond(pods[uid]))):
                again[node] = None
        for uid, _ in changed:
            counted.discard(uid)
        for node in again:
            if node not in self.core.state.node_index:
                self._beside.pop(node, None)
                continue
            classes, amounts = Counter[str](), Counter[str]()
            for pod in self.translation.filters.promises.on(node):
                own = self._beyond(pod)
                classes.update(own[0])
                amounts.update(own[1])
                if any(own):
                    counted.add(pod.metadata.uid)
            if (dict(classes), dict(amounts)) != self._beside.get(node, ({}, {})):
                self._beside[node] = dict(classes), dict(amounts)
                self.core.happen(PodsCounted(self.core.now, node, dict(classes), dict(amounts)))

    def _beyond(self, pod: Pod) -> tuple[list[str], dict[str, int]]:
        """Return the classes of a pod, and its amounts of resources by name, that its job does not state."""
        said, own = self._said(pod), self.translation.rule_book.classes(pod)
        known = said.classes if said is not None else ()
        return [name for name in own if name not in known], dict(amounts_of(pod)) if said is None else {}

    def _said(self, pod: Pod) -> PodRules | None:
        """Return the rules that a pod's job states for the pod; None if the pod is in no placed job."""
        uid = pod.metadata.uid
        workload = self.members.by_key.get(self.members.key_of.get(uid, ""))
        if workload is None or not workload.job or workload.phase is not Phase.PLACED:
            return None
        group = next((slot.group for slot in workload.slots if slot.pod == uid), -1)
        return workload.kinds[group].rules if 0 <= group < len(workload.kinds) else None


def _common(rules: list[PodRules]) -> PodRules:
    """Return the rules of the pods of one group. Its classes are those that all of these pods have."""
    first = rules[0]
    classes = [name for name in first.classes if all(name in one.classes for one in rules)]
    return PodRules(tuple(classes), first.anti_affinity, first.affinity, first.spread, first.amounts)
