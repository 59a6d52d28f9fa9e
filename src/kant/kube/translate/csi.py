"""CSI volumes: which volumes a node must attach, and whether there is storage for volumes to be provisioned.

Source: kube-scheduler's plugins NodeVolumeLimits (csi.go) and VolumeBinding (hasEnoughCapacity, capacitySufficient,
nodeHasAccess). kube-scheduler compares each claim alone with the capacity. Kant lets all claims of a gang share it,
together with the claims of other pods that wait for volumes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from kant.kube.objects import storage_views as v
from kant.kube.objects import views as k
from kant.kube.objects.quantity import milli
from kant.kube.translate.local_volumes import asked_of
from kant.kube.translate.selectors import selects
from kant.kube.translate.volumes import NO_PROVISIONER, ClaimName, Storage, key_of, unbound_claims
from kant.model.errors import InputError

Attached = tuple[str, str]
"""The driver and the handle of a volume; for a volume that is still to be provisioned, the driver and the claim."""

CapacityName = tuple[str, str]
"""Namespace and name of a CSIStorageCapacity."""


def attached_by(pod: k.Pod, storage: Storage) -> Iterator[Attached]:
    """Yield the CSI volumes that a node must attach for the claims of a pod."""
    for claim in storage.existing_claims(pod):
        if claim.spec.volume_name:
            found = handle_of(storage.volumes.get(claim.spec.volume_name))
            if found is not None:
                yield found
        else:
            own = storage.class_of(claim)
            if own is not None and own.provisioner != NO_PROVISIONER:
                yield own.provisioner, f"claim {pod.metadata.namespace}/{claim.metadata.name}"


def handle_of(volume: k.PersistentVolume | None) -> Attached | None:
    """Return the driver and handle of a volume; None if it does not exist or has no CSI driver."""
    source = volume.spec.csi if volume is not None else None
    return (source.driver, source.volume_handle) if source is not None else None


class VolumeRequest(NamedTuple):
    """A volume to be provisioned for a claim, usable on `node`. `size` is in thousandths of a byte."""

    claim: ClaimName
    storage_class: str
    size: int
    node: k.Node


def requested_by(pod: k.Pod, node: k.Node, storage: Storage, drivers: Collection[str]) -> Iterator[VolumeRequest]:
    """Yield the volumes that `drivers` must provision for the claims of a pod on a node."""
    yield from requests_of(unbound_claims(pod, storage), node, storage, drivers)


def requests_of(
    claims: Iterable[k.Claim], node: k.Node, storage: Storage, drivers: Collection[str]
) -> Iterator[VolumeRequest]:
    """Yield the volumes that `drivers` must provision for these claims on a node."""
    for claim in claims:
        own = storage.class_of(claim)
        size = asked_of(claim)
        if own is not None and own.provisioner in drivers and size and not claim.spec.volume_name:
            yield VolumeRequest(key_of(claim), own.metadata.name, size, node)


class Capacities:
    """All CSIStorageCapacity objects, indexed by storage class and by a node label."""

    def __init__(self, objects: Iterable[v.StorageCapacity]) -> None:
        self.by_name: dict[CapacityName, v.StorageCapacity] = {}
        self._index: dict[str, dict[tuple[str, str], list[v.StorageCapacity]]] = {}
        for one in sorted(objects, key=lambda one: (one.metadata.namespace, one.metadata.name)):
            self.by_name[one.metadata.namespace, one.metadata.name] = one
            if one.node_topology is not None:
                label = min((one.node_topology.match_labels or {}).items(), default=("", ""))
                self._index.setdefault(one.storage_class_name, {}).setdefault(label, []).append(one)

    def reached(self, request: VolumeRequest) -> Iterator[CapacityName]:
        """Yield the capacity objects that reach the node and have enough storage for this volume alone."""
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
        """Return the requests that find no storage after the requests in `before` and larger ones; the largest first.

        If a driver reports only the size of its largest possible volume, its total capacity counts as unlimited.
        """
        first, rest = _by_size(before), _by_size(requests)  # from which capacities `before` takes storage is unknown
        if not self._unmet(sorted([*first, *rest], key=_largest_first), {}):
            return []
        left: dict[CapacityName, int] = {}
        self._unmet(first, left)
        return self._unmet(rest, left)

    def _unmet(self, requests: Iterable[VolumeRequest], left: dict[CapacityName, int]) -> list[VolumeRequest]:
        """Take each request, in order, from the capacity with the most `left`. Return the requests that do not fit."""
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
    """Return one request for each claim, the largest first."""
    return sorted({request.claim: request for request in requests}.values(), key=_largest_first)


def _largest_first(request: VolumeRequest) -> tuple[int, ClaimName]:
    return -request.size, request.claim


def largest_of(one: v.StorageCapacity) -> int:
    """Return the size of the largest possible volume in thousandths of a byte; 0 if unknown."""
    return _bytes(one.maximum_volume_size if one.maximum_volume_size is not None else one.capacity)


def total_of(one: v.StorageCapacity) -> int:
    """Return the total size of all possible volumes, in thousandths of a byte."""
    return _bytes(one.capacity) if one.capacity is not None else _ENDLESS


_ENDLESS = 1 << 80


def _bytes(amount: str | int | float | None) -> int:
    try:
        return milli(amount, "capacity", up=False) if amount is not None else 0
    except InputError:
        return 0
