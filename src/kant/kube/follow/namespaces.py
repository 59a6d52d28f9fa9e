"""Namespaces, and the pods whose required affinity or anti-affinity selects namespaces by labels.

The mirror replaces the selector in such a pod by the names of the namespaces, so that no other code needs the labels of
namespaces. Source: kube-scheduler's plugin InterPodAffinity, which does the same before it filters nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from kant.kube.objects.views import Affinity, Namespace, Pod
from kant.kube.translate.neighbours import in_namespaces, selects_namespaces

Labels = dict[str, str] | None


@dataclass(slots=True)
class Namespaces:
    """`labels` has the labels of each namespace by its name; None if Kant may not list namespaces.

    `selecting` has, by uid, the original affinity of pods. `touched`: pods select other namespaces than before;
    `relabelled`: namespaces were added, deleted or relabelled.
    """

    labels: dict[str, Labels] | None = field(default_factory=dict)
    selecting: dict[str, Affinity] = field(default_factory=dict)
    touched: bool = False
    relabelled: bool = False

    def resolved(self, pod: Pod) -> Pod:
        """Return the pod with the names of the namespaces that it selects; unchanged if Kant may not list them."""
        affinity, uid = pod.spec.affinity, pod.metadata.uid
        if affinity is None or self.labels is None:
            return pod
        if selects_namespaces(affinity):
            self.selecting[uid] = affinity
        said = self.selecting.get(uid)
        if said is None:
            return pod
        now = in_namespaces(said, self.labels)
        return pod if now == affinity else replace(pod, spec=replace(pod.spec, affinity=now))

    def note(self, name: str, namespace: Namespace | None) -> None:
        """Record a new or relabelled namespace; None: it was deleted."""
        self.labels = self.labels or {}
        self.labels.pop(name, None)
        if namespace is not None:
            self.labels[name] = namespace.metadata.labels
        self.relabelled = True

    def again(self, pods: Iterable[Pod]) -> list[Pod]:
        """Return the updated version of each of these pods that now selects other namespaces than before."""
        asking = (pod for pod in pods if pod.spec.affinity is not None)
        return [now for pod in asking if (now := self.resolved(pod)) is not pod]
