"""How the GPUs of a node are given out: whole, as replicas by time-slicing or MPS, or in parts by HAMi.

Sources: NVIDIA's k8s-device-plugin, README, "Shared Access to GPUs" (labels `nvidia.com/gpu.replicas`,
`nvidia.com/gpu.sharing-strategy`, resource `nvidia.com/gpu.shared`); GKE, "GPU sharing strategies" (label
`cloud.google.com/gke-max-shared-clients-per-gpu`).
"""

from __future__ import annotations

from typing import NamedTuple

from kant.kube.objects import views as k
from kant.kube.objects.validation import whole
from kant.kube.translate.hami import NVIDIA, Device, registered
from kant.kube.translate.resources import GPU_RESOURCES
from kant.model.errors import InputError
from kant.model.units import GPU

SHARED = "nvidia.com/gpu.shared"
"""What NVIDIA's device plugin calls a replica where it is told not to call it a GPU (`renameByDefault`)."""

REPLICAS = "nvidia.com/gpu.replicas"
CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"
STRATEGY = "nvidia.com/gpu.sharing-strategy"

SHARING = "gpu sharing:"
"""Stands beside the labels of a node whose GPUs are shared, with one of the words below. No label has a colon."""

MANY, ONE = "replicas", "one replica"
"""A pod may have many replicas of such a node; or but one, as with MPS and on GKE. The name of the resource follows."""


HAMI = "HAMi"
"""HAMi gives out parts of its GPUs."""

LEAST_MEMORY = "gpu memory:"
"""Stands beside the labels of a node of HAMi's: MiB of the smallest of its GPUs."""

KIND = "gpu resource:"
"""Stands beside the labels of a node with GPUs: the resource by which its device plugin gives them out."""


class Sharing(NamedTuple):
    """So many `replicas` of each GPU are given out as `resource`; 1: whole GPUs. `single`: a pod may have but one.

    `devices` are GPUs of which HAMi gives out parts.
    """

    replicas: int = 1
    single: bool = False
    resource: str = NVIDIA
    devices: tuple[Device, ...] = ()

    @property
    def word(self) -> str:
        """The value of `SHARING`; "" for whole GPUs."""
        if self.devices:
            return HAMI
        return "" if self.replicas == 1 else f"{ONE if self.single else MANY} {self.resource}"

    @property
    def part(self) -> int:
        """Thousandths of a GPU that one replica is."""
        return GPU // self.replicas


WHOLE = Sharing()


def sharing_of(view: k.Node) -> Sharing:
    """How the GPUs of a node are given out. Raises InputError for a label that says it wrongly.

    Also for so many replicas that thousandths could not tell that one more does not fit: 36, and most above 42.
    """
    devices = registered(view).devices
    if devices:
        return Sharing(devices=devices)
    labels = view.metadata.labels or {}
    key = next((key for key in (REPLICAS, CLIENTS) if labels.get(key)), "")
    if not key or labels.get(STRATEGY) == "none":
        return WHOLE
    where = f"node {view.metadata.name}, label {key}"
    replicas = max(whole(where, labels[key], 0, GPU), 1)
    if (replicas + 1) * (GPU // replicas) <= GPU:
        raise InputError(where, "a number of replicas that thousandths of a GPU can count", replicas)
    if replicas == 1:
        return WHOLE
    amounts = view.status.capacity or {}
    resource = SHARED if str(amounts.get(SHARED, 0)) != "0" else NVIDIA
    return Sharing(replicas, key == CLIENTS or labels.get(STRATEGY) == "mps", resource)


def kind_of(view: k.Node) -> str:
    """The resource by which a device plugin gives out the GPUs of a node, be they lost now; "" where none does."""
    amounts = view.status.capacity or view.status.allocatable or {}
    kind = next((name for name in (*GPU_RESOURCES, SHARED) if str(amounts.get(name, 0)) != "0"), "")
    return NVIDIA if kind == SHARED else kind
