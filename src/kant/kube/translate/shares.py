"""Which share of a GPU a pod requests. The answer depends on the nodes on which the pod may run.

A node offers whole GPUs, replicas of GPUs, or parts of GPUs by HAMi, all under one resource name. A pod that requests
only `nvidia.com/gpu` means whole GPUs if some node that it selects has whole GPUs, and replicas if all of them have
replicas. A pod that requests memory or cores of a GPU means HAMi. If parts may differ in size, the pod counts with the
largest one. A pod that requests `amd.com/gpu` runs on no node of another vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from kant.kube.objects import views as k
from kant.kube.translate.hami_devices import NVIDIA, REGISTER
from kant.kube.translate.node_facts import admits
from kant.kube.translate.resources import SHARES, PodRequests, key_of, others_of, requests_of, used_of
from kant.kube.translate.selectors import Selection, selection_of
from kant.kube.translate.sharing import (
    HAMI,
    KIND,
    LEAST_MEMORY,
    MANY,
    ONE,
    SHARED,
    SHARING,
    WHOLE,
    Sharing,
    kind_of,
    sharing_of,
)
from kant.model.errors import InputError
from kant.model.job import Demand
from kant.model.units import GPU

MIG = "nvidia.com/mig-"
"""Prefix of the names of resources that are MIG devices."""

REPLICATED = tuple(f"{word} {name}" for word in (MANY, ONE) for name in (NVIDIA, SHARED))
NO_REPLICAS = k.Requirement(SHARING, "NotIn", REPLICATED)
NO_SHARES = k.Requirement(SHARING, "NotIn", (*REPLICATED, HAMI))
NO_HAMI = f"no node that it selects shares its GPUs with HAMi (annotation {REGISTER})"
Holding = tuple[Demand, int]
"""What a pod holds of its node, and a bit mask of the GPUs on the node; 0: unknown."""


class Asked(NamedTuple):
    """What a pod requests, and its requirements on how a node shares GPUs. `why`: why no node meets them, or ""."""

    demand: Demand
    nodes: tuple[k.Requirement, ...] = ()
    why: str = ""


class GpuShares:
    """How the nodes of a state share their GPUs."""

    def __init__(self) -> None:
        self._names: set[str] = set()  # names of the known nodes
        self._views: dict[str, k.Node] = {}
        self._sharing: dict[str, Sharing] = {}  # by node, if its GPUs are shared
        self._kinds: dict[str, str] = {}  # by node with GPUs of a device plugin: the resource
        self._all_kinds: set[str] = set()
        self._migs: dict[str, tuple[k.Node, dict[str, int]]] = {}  # with MIG: milli-GPUs by resource
        self._known: dict[tuple[Hashable, Selection], tuple[k.PodSpec, Asked]] = {}

    def begin(self, nodes: Collection[k.Node]) -> None:
        """Start over for a new state: read from all nodes how they share their GPUs."""
        self._names = {view.metadata.name for view in nodes}
        self._views = {view.metadata.name: view for view in nodes if _has_gpus(view)}
        found = {view.metadata.name: _sharing(view) for view in nodes}
        self._sharing = {name: sharing for name, sharing in found.items() if sharing != WHOLE}
        self._kinds = {view.metadata.name: kind for view in nodes if (kind := kind_of(view))}
        self._all_kinds = set(self._kinds.values())
        self._migs = {view.metadata.name: (view, worths) for view in nodes if (worths := _worths(view))}
        self._known = {}

    def is_new(self, view: k.Node) -> bool:
        """Whether the state must be rebuilt for a node: the node shares GPUs in a new way, has GPUs of a new vendor, or
        has new labels or taints that change what requests mean.
        """
        name = view.metadata.name
        if name not in self._names:
            return self._joins(view)
        known = self._sharing.get(name, WHOLE), self._kinds.get(name, ""), self._migs.get(name, (view, {}))[1]
        if (_sharing(view), kind_of(view), _worths(view)) != known:
            return True
        before = self._views.get(name) or self._migs.get(name, (view, {}))[0]
        if name in self._views:
            self._views[name] = view
        if name in self._migs:
            self._migs[name] = view, self._migs[name][1]
        if (before.metadata.labels, before.spec.taints) == (view.metadata.labels, view.spec.taints):
            return False
        return self._ask_otherwise([key for key in self._known if admits(key[1], before) != admits(key[1], view)])

    def _joins(self, view: k.Node) -> bool:
        """Record a node that joins. Returns whether its kind of GPUs is new, or it changes what known requests mean."""
        name, kind = view.metadata.name, kind_of(view)
        if _sharing(view) != WHOLE or _worths(view) or (kind and kind not in self._all_kinds):
            return True
        self._names.add(name)
        if kind:
            self._kinds[name] = kind
        if not _has_gpus(view):
            return False
        self._views[name] = view
        return self._ask_otherwise([key for key in self._known if admits(key[1], view)])

    def _ask_otherwise(self, keys: list[tuple[Hashable, Selection]]) -> bool:
        """Whether the requests with these keys now mean something else than before."""
        asked = [self._known.pop(key) for key in keys]
        return any(self._shared(requests_of(spec, "spec"), spec, "spec") != was for spec, was in asked)

    def forget(self, name: str) -> None:
        """Forget a node that is gone."""
        self._names.discard(name)
        for known in (self._views, self._sharing, self._kinds, self._migs):
            known.pop(name, None)

    def names_devices(self, node: str) -> bool:
        """Whether pods on a node are annotated with their GPUs, so that Kant decides which GPUs they get."""
        return bool(self._sharing.get(node, WHOLE).devices)

    # --- waiting pods ---------------------------------------------------------------------------------------------

    def demand(self, pod: k.Pod, where: str = "spec") -> Demand:
        """Return the GPUs or shares of GPUs, CPU and memory that a pod requests. Raises InputError."""
        return self._asked(pod, where).demand

    def requirements(self, pod: k.Pod) -> tuple[k.Requirement, ...]:
        """Return a pod's requirements on how its node shares GPUs. Raises InputError."""
        return self._asked(pod, "spec").nodes

    def why_nowhere(self, pod: k.Pod) -> str:
        """Return why no node shares its GPUs as the pod needs; "" if a node does."""
        return self._asked(pod, "spec").why

    def _asked(self, pod: k.Pod, where: str) -> Asked:
        asked = requests_of(pod.spec, where)
        found, kinds = self._shared(asked, pod.spec, where), self._all_kinds
        if not asked.kind or kinds <= {asked.kind}:
            return found
        if asked.kind in pod.spec.by_claim:  # at nodes without a device plugin, too
            return found._replace(nodes=(*found.nodes, k.Requirement(KIND, "NotIn", (*sorted(kinds - {asked.kind}),))))
        why = found.why if asked.kind in kinds else f"no node has {asked.kind}"
        return Asked(found.demand, (*found.nodes, k.Requirement(KIND, "In", (asked.kind,))), why)

    def _shared(self, asked: PodRequests, spec: k.PodSpec, where: str) -> Asked:
        """Return what a pod requests, without the requirement on the vendor of the node's GPUs."""
        parts = [one for one in asked.others if _mig_milli(one[0]) and one[0] not in spec.by_claim]
        if parts:
            return self._find_mig(asked.demand, parts, spec, where)
        shares = _asks_for_shares(spec)
        replicas = asked.demand.gpus if asked.kind == NVIDIA else dict(asked.others).get(SHARED, 0)
        if not shares and (not self._sharing or not replicas):
            return Asked(asked.demand)
        select = selection_of(spec, where)
        key = (key_of(spec), select)
        known = self._known.get(key)
        if known is not None:
            return known[1]
        if shares:
            found = self._find_part(asked.demand, spec, where, select)
        else:
            found = self._find(asked.demand, asked.kind or SHARED, replicas, select, _fits_hami(spec))
        self._known[key] = spec, found
        return found

    def _find(self, whole: Demand, kind: str, replicas: int, select: Selection, fits: bool) -> Asked:
        """Return a request for whole GPUs if a selected node offers them, otherwise for replicas."""
        own = (NO_REPLICAS if fits else NO_SHARES,)
        if kind == NVIDIA and any(
            self._eligible(select, kind, lambda one: one.replicas == 1 and (fits or not one.devices))
        ):
            return Asked(whole, own)
        words = tuple(f"{word} {kind}" for word in ((MANY, ONE) if replicas == 1 else (MANY,)))
        parts = [one.part for one in self._eligible(select, kind, lambda one: one.word in words)]
        if not parts and any(self._eligible(select, kind, lambda one: one.single)):
            why = f"the nodes that it selects allow one replica of a GPU for each pod, and it asks for {replicas}"
            return Asked(whole, own, why)
        if not parts:
            return Asked(whole, own if kind == NVIDIA else ())
        return Asked(replace(whole, gpus=replicas, milli=max(parts)), (k.Requirement(SHARING, "In", words),))

    def _find_part(self, whole: Demand, spec: k.PodSpec, where: str, select: Selection) -> Asked:
        """Return a request for parts of GPUs by HAMi. Raises InputError."""
        from kant.kube.translate import hami  # few clusters run HAMi

        part = next(one for one in hami.parts_of(spec, where) if one.gpus)
        nodes: tuple[k.Requirement, ...] = (k.Requirement(SHARING, "In", (HAMI,)),)
        if not _fits_hami(spec):
            raise InputError(f"{where}.initContainers", f"no {NVIDIA} in a pod with shares of GPUs", NVIDIA)
        found = [one.devices for one in self._eligible(select, NVIDIA, lambda one: bool(one.devices))]
        if not found:
            return Asked(whole, nodes, NO_HAMI)
        if part.memory:
            nodes = (*nodes, k.Requirement(LEAST_MEMORY, "Gt", (str(part.memory - 1),)))
            found = [devices for devices in found if all(part.memory <= one.memory for one in devices)]
        if not found:
            return Asked(whole, nodes, f"no HAMi node that it selects has GPUs of {part.memory} MiB each")
        milli = max(part.milli_of(device) for devices in found for device in devices)
        return Asked(replace(whole, milli=min(milli, GPU)), nodes)

    def _find_mig(self, whole: Demand, parts: list[tuple[str, int]], spec: k.PodSpec, where: str) -> Asked:
        """Return a request for MIG devices. Beside whole GPUs or shares of GPUs, MIG devices are not counted."""
        if whole.gpus or _asks_for_shares(spec):
            return Asked(whole)
        select = selection_of(spec, where)
        key = (key_of(spec), select)
        if key not in self._known:
            able = [worths for view, worths in self._migs.values() if admits(select, view)]
            worths = {name: max((one[name] for one in able if name in one), default=0) for name, _ in parts}
            worths = {name: milli or _mig_milli(name) for name, milli in worths.items()}
            self._known[key] = spec, Asked(_with_parts(whole, parts, worths))
        return self._known[key][1]

    def _eligible(self, select: Selection, kind: str, holds: Callable[[Sharing], bool]) -> Iterator[Sharing]:
        """Yield how GPUs are shared by each matching node that offers GPUs as `kind`."""
        for view in self._views.values():
            sharing = self._sharing.get(view.metadata.name, WHOLE)
            if holds(sharing) and _count(view, kind) and admits(select, view):
                yield sharing

    # --- bound pods -----------------------------------------------------------------------------------------------

    def used(self, pod: k.Pod) -> Demand:
        """Return what a bound pod uses of its node, even if its spec is invalid; zeros if that is unknown."""
        return self.holdings(pod)[0][0]

    def holdings(self, pod: k.Pod) -> list[Holding]:
        """Return what a bound pod holds of its node: one item, or more if its parts of GPUs differ in size."""
        used = used_of(pod.spec)
        if pod.spec.node_name in self._migs and not used.gpus:
            worths = self._migs[pod.spec.node_name][1]
            parts = [(name, count) for name, count in sorted(others_of(pod.spec).items()) if name in worths]
            if parts:
                return [(_with_parts(used, parts, worths), 0)]
        sharing = self._sharing.get(pod.spec.node_name, WHOLE)
        if sharing.devices:
            from kant.kube.translate.hami import held

            return _held(used, held(pod, sharing.devices))
        replicas = used.gpus or others_of(pod.spec).get(SHARED, 0)
        shared = sharing != WHOLE and replicas
        return [(replace(used, gpus=replicas, milli=sharing.part) if shared else used, 0)]


def _with_parts(whole: Demand, parts: list[tuple[str, int]], worths: Mapping[str, int]) -> Demand:
    """Return the demand with the names of these MIG devices, and the sum of their thousandths of a GPU."""
    milli = sum(count * worths[name] for name, count in parts)
    return replace(whole, milli=milli, mig=",".join(name for name, _ in parts))


def _held(used: Demand, devices: dict[int, int]) -> list[Holding]:
    """Return the holdings of a pod with HAMi; the first has CPU and memory. Without `devices`: unknown whole GPUs."""
    if not devices:
        return [(used, 0)]
    masks: dict[int, int] = {}
    for number, milli in sorted(devices.items()):
        masks[milli] = masks.get(milli, 0) | 1 << number
    found = [(Demand(mask.bit_count(), milli), mask) for milli, mask in masks.items()]
    (first, mask), *rest = found
    return [(replace(first, cpu=used.cpu, memory=used.memory), mask), *rest]


def _asks_for_shares(spec: k.PodSpec) -> bool:
    for one in (*spec.containers, *spec.init_containers):
        for amounts in (one.resources.requests, one.resources.limits):
            if amounts and not amounts.keys().isdisjoint(SHARES):
                return True
    return False


def _fits_hami(spec: k.PodSpec) -> bool:
    """Whether HAMi can give the pod GPUs: no init container asks for any."""
    return not any(NVIDIA in (one.resources.limits or {}) for one in spec.init_containers)


def _sharing(view: k.Node) -> Sharing:
    """Return `sharing_of`; WHOLE for a malformed node, which gets no pods."""
    try:
        return sharing_of(view)
    except InputError:
        return WHOLE


def _mig_milli(resource: str, labels: dict[str, str] | None = None) -> int:
    """Return the thousandths of a GPU of one MIG device; 0 for any other resource."""
    if not resource.startswith(MIG):
        return 0
    from kant.kube.translate.mig_devices import milli_of  # imported with the first MIG device

    return milli_of(resource, labels)


def _worths(view: k.Node) -> dict[str, int]:
    """Return, for each MIG resource of a node, how many thousandths of a GPU one device is."""
    amounts = view.status.capacity or view.status.allocatable or {}
    worths = {name: _mig_milli(name, view.metadata.labels) for name, amount in amounts.items() if str(amount) != "0"}
    return {name: milli for name, milli in worths.items() if milli}


def _has_gpus(view: k.Node) -> bool:
    return any(_count(view, name) for name in (NVIDIA, SHARED))


def _count(view: k.Node, name: str) -> bool:
    return str((view.status.allocatable or view.status.capacity or {}).get(name, 0)) != "0"
