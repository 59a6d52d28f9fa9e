"""Slim views of API objects: only the fields that Kant reads, so that a list of 50,000 pods stays small.

All other fields are skipped while decoding. Every field has the default that the API defines for an absent one.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class View(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A part of an API object."""


class Owner(View, frozen=True):
    """An owner of an object (`metadata.ownerReferences`), usually what has created it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Meta(View, frozen=True):
    """`metadata` of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] = ()

    @property
    def said(self) -> dict[str, str]:
        """Labels and annotations; an annotation takes precedence over a label of the same key."""
        return {**(self.labels or {}), **(self.annotations or {})}

    @property
    def controller(self) -> Owner:
        """The controller that owns the object; an Owner with an empty name and uid if there is none."""
        return next((one for one in self.owner_references if one.controller), Owner())


class PartialMetadata(View, frozen=True):
    """An object, of which only the metadata is read unless a subclass adds fields."""

    metadata: Meta = Meta()


# --- pods --------------------------------------------------------------------------------------------------------


class Resources(View, frozen=True):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Port(View, frozen=True):
    host_port: int = 0
    protocol: str = "TCP"


class Container(View, frozen=True):
    resources: Resources = Resources()
    ports: tuple[Port, ...] = ()
    restart_policy: str | None = None  # "Always" for an init container that is a sidecar
    name: str = ""


class Requirement(View, frozen=True):
    """One expression of a selector, such as `key In values`."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class SelectorTerm(View, frozen=True):
    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(View, frozen=True):
    node_selector_terms: tuple[SelectorTerm, ...] = ()


class PreferredTerm(View, frozen=True):
    weight: int = 0
    preference: SelectorTerm = SelectorTerm()


class NodeAffinity(View, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredTerm, ...] = ()


class LabelSelector(View, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Requirement, ...] = ()


class PodTerm(View, frozen=True):
    label_selector: LabelSelector | None = None
    topology_key: str = ""
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()


class WeightedPodTerm(View, frozen=True):
    weight: int = 0
    pod_affinity_term: PodTerm = PodTerm()


class PodAffinity(View, frozen=True):
    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[WeightedPodTerm, ...] = ()


class Affinity(View, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(View, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class Gate(View, frozen=True):
    name: str = ""


class SchedulingGroup(View, frozen=True):
    pod_group_name: str | None = None


class WorkloadRef(View, frozen=True):
    """The group of a pod in the API of Kubernetes 1.35."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class VolumeClaim(View, frozen=True):
    claim_name: str = ""


class EphemeralVolume(View, frozen=True):
    """A volume with its own claim, created from a template in the pod."""


class Disk(View, frozen=True):
    """A disk in the spec of a pod, in one of the older kinds of volumes; one of these fields identifies it."""

    volume: str = msgspec.field(default="", name="volumeID")  # awsElasticBlockStore
    pd_name: str = ""  # gcePersistentDisk
    pool: str = "rbd"
    image: str = ""  # rbd
    iqn: str = ""  # iscsi
    read_only: bool = False


class Volume(View, frozen=True):
    name: str = ""
    persistent_volume_claim: VolumeClaim | None = None
    ephemeral: EphemeralVolume | None = None
    aws_elastic_block_store: Disk | None = None
    gce_persistent_disk: Disk | None = None
    rbd: Disk | None = None
    iscsi: Disk | None = None


class SpreadConstraint(View, frozen=True):
    topology_key: str = ""
    when_unsatisfiable: str = ""
    max_skew: int = 1
    min_domains: int | None = None
    label_selector: LabelSelector | None = None
    match_label_keys: tuple[str, ...] = ()
    node_affinity_policy: str = ""
    node_taints_policy: str = ""


class PodClaim(View, frozen=True):
    """A ResourceClaim of a pod. In `spec`: its name or template; in `status`: the created claim (null: not needed)."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class RequestMapping(View, frozen=True):
    """Which request of a claim provides an extended resource to a container."""

    container_name: str = ""
    resource_name: str = ""
    request_name: str = ""


class ExtendedStatus(View, frozen=True):
    """The claim created for the extended resources of a pod."""

    resource_claim_name: str = ""
    request_mappings: tuple[RequestMapping, ...] = ()


class PodSpec(View, frozen=True):
    """`spec` of a pod. `by_claim` is not part of the API: it names the extended resources that device classes provide
    through the last of `resource_claims` (`DeviceMirror.resolved`).
    """

    node_name: str = ""
    scheduler_name: str = ""
    priority: int = 0
    preemption_policy: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str | int | float] | None = None
    resources: Resources | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[Gate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadRef | None = None
    active_deadline_seconds: int | None = None
    volumes: tuple[Volume, ...] = ()
    topology_spread_constraints: tuple[SpreadConstraint, ...] = ()
    resource_claims: tuple[PodClaim, ...] = ()
    by_claim: tuple[str, ...] = ()


class Condition(View, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class ContainerStatus(View, frozen=True):
    """A container's present resources (`resources`), and those that the kubelet granted. In a resize they differ."""

    name: str = ""
    resources: Resources | None = None
    allocated_resources: dict[str, str | int | float] | None = None


class PodStatus(View, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    resource_claim_statuses: tuple[PodClaim, ...] = ()
    extended_resource_claim_status: ExtendedStatus | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resources: Resources | None = None
    allocated_resources: dict[str, str | int | float] | None = None


class Pod(PartialMetadata, frozen=True):
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def scheduled(self) -> Condition | None:
        """The condition PodScheduled; None if there is none yet."""
        return next((one for one in self.status.conditions if one.type == "PodScheduled"), None)


class Namespace(PartialMetadata, frozen=True):
    pass


# --- nodes -------------------------------------------------------------------------------------------------------


class Taint(View, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(View, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeStatus(View, frozen=True):
    capacity: dict[str, str | int | float] | None = None
    allocatable: dict[str, str | int | float] | None = None
    conditions: tuple[Condition, ...] = ()


class Node(PartialMetadata, frozen=True):
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# --- volumes -----------------------------------------------------------------------------------------------------


class ClaimSpec(View, frozen=True):
    storage_class_name: str | None = None
    volume_name: str = ""
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    resources: Resources = Resources()
    selector: LabelSelector | None = None


class ClaimStatus(View, frozen=True):
    phase: str = ""


class Claim(PartialMetadata, frozen=True):
    """A PersistentVolumeClaim."""

    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class VolumeNodeAffinity(View, frozen=True):
    required: NodeSelector | None = None


class ClaimRef(View, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class CsiSource(View, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(View, frozen=True):
    claim_ref: ClaimRef | None = None
    node_affinity: VolumeNodeAffinity | None = None
    capacity: dict[str, str | int | float] | None = None
    access_modes: tuple[str, ...] = ()
    volume_mode: str = "Filesystem"
    storage_class_name: str = ""
    csi: CsiSource | None = None


class PersistentVolume(PartialMetadata, frozen=True):
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: ClaimStatus = ClaimStatus()


class LabelValues(View, frozen=True):
    key: str = ""
    values: tuple[str, ...] = ()


class TopologyTerm(View, frozen=True):
    match_label_expressions: tuple[LabelValues, ...] = ()


class StorageClass(PartialMetadata, frozen=True):
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


# --- disruption budgets -------------------------------------------------------------------------------------------


class DisruptionBudgetSpec(View, frozen=True):
    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class BudgetStatus(View, frozen=True):
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    observed_generation: int = 0


class DisruptionBudget(PartialMetadata, frozen=True):
    """A PodDisruptionBudget."""

    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: BudgetStatus = BudgetStatus()


# --- leader election ---------------------------------------------------------------------------------------------


class LeaseRecord(View, frozen=True):
    """`spec` of a Lease."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(PartialMetadata, frozen=True):
    spec: LeaseRecord = LeaseRecord()


# --- anything else -----------------------------------------------------------------------------------------------


class Unstructured(View, frozen=True):
    """An object of any kind: only its metadata is decoded; `spec` and `status` are decoded where they are used."""

    api_version: str = ""
    kind: str = ""
    metadata: Meta = Meta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


class Status(View, frozen=True):
    """A Status: the API server's response to a failed request, or to one that returns no object."""

    code: int = 0
    reason: str = ""
    message: str = ""
