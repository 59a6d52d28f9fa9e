"""CSI volumes: how many more a node may attach, and whether there is storage for volumes that are to be made.

Source: kube-scheduler's plugins NodeVolumeLimits (csi.go) and VolumeBinding (hasEnoughCapacity, capacitySufficient,
nodeHasAccess). There each claim is compared with the capacity by itself; here all claims of a gang, and those that
others wait for, share it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from kant.kube.objects import storage_views as v
from kant.kube.objects import views as k
from kant.kube.objects.quantity import milli
from kant.kube.translate.local_volumes import asked_of, key_of
from kant.kube.translate.selectors import selects
from kant.kube.translate.volumes import NO_PROVISIONER, ClaimName, Storage, claims_of, is_bound, unbound_claims
from kant.model.errors import InputError

Attached = tuple[str, str]
"""Driver, and the handle of a volume; of one that is to be made its claim."""

CapacityName = tuple[str, str]
"""Namespace and name of a CSIStorageCapacity."""


def attached_by(pod: k.Pod, storage: Storage) -> Iterator[Attached]:
    """The CSI volumes that the node of a pod has to attach for its claims."""
    for name in claims_of(pod):
        claim = storage.claims.get((pod.metadata.namespace, name))
        if claim is None:
            continue
        if claim.spec.volume_name:
            found = handle_of(storage.volumes.get(claim.spec.volume_name))
            if found is not None:
                yield found
        else:
            own = storage.classes.get(claim.spec.storage_class_name or "")
            if own is not None and own.provisioner != NO_PROVISIONER:
                yield own.provisioner, f"claim {pod.metadata.namespace}/{name}"


def handle_of(volume: k.PersistentVolume | None) -> Attached | None:
    """The driver and handle of a volume; None for one that is not there, or of no driver."""
    source = volume.spec.csi if volume is not None else None
    return (source.driver, source.volume_handle) if source is not None else None


class VolumeRequest(NamedTuple):
    """A volume that is to be made for a claim, of so many thousandths of a byte, reachable from a node."""

    claim: ClaimName
    storage_class: str
    size: int
    node: k.Node


def requested_by(pod: k.Pod, node: k.Node, storage: Storage, drivers: Collection[str]) -> Iterator[VolumeRequest]:
    """The volumes to be made for the claims of a pod at a node, by drivers that say how much storage there is."""
    yield from requests_of(unbound_claims(pod, storage), node, storage, drivers)


def requests_of(
    claims: Iterable[k.Claim], node: k.Node, storage: Storage, drivers: Collection[str]
) -> Iterator[VolumeRequest]:
    """The volumes to be made for these claims at a node, by drivers that say how much storage there is."""
    for claim in claims:
        own = storage.classes.get(claim.spec.storage_class_name or "")
        size = asked_of(claim)
        if own is not None and own.provisioner in drivers and size and not claim.spec.volume_name:
            yield VolumeRequest(key_of(claim), own.metadata.name, size, node)


class Capacities:
    """All CSIStorageCapacity objects, found by the class and the labels of a node."""

    def __init__(self, objects: Iterable[v.StorageCapacity]) -> None:
        self.by_name: dict[CapacityName, v.StorageCapacity] = {}
        self._index: dict[str, dict[tuple[str, str], list[v.StorageCapacity]]] = {}
        for one in sorted(objects, key=lambda one: (one.metadata.namespace, one.metadata.name)):
            self.by_name[one.metadata.namespace, one.metadata.name] = one
            if one.node_topology is not None:
                label = min((one.node_topology.match_labels or {}).items(), default=("", ""))
                self._index.setdefault(one.storage_class_name, {}).setdefault(label, []).append(one)

    def reached(self, request: VolumeRequest) -> Iterator[CapacityName]:
        """Those from which a volume could come, if it were the only one."""
        labels = request.node.metadata.labels or {}
        for (key, value), found in self._index.get(request.storage_class, {}).items():
            if key and labels.get(key) != value:
                continue
            for one in found:
                assert one.node_topology is not None
                if request.size <= largest_of(one) and selects(one.node_topology, labels):
                    yield one.metadata.namespace, one.metadata.name

    def shared_out(
        self, requests: Iterable[VolumeRequest], before: Iterable[VolumeRequest] = ()
    ) -> list[VolumeRequest]:
        """The requests that cannot be met together, the largest first; `before` are those that have been granted.

        A driver that says only how large a volume may be has no end of them.
        """
        first, rest = _by_size(before), _by_size(requests)  # from which capacity those before come nobody says
        if not self._unmet(sorted([*first, *rest], key=_largest_first), {}):
            return []
        left: dict[CapacityName, int] = {}
        self._unmet(first, left)
        return self._unmet(rest, left)

    def _unmet(self, requests: Iterable[VolumeRequest], left: dict[CapacityName, int]) -> list[VolumeRequest]:
        """Give each in turn to the capacity with the most `left`; returns those for which there is none."""
        unmet: list[VolumeRequest] = []
        for request in requests:
            for name in (reached := list(self.reached(request))):
                left.setdefault(name, total_of(self.by_name[name]))
            most = max(reached, key=lambda name: left[name], default=None)
            if most is None or left[most] < request.size:
                unmet.append(request)
            else:
                left[most] -= request.size
        return unmet


def _by_size(requests: Iterable[VolumeRequest]) -> list[VolumeRequest]:
    """One for each claim, the largest first."""
    return sorted({request.claim: request for request in requests}.values(), key=_largest_first)


def _largest_first(request: VolumeRequest) -> tuple[int, ClaimName]:
    return -request.size, request.claim


def largest_of(one: v.StorageCapacity) -> int:
    """The largest volume that can be made, thousandths of a byte; 0 where nobody says it."""
    return _bytes(one.maximum_volume_size if one.maximum_volume_size is not None else one.capacity)


def total_of(one: v.StorageCapacity) -> int:
    """Thousandths of a byte that all volumes together may have."""
    return _bytes(one.capacity) if one.capacity is not None else _ENDLESS


_ENDLESS = 1 << 80


def _bytes(amount: str | int | float | None) -> int:
    try:
        return milli(amount, "capacity", up=False) if amount is not None else 0
    except InputError:
        return 0


__all__ = [
    "Attached",
    "Capacities",
    "VolumeRequest",
    "attached_by",
    "handle_of",
    "is_bound",
    "largest_of",
    "requested_by",
]
