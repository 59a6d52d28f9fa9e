"""How the GPUs of a node are offered: whole, as replicas by time-slicing or MPS, or in parts by HAMi.

Sources: NVIDIA's k8s-device-plugin, README, "Shared Access to GPUs" (labels `nvidia.com/gpu.replicas`,
`nvidia.com/gpu.sharing-strategy`, resource `nvidia.com/gpu.shared`); GKE, "GPU sharing strategies" (label
`cloud.google.com/gke-max-shared-clients-per-gpu`).
"""

from __future__ import annotations

from typing import NamedTuple

from kant.kube.objects import views as k
from kant.kube.objects.validation import whole
from kant.kube.translate.hami_devices import NVIDIA, Device, registered
from kant.kube.translate.resources import GPU_RESOURCES
from kant.model.errors import InputError
from kant.model.units import GPU

SHARED = "nvidia.com/gpu.shared"
"""The resource name of GPU replicas if NVIDIA's device plugin is configured to rename them (`renameByDefault`)."""

REPLICAS = "nvidia.com/gpu.replicas"
CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"
STRATEGY = "nvidia.com/gpu.sharing-strategy"

SHARING = "gpu sharing:"
"""Key, among a node's labels, of the way in which it shares its GPUs (`Sharing.word`). No real label has a colon."""

MANY, ONE = "replicas", "one replica"
"""First word of the value: a pod may have many replicas, or only one (MPS, GKE). The name of the resource follows."""


HAMI = "HAMi"
"""The value for a node on which HAMi offers parts of the GPUs."""

LEAST_MEMORY = "gpu memory:"
"""Key, among the labels of a node with HAMi, of the MiB of its smallest GPU."""

KIND = "gpu resource:"
"""Key, among the labels of a node with GPUs, of the resource by which its device plugin offers them."""


class Sharing(NamedTuple):
    """`replicas` of each GPU are offered as `resource` (1: whole GPUs). `single`: a pod may have only one replica.

    `devices` has the GPUs that HAMi offers in parts.
    """

    replicas: int = 1
    single: bool = False
    resource: str = NVIDIA
    devices: tuple[Device, ...] = ()

    @property
    def word(self) -> str:
        """The value under the key `SHARING`; "" for whole GPUs."""
        if self.devices:
            return HAMI
        return "" if self.replicas == 1 else f"{ONE if self.single else MANY} {self.resource}"

    @property
    def part(self) -> int:
        """The size of one replica in thousandths of a GPU."""
        return GPU // self.replicas


WHOLE = Sharing()


def sharing_of(view: k.Node) -> Sharing:
    """Return how the GPUs of a node are offered. Raises InputError for an invalid label.

    Also invalid: a number of replicas such that, in whole thousandths, one more fits on a GPU (36, most above 42).
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
        raise InputError(where, "a number of replicas that thousandths of a GPU can count, such as 1 to 35", replicas)
    if replicas == 1:
        return WHOLE
    amounts = view.status.capacity or {}
    resource = SHARED if str(amounts.get(SHARED, 0)) != "0" else NVIDIA
    return Sharing(replicas, key == CLIENTS or labels.get(STRATEGY) == "mps", resource)


def has_plugin(view: k.Node) -> bool:
    """Whether a device plugin offers GPUs of a node."""
    there = view.status.capacity or {}
    return any(str(there.get(name, 0)) != "0" for name in (*GPU_RESOURCES, SHARED))


def kind_of(view: k.Node) -> str:
    """Return the resource by which a device plugin offers the node's GPUs, even if all GPUs are lost; "" for none."""
    amounts = view.status.capacity or view.status.allocatable or {}
    kind = next((name for name in (*GPU_RESOURCES, SHARED) if str(amounts.get(name, 0)) != "0"), "")
    return NVIDIA if kind == SHARED else kind
