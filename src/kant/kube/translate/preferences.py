"""Which nodes a pod prefers, as objects of the model, by preferred node affinity and by soft taints.

Source: kube-scheduler's plugins NodeAffinity and TaintToleration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kant.kube.objects import views as k
from kant.kube.translate.node_facts import ANY_TAINT, SOFTLY_TAINTED, SoftTaint
from kant.kube.translate.selectors import Selection, checked_term, tolerates
from kant.model.preference import LikedNodes, Preferences


def preferences_of(
    pod: k.Pod, taints: Iterable[SoftTaint], node_sets: Callable[[Selection], str], where: str
) -> Preferences:
    """Return which nodes a pod prefers or avoids. `taints` are all soft taints of nodes. Raises InputError.

    `node_sets` returns the name of the node set of a selection.
    """
    affinity = pod.spec.affinity
    asked = affinity.node_affinity if affinity is not None else None
    liked: dict[str, int] = {}
    for one in asked.preferred_during_scheduling_ignored_during_execution if asked is not None else ():
        term = checked_term(one.preference, f"{where}.affinity.nodeAffinity")
        if one.weight and term.requirements:  # an empty term selects nothing
            name = node_sets(Selection(term.requirements, None, ANY_TAINT))
            liked[name] = liked.get(name, 0) + one.weight
    return Preferences(
        tuple(LikedNodes(name, weight) for name, weight in liked.items()),
        tuple(node_sets(_nodes_with(taint)) for taint in taints if not _stands(pod, taint)),
    )


def _stands(pod: k.Pod, taint: SoftTaint) -> bool:
    return any(tolerates(one, (*taint, "PreferNoSchedule")) for one in pod.spec.tolerations)


def _nodes_with(taint: SoftTaint) -> Selection:
    key, value = taint
    return Selection((k.Requirement(f"{SOFTLY_TAINTED}{key}={value}", "Exists"),), None, ANY_TAINT)
