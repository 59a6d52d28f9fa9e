"""Turns a Node of the API into a node of the core's model: GPUs, CPU, memory, topology domains and status."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kant.kube.objects import views as k
from kant.kube.objects.quantity import Quantity, count, mib, milli
from kant.kube.translate.hami_devices import registered
from kant.kube.translate.levels import Levels
from kant.kube.translate.resources import GPU_RESOURCES
from kant.kube.translate.sharing import SHARED, sharing_of
from kant.model.errors import InputError
from kant.model.node import MAX_GPUS, Node
from kant.model.status import NodeStatus

PRODUCT = "nvidia.com/gpu.product"
MODELS = (
    PRODUCT,
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
    "cloud.google.com/gke-accelerator",
    "eks.amazonaws.com/instance-gpu-name",
    "karpenter.k8s.aws/instance-gpu-name",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
"""Labels that name the GPU model, the most exact first. The first one that is present counts."""

STATE_TAINTS = frozenset(
    {
        *(
            f"node.kubernetes.io/{what}"
            for what in (
                "unschedulable", "not-ready", "unreachable", "memory-pressure", "disk-pressure", "pid-pressure",
                "network-unavailable", "out-of-service",
            )
        ),
        "node.cloudprovider.kubernetes.io/uninitialized",
        "node.cloudprovider.kubernetes.io/shutdown",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
    }
)  # fmt: skip
"""Keys of taints that describe the state of a node. Other taints reserve a node for some pods."""


class Seen(NamedTuple):
    """The node, its status, and how many of its GPUs are not usable now."""

    node: Node
    status: NodeStatus
    lost: int


def about(view: k.Node) -> str:
    return f"node {view.metadata.name}"


def node_of(view: k.Node, levels: Levels, devices: int = 0) -> Seen:
    """Return a Node as a node of the model. Raises InputError if its amounts cannot be used.

    `devices` is the number of GPUs that claims can allocate. It is ignored if a device plugin offers GPUs.
    """
    capacity, left = view.status.capacity or {}, view.status.allocatable or {}
    place = f"{about(view)}, status"
    there = _gpus(capacity, f"{place}.capacity")
    usable = _gpus(left, f"{place}.allocatable") if left else there
    replicas = sharing_of(view).replicas
    known = registered(view)
    if known.devices:
        there, usable = len(known.devices), len(known.devices) - known.unhealthy.bit_count() if usable else 0
    if replicas > 1:
        shared = count(capacity.get(SHARED, 0), f"{place}.capacity.{SHARED}")
        if there and shared:
            raise InputError(f"{place}.capacity", f"GPUs or {SHARED}, not both", f"{there} and {shared}")
        there += shared
        usable += count((left or capacity).get(SHARED, 0), f"{place}.allocatable.{SHARED}")
        if there % replicas:
            raise InputError(f"{place}.capacity", f"a multiple of {replicas}, the replicas of each GPU", there)
        there, usable = there // replicas, usable // replicas
    if usable > there:
        raise InputError(f"{place}.allocatable", f"at most the {there} GPUs of its capacity", usable)
    if not there:
        there = usable = devices
    if there > MAX_GPUS:
        raise InputError(f"{place}.capacity", f"at most {MAX_GPUS} GPUs", there)
    hbd, leaf, spine, superspine = domains_of(view, levels)
    node = Node(
        name=view.metadata.name,
        gpus=there,
        model=model_of(view),
        cpu=milli((left or capacity).get("cpu", 0), f"{place}.allocatable.cpu", up=False),
        memory=mib((left or capacity).get("memory", 0), f"{place}.allocatable.memory", up=False),
        leaf=leaf,
        spine=spine,
        superspine=superspine,
        hbd=hbd,
    )
    return Seen(node, status_of(view), there - usable)


def _gpus(amounts: dict[str, Quantity], where: str) -> int:
    found = [(name, count(amounts[name], f"{where}.{name}")) for name in GPU_RESOURCES if name in amounts]
    kinds = [name for name, number in found if number]
    if len(kinds) > 1:
        raise InputError(where, "GPUs of one kind", ", ".join(kinds))
    return sum(number for _, number in found)


def model_of(view: k.Node) -> str:
    """Return the GPU model, by the first of MODELS that is present; "" for none."""
    labels = view.metadata.labels or {}
    return next((labels[key] for key in MODELS if labels.get(key)), "")


def status_of(view: k.Node) -> NodeStatus:
    """Return CORDONED for a node that is unschedulable, not ready, being deleted or state-tainted; else IN_SERVICE."""
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in view.status.conditions)
    state = any(taint.key in STATE_TAINTS and taint.effect != "PreferNoSchedule" for taint in view.spec.taints)
    going = view.metadata.deletion_timestamp is not None
    return NodeStatus.IN_SERVICE if ready and not (view.spec.unschedulable or state or going) else NodeStatus.CORDONED


def domains_of(view: k.Node, levels: Levels) -> tuple[str, str, str, str]:
    """Return HBD, leaf, spine and superspine of a node; "" if the level has no label. The names of leaf, spine and
    superspine begin with the names of the outer domains.

    If the node lacks the label of a level, its domain there contains only its domain of the level below, or itself.
    """
    labels = view.metadata.labels or {}
    hbd = labels.get(levels.hbd, "") if levels.hbd else ""
    inner = hbd or view.metadata.name
    own: list[str] = []  # from the leaf outwards
    for key in (levels.leaf, levels.spine, levels.superspine):
        label = labels.get(key) if key else None
        own.append(label or (f"({inner})" if key else ""))
        inner = label or inner
    leaf, spine, superspine = (_path(own[level:]) for level in range(3))
    return hbd, leaf, spine, superspine


def _path(inside_out: list[str]) -> str:
    """Return the name of the innermost domain, prefixed by the names of the domains around it."""
    return "/".join(name for name in reversed(inside_out) if name) if inside_out[0] else ""


def contradictions(views: Iterable[k.Node], levels: Levels) -> dict[str, str]:
    """Return, by node, an error for each NVLink domain that spans several leaves and so counts as several domains."""
    homes: dict[str, tuple[str, str]] = {}
    split: dict[str, tuple[str, str]] = {}
    for view in sorted(views, key=lambda view: view.metadata.name):
        hbd, *around = domains_of(view, levels)
        home, first = homes.setdefault(hbd, (" / ".join(around), view.metadata.name))
        if hbd and home != " / ".join(around) and hbd not in split:
            expected = f"the same leaf as {first}, which is in the NVLink domain {hbd} too"
            error = InputError(f"{about(view)}, label {levels.leaf or levels.spine or levels.superspine}", expected)
            split[hbd] = about(view), str(error)
    return dict(split.values())
