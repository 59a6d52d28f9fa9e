"""The mirror of CSI: drivers, what nodes may attach and have attached, and where there is storage, as said last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kant.kube.objects.storage_views import CsiDriver, CsiNode, StorageCapacity, VolumeAttachment
from kant.kube.translate.csi import Capacities

CapacityName = tuple[str, str]


@dataclass(slots=True)
class CsiMirror:
    """`drivers` are those that say how much storage there is (`storageCapacity`). `limits` has, by node and driver, how
    many volumes may be attached; `attachments` by name. `version` counts changes of any.
    """

    drivers: dict[str, None] = field(default_factory=dict)
    limits: dict[str, dict[str, int]] = field(default_factory=dict)
    attachments: dict[str, VolumeAttachment] = field(default_factory=dict)
    attached: dict[str, dict[str, None]] = field(default_factory=dict)  # by node the names of attachments
    objects: dict[CapacityName, StorageCapacity] = field(default_factory=dict)
    version: int = 0
    _capacities: Capacities | None = None

    @property
    def attached_volumes(self) -> set[str]:
        """The names of the PersistentVolumes that are attached to some node."""
        return {one.spec.source.persistent_volume_name or "" for one in self.attachments.values()}

    @property
    def capacities(self) -> Capacities:
        """Where there is storage, and how much."""
        if self._capacities is None:
            self._capacities = Capacities(self.objects.values())
        return self._capacities

    def driver(self, kind: str, one: CsiDriver) -> None:
        """A driver was added, modified or deleted."""
        self.drivers.pop(one.metadata.name, None)
        if kind != "deleted" and one.spec.storage_capacity:
            self.drivers[one.metadata.name] = None
        self.version += 1

    def replace_drivers(self, found: Iterable[CsiDriver]) -> None:
        """All drivers there are."""
        self.drivers.clear()
        for one in found:
            self.driver("added", one)
        self.version += 1

    def node(self, kind: str, one: CsiNode) -> bool:
        """What a node may attach was said anew. False where it is the same."""
        limits = {
            driver.name: driver.allocatable.count
            for driver in one.spec.drivers
            if driver.allocatable is not None and driver.allocatable.count is not None
        }
        before = self.limits.pop(one.metadata.name, {})
        if kind == "deleted":
            limits = {}
        if limits:
            self.limits[one.metadata.name] = limits
        self.version += limits != before
        return limits != before

    def replace_nodes(self, found: Iterable[CsiNode]) -> None:
        """What all nodes may attach."""
        self.limits.clear()
        for one in found:
            self.node("added", one)
        self.version += 1

    def attachment(self, kind: str, one: VolumeAttachment) -> bool:
        """A volume is attached, or is not any more. False where nothing is new."""
        name, node = one.metadata.name, one.spec.node_name
        if kind != "deleted" and name in self.attachments:
            return False  # its spec never changes
        if kind == "deleted":
            self.attachments.pop(name, None)
            self.attached.get(node, {}).pop(name, None)
        else:
            self.attachments[name] = one
            self.attached.setdefault(node, {})[name] = None
        self.version += 1
        return True

    def replace_attachments(self, found: Iterable[VolumeAttachment]) -> None:
        """All attachments there are."""
        self.attachments.clear()
        self.attached.clear()
        for one in found:
            self.attachment("added", one)
        self.version += 1

    def capacity(self, kind: str, one: StorageCapacity) -> bool:
        """Storage came, went, or is used. False where it is as it was."""
        name = one.metadata.namespace, one.metadata.name
        before = self.objects.pop(name, None)
        if kind != "deleted":
            self.objects[name] = one
            if before is not None and _essence(before) == _essence(one):
                return False
        self.version += 1
        self._capacities = None
        return True

    def replace_capacities(self, found: Iterable[StorageCapacity]) -> None:
        """All storage there is."""
        self.objects = {(one.metadata.namespace, one.metadata.name): one for one in found}
        self.version += 1
        self._capacities = None


def _essence(one: StorageCapacity) -> tuple[object, ...]:
    return one.storage_class_name, one.node_topology, one.capacity, one.maximum_volume_size
