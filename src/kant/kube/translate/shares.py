"""What part of a GPU a pod asks for, which depends on the nodes that it may go to.

A node gives out whole GPUs, or replicas of them. A pod that asks for `nvidia.com/gpu` means whole GPUs where a node
that it selects has some, and replicas where all of them have replicas. Where replicas of different sizes are in
question it is counted with the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from kant.kube.objects import views as k
from kant.kube.translate.flavors import admits
from kant.kube.translate.resources import key_of, others_of, requests_of, used_of
from kant.kube.translate.selectors import Selection, selection_of
from kant.kube.translate.sharing import MANY, NVIDIA, ONE, SHARED, SHARING, WHOLE, Sharing, sharing_of
from kant.model.errors import InputError
from kant.model.job import Demand

NO_REPLICAS = k.Requirement(
    SHARING, "NotIn", tuple(f"{word} {name}" for word in (MANY, ONE) for name in (NVIDIA, SHARED))
)


class Asked(NamedTuple):
    """What a pod asks for, and what of GPUs its node must have besides; `why` says why no node has that."""

    demand: Demand
    nodes: tuple[k.Requirement, ...] = ()
    why: str = ""


class GpuShares:
    """Knows how the nodes of a state share their GPUs."""

    def __init__(self) -> None:
        self._views: list[k.Node] = []
        self._sharing: dict[str, Sharing] = {}  # of the nodes whose GPUs are shared
        self._known: dict[Hashable, Asked] = {}

    def begin(self, nodes: Iterable[k.Node]) -> None:
        """Learn of all nodes there are."""
        self._views = [view for view in nodes if _has_gpus(view)]
        found = {view.metadata.name: _sharing(view) for view in self._views}
        self._sharing = {name: sharing for name, sharing in found.items() if sharing != WHOLE}
        self._known = {}

    def is_new(self, view: k.Node) -> bool:
        """Whether a node shares its GPUs in another way than when they were learned."""
        return (_sharing(view) if _has_gpus(view) else WHOLE) != self._sharing.get(view.metadata.name, WHOLE)

    def demand(self, pod: k.Pod, where: str = "spec") -> Demand:
        """What the pod asks for. Raises InputError."""
        return self._asked(pod, where).demand

    def requirements(self, pod: k.Pod) -> tuple[k.Requirement, ...]:
        """What of GPUs the node of the pod must have, besides what the pod says itself. Raises InputError."""
        return self._asked(pod, "spec").nodes

    def why_nowhere(self, pod: k.Pod) -> str:
        """Why no node shares its GPUs so that the pod could have what it asks for; "" where one does."""
        return self._asked(pod, "spec").why

    def used(self, pod: k.Pod) -> Demand:
        """What a pod takes of the node that it is bound to, whatever it says; nothing where nobody can tell."""
        used = used_of(pod.spec)
        sharing = self._sharing.get(pod.spec.node_name, WHOLE)
        replicas = used.gpus or others_of(pod.spec).get(SHARED, 0)
        return used if sharing == WHOLE or not replicas else replace(used, gpus=replicas, milli=sharing.part)

    def _asked(self, pod: k.Pod, where: str) -> Asked:
        asked = requests_of(pod.spec, where)
        replicas = asked.demand.gpus if asked.kind == NVIDIA else dict(asked.others).get(SHARED, 0)
        if not self._sharing or not replicas:
            return Asked(asked.demand)
        select = selection_of(pod.spec, where)
        key = (key_of(pod.spec), select)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(asked.demand, asked.kind or SHARED, replicas, select)
        return found

    def _find(self, whole: Demand, kind: str, replicas: int, select: Selection) -> Asked:
        if kind == NVIDIA and any(self._eligible(select, kind, lambda sharing: sharing.replicas == 1)):
            return Asked(whole, (NO_REPLICAS,))
        words = tuple(f"{word} {kind}" for word in ((MANY, ONE) if replicas == 1 else (MANY,)))
        parts = [sharing.part for sharing in self._eligible(select, kind, lambda sharing: sharing.word in words)]
        if not parts and any(self._eligible(select, kind, lambda sharing: sharing.single)):
            why = f"the nodes that it selects give a pod one replica of a GPU, and it asks for {replicas}"
            return Asked(whole, (NO_REPLICAS,), why)
        if not parts:
            return Asked(whole, (NO_REPLICAS,) if kind == NVIDIA else ())
        return Asked(replace(whole, gpus=replicas, milli=max(parts)), (k.Requirement(SHARING, "In", words),))

    def _eligible(self, select: Selection, kind: str, holds: Callable[[Sharing], bool]) -> Iterable[Sharing]:
        """How the nodes share their GPUs that will do, and that give out GPUs of this name."""
        for view in self._views:
            sharing = self._sharing.get(view.metadata.name, WHOLE)
            if holds(sharing) and _count(view, kind) and admits(select, view):
                yield sharing


def _sharing(view: k.Node) -> Sharing:
    """As `sharing_of`; whole for a node that cannot be understood, where nothing is placed."""
    try:
        return sharing_of(view)
    except InputError:
        return WHOLE


def _has_gpus(view: k.Node) -> bool:
    return any(_count(view, name) for name in (NVIDIA, SHARED))


def _count(view: k.Node, name: str) -> bool:
    return str((view.status.allocatable or view.status.capacity or {}).get(name, 0)) != "0"
