"""Views of the objects of storage.k8s.io that describe what CSI drivers can do, and where."""

from __future__ import annotations

from kant.kube.objects.views import LabelSelector, PartialMetadata, View


class DriverSpec(View, frozen=True):
    storage_capacity: bool | None = None


class CsiDriver(PartialMetadata, frozen=True):
    """A CSIDriver."""

    spec: DriverSpec = DriverSpec()


class NodeDriverResources(View, frozen=True):
    count: int | None = None


class NodeDriver(View, frozen=True):
    name: str = ""
    allocatable: NodeDriverResources | None = None


class CsiNodeSpec(View, frozen=True):
    drivers: tuple[NodeDriver, ...] = ()


class CsiNode(PartialMetadata, frozen=True):
    """A CSINode: which drivers a node has. It has the name of the node."""

    spec: CsiNodeSpec = CsiNodeSpec()


class StorageCapacity(PartialMetadata, frozen=True):
    """A CSIStorageCapacity: how much storage of a class is left for the nodes of a topology."""

    storage_class_name: str = ""
    node_topology: LabelSelector | None = None
    capacity: str | int | float | None = None
    maximum_volume_size: str | int | float | None = None


class AttachmentSource(View, frozen=True):
    persistent_volume_name: str | None = None


class AttachmentSpec(View, frozen=True):
    attacher: str = ""
    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class VolumeAttachment(PartialMetadata, frozen=True):
    """A volume that is attached to a node, or is to be."""

    spec: AttachmentSpec = AttachmentSpec()
