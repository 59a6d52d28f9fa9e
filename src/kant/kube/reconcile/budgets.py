"""Disruption budgets: which pods a PodDisruptionBudget covers, and which jobs it protects from preemption now.

A job may be chosen as a victim only if each budget allows at least as many disruptions as it covers pods of the job.
This module only tells the core which jobs are protected (`JobProtected`). The Eviction API has the last word.

Source: k8s.io/kubernetes, pkg/registry/core/pod/storage/eviction.go, on which pods count against a budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.views import DisruptionBudget, Pod
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.reconcile.workloads import Workloads
from kant.kube.translate.selectors import OPERATORS, selects
from kant.model.event import JobProtected

Name = tuple[str, str]
"""Namespace and name of a budget."""


def covers(budget: DisruptionBudget, pod: Pod) -> bool:
    """Whether the budget selects the pod. Never for a pod without labels, or a budget without a selector."""
    selector, labels = budget.spec.selector, pod.metadata.labels
    if selector is None or not labels or pod.metadata.namespace != budget.metadata.namespace:
        return False
    if any(one.operator not in OPERATORS[:4] for one in selector.match_expressions):
        return False
    return selects(selector, labels)


def allowed(budget: DisruptionBudget) -> int:
    """Return how many disruptions a budget allows now. 0 while its status describes an older version of the budget."""
    status = budget.status
    return max(status.disruptions_allowed, 0) if status.observed_generation >= budget.metadata.generation else 0


def takes(budget: DisruptionBudget, pod: Pod) -> bool:
    """Whether evicting a covered pod uses up one of the allowed disruptions: maybe not if the pod is not ready."""
    if any(one.type == "Ready" and one.status == "True" for one in pod.status.conditions):
        return True
    status = budget.status
    healthy = status.current_healthy >= status.desired_healthy > 0
    return not healthy and budget.spec.unhealthy_pod_eviction_policy != "AlwaysAllow"


class DisruptionBudgets:
    """Which of the mirror's budgets cover which of its pods, updated as pods and budgets change."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._of: dict[str, dict[Name, None]] = {}  # by pod uid: its budgets; only covered pods
        self._pods: dict[Name, dict[str, None]] = {}
        self._known: dict[Name, DisruptionBudget] = {}
        self._in: dict[str, dict[Name, None]] = {}  # by namespace

    def follow(self, pods: Iterable[str], names: Iterable[Name]) -> set[str]:
        """Record changed pods (uids) and budgets. Returns the uids of pods whose protection may have changed."""
        changed: set[str] = set()
        spaces = {name[0] for name in names if self._take(name, changed)}
        if spaces:
            pods = [*pods, *(uid for uid, pod in self.mirror.pods.items() if pod.metadata.namespace in spaces)]
        if self._in:
            for uid in pods:
                changed.update(self._place(uid))
        return changed

    def _take(self, name: Name, changed: set[str]) -> bool:
        """Record a budget. Returns whether it may cover other pods than before."""
        before, now = self._known.get(name), self.mirror.budgets.get(name)
        changed.update(self._pods.get(name, ()))
        if now is not None:
            self._known[name] = now
            self._in.setdefault(name[0], {})[name] = None
            self._pods.setdefault(name, {})
            return before is None or before.spec.selector != now.spec.selector
        if before is not None:
            del self._known[name], self._in[name[0]][name]
            for uid in self._pods.pop(name):
                del self._of[uid][name]
                if not self._of[uid]:
                    del self._of[uid]
            if not self._in[name[0]]:
                del self._in[name[0]]
        return False

    def _place(self, uid: str) -> Iterator[str]:
        pod = self.mirror.pods.get(uid)
        was = self._of.get(uid, {})
        now = {n: None for n in self._in.get(pod.metadata.namespace, ()) if covers(self._known[n], pod)} if pod else {}
        if was or now:
            yield uid
        if was != now:
            for name in was:
                del self._pods[name][uid]
            for name in now:
                self._pods[name][uid] = None
            self._of[uid] = now
        if not now:
            self._of.pop(uid, None)

    def refuses(self, pods: Iterable[Pod]) -> tuple[Pod, str] | None:
        """Return the first of these pods that may not be evicted after the pods before it, and why; or None."""
        taken: Counter[Name] = Counter()
        for pod in pods:
            names = self._of.get(pod.metadata.uid, {})
            if (
                not names
                or pod.status.phase == "Pending"
                or is_over(pod)
                or pod.metadata.deletion_timestamp is not None
            ):
                continue  # the Eviction API ignores budgets for such a pod
            if len(names) > 1:
                several = ", ".join(sorted(name for _, name in names))
                return pod, f"several disruption budgets cover one of its pods ({several}): the Eviction API refuses it"
            (name,) = names
            taken[name] += takes(self._known[name], pod)
            if taken[name] > allowed(self._known[name]):
                return pod, f"its disruption budget {name[1]} does not allow it"
        return None


class Protection:
    """Tells the core which running jobs may not be preempted, because of a budget or a refused eviction."""

    def __init__(self, workloads: Workloads, budgets: DisruptionBudgets) -> None:
        self.all = workloads
        self.budgets = budgets

    def follow(self, pods: Iterable[str], names: Iterable[Name]) -> None:
        """Update the protection of jobs after changes to pods (uids) and budgets. New jobs, in
        `Transitions.unprotected`, are updated too."""
        members, transitions = self.all.members, self.all.transitions
        for uid in self.budgets.follow(pods, names):
            workload = members.by_key.get(members.key_of.get(uid, ""))
            if workload is not None:
                transitions.unprotected[workload] = None
        unprotected, transitions.unprotected = transitions.unprotected, {}
        for workload in unprotected:
            self._say(workload)

    def _say(self, workload: Workload) -> None:
        core = self.all.core
        if workload.phase is not Phase.PLACED or not workload.job or workload.foreign:
            return
        by = self._by(workload)
        said = workload.protected[1] if workload.protected[0] == workload.job else ""
        if by == said:
            return
        if core.state.live[core.state.rows[workload.job]].preemptible:
            workload.protected = workload.job, by
            core.happen(JobProtected(core.now, workload.job, by))

    def _by(self, workload: Workload) -> str:
        if workload.protected_until > self.all.core.clock():
            return "it could not be evicted"
        pods, slots = self.all.mirror.pods, workload.slots
        if 0 < workload.floor < len(slots):  # the pods above the floor may be evicted while the others run
            slots = slots[workload.floor :]
        found = self.budgets.refuses(pods[slot.pod] for slot in slots if slot.pod in pods)
        return found[1] if found is not None else ""
