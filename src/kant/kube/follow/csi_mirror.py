"""The mirror of CSI objects: the latest drivers, attach limits and attachments of nodes, and storage capacities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kant.kube.follow.store import Store, own_name, space_name
from kant.kube.objects.storage_views import CsiDriver, CsiNode, StorageCapacity, VolumeAttachment

if TYPE_CHECKING:
    from kant.kube.translate.csi import Capacities


@dataclass(slots=True)
class CsiMirror:
    """`drivers` are those that report their storage capacity (`storageCapacity`). `limits` has, by node and driver, how
    many volumes may be attached; `attached` has, by node, the names of attachments. `version` counts all changes."""

    drivers: dict[str, None] = field(default_factory=dict)
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    attached: dict[str, dict[str, None]] = field(default_factory=dict)  # node: names
    version: int = 0
    all_drivers: Store[str, CsiDriver] = field(init=False)
    nodes: Store[str, CsiNode] = field(init=False)
    attachments: Store[str, VolumeAttachment] = field(init=False)
    objects: Store[tuple[str, str], StorageCapacity] = field(init=False)
    _capacities: Capacities | None = None

    def __post_init__(self) -> None:
        self.all_drivers = Store(own_name, self._driver_changed, lambda one: one.spec.storage_capacity)
        self.nodes = Store(own_name, self._node_changed, _limits)
        self.attachments = Store(own_name, self._attachment_changed, lambda one: None)  # the spec is immutable
        self.objects = Store(space_name, self._capacity_changed, _relevant)

    @property
    def attached_volumes(self) -> set[str]:
        """The names of the PersistentVolumes that are attached to some node."""
        return {one.spec.source.persistent_volume_name or "" for one in self.attachments.values()}

    @property
    def capacities(self) -> Capacities:
        """The storage capacities; their module is imported on first use, for a volume to be provisioned."""
        if self._capacities is None:
            from kant.kube.translate.csi import Capacities

            self._capacities = Capacities(self.objects.values())
        return self._capacities

    def _driver_changed(self, key: str, before: CsiDriver | None, now: CsiDriver | None) -> None:
        self.drivers.pop(key, None)
        if now is not None and now.spec.storage_capacity:
            self.drivers[key] = None
        self.version += 1

    def _node_changed(self, key: str, before: CsiNode | None, now: CsiNode | None) -> None:
        self.limits.pop(key, None)
        if now is not None and (limits := _limits(now)):
            self.limits[key] = limits
        self.version += 1

    def _attachment_changed(self, key: str, before: VolumeAttachment | None, now: VolumeAttachment | None) -> None:
        if before is not None:
            self.attached.get(before.spec.node_name, {}).pop(key, None)
        if now is not None:
            self.attached.setdefault(now.spec.node_name, {})[key] = None
        self.version += 1

    def _capacity_changed(self, *_: object) -> None:
        self.version += 1
        self._capacities = None


def _limits(one: CsiNode) -> dict[str, int]:
    found = ((driver.name, driver.allocatable) for driver in one.spec.drivers)
    return {name: own.count for name, own in found if own is not None and own.count is not None}


def _relevant(one: StorageCapacity) -> tuple[object, ...]:
    return one.storage_class_name, one.node_topology, one.capacity, one.maximum_volume_size
