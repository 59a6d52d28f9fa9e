"""Slim views of the API of dynamic resource allocation: slices of devices, device classes, and claims.

Source: resource.k8s.io/v1 of Kubernetes 1.34 and newer.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from kant.kube.objects.views import Condition, Meta, NodeSelector, PartialMetadata, Taint, Toleration, View

Amount = str | int | float

# --- devices -----------------------------------------------------------------------------------------------------


class DeviceAttribute(View, frozen=True):
    """A value of one type, or several values (from Kubernetes 1.36 on, if that feature is enabled)."""

    int_value: int | None = field(default=None, name="int")
    bool_value: bool | None = field(default=None, name="bool")
    string_value: str | None = field(default=None, name="string")
    version_value: str | None = field(default=None, name="version")
    ints: tuple[int, ...] = ()
    bools: tuple[bool, ...] = ()
    strings: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


class RequestRange(View, frozen=True):
    min: Amount | None = None
    max: Amount | None = None
    step: Amount | None = None


class RequestPolicy(View, frozen=True):
    """Which amounts of a capacity a request may use."""

    default: Amount | None = None
    valid_values: tuple[Amount, ...] = ()
    valid_range: RequestRange | None = None


class AmountOf(View, frozen=True):
    """A capacity of a device, or a counter of a pool."""

    value: Amount = 0
    request_policy: RequestPolicy | None = None


class CounterSet(View, frozen=True):
    """Counters that the devices of a pool share. With `counterSet`: the part of these counters that one device uses."""

    name: str = ""
    counter_set: str = ""
    counters: dict[str, AmountOf] = field(default_factory=dict)


class Device(View, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] = field(default_factory=dict)
    capacity: dict[str, AmountOf] = field(default_factory=dict)
    consumes_counters: tuple[CounterSet, ...] = ()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    taints: tuple[Taint, ...] = ()
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False


class Pool(View, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class SliceSpec(View, frozen=True):
    driver: str = ""
    pool: Pool = Pool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool = False
    per_device_node_selection: bool = False
    shared_counters: tuple[CounterSet, ...] = ()
    devices: tuple[Device, ...] = ()


class ResourceSlice(PartialMetadata, frozen=True):
    """Some of the devices of a pool, as the driver publishes them."""

    spec: SliceSpec = SliceSpec()


class CelSelector(View, frozen=True):
    expression: str = ""


class DeviceSelector(View, frozen=True):
    cel: CelSelector | None = None


class DeviceClassSpec(View, frozen=True):
    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[dict[str, Any], ...] = ()
    extended_resource_name: str = ""


class DeviceClass(PartialMetadata, frozen=True):
    spec: DeviceClassSpec = DeviceClassSpec()


# --- requests ----------------------------------------------------------------------------------------------------


class CapacityRequests(View, frozen=True):
    requests: dict[str, Amount] = field(default_factory=dict)


class ExactRequest(View, frozen=True):
    """A request. With a `name`: one of a request's alternatives, of which the first available one is used."""

    name: str = ""
    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    tolerations: tuple[Toleration, ...] = ()
    capacity: CapacityRequests | None = None


class DeviceRequest(View, frozen=True):
    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] = ()


class DeviceConstraint(View, frozen=True):
    requests: tuple[str, ...] = ()
    match_attribute: str = ""
    distinct_attribute: str = ""


class ClaimedDevices(View, frozen=True):
    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[dict[str, Any], ...] = ()


class ResourceClaimSpec(View, frozen=True):
    devices: ClaimedDevices = ClaimedDevices()


# --- allocations -------------------------------------------------------------------------------------------------


class AllocatedDevice(View, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    share_id: str = field(default="", name="shareID")
    consumed_capacity: dict[str, Amount] = field(default_factory=dict)
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()


class AllocatedDevices(View, frozen=True):
    results: tuple[AllocatedDevice, ...] = ()


class DeviceAllocation(View, frozen=True):
    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None
    allocation_timestamp: str = ""


class Consumer(View, frozen=True):
    """What a claim is reserved for: a pod, if `resource` is pods."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class DeviceStatus(View, frozen=True):
    """The driver's report on an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str = field(default="", name="shareID")
    conditions: tuple[Condition, ...] = ()


class ResourceClaimStatus(View, frozen=True):
    allocation: DeviceAllocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


class ClaimMeta(Meta, frozen=True):
    finalizers: tuple[str, ...] = ()


class ResourceClaim(View, frozen=True):
    metadata: ClaimMeta = ClaimMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()
