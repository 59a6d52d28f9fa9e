"""The mirror: the latest objects of the API server, by kind, and the changes that the driver has not processed yet.

The mirror does not depend on the scheduler. Reflectors update it, in the order of the watch; the driver reads it and
empties the sets of changed objects. A repeated or late change only adds an object to such a set again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kant.kube.follow.csi_mirror import CsiMirror
from kant.kube.follow.namespaces import Namespaces
from kant.kube.follow.relevance import relevant_of_claim, relevant_of_node, relevant_of_object, relevant_of_pod
from kant.kube.follow.scale_ups import ScaleUps
from kant.kube.follow.store import Store, own_name, space_name
from kant.kube.objects.names import TAINT_RULES
from kant.kube.objects.views import (
    Claim,
    DisruptionBudget,
    Namespace,
    Node,
    PersistentVolume,
    Pod,
    StorageClass,
    Unstructured,
)
from kant.kube.translate.resizing import as_counted, is_resized
from kant.kube.translate.volumes import SELECTED_NODE, ClaimName, Storage, claims_of

if TYPE_CHECKING:
    from kant.kube.follow.device_mirror import DeviceMirror

ENDED = ("Succeeded", "Failed")


def is_over(pod: Pod) -> bool:
    """Whether the pod has ended (Succeeded or Failed), so that its resources on the node are free."""
    return pod.status.phase in ENDED


@dataclass(slots=True)
class Mirror:
    """`pods` are by uid, `nodes` by name, `objects` by kind and then (namespace, name). `on_node` has the uids of a
    node's pods. `version` counts relevant changes of pods and nodes, `volume_version` changes of volumes.

    `bound_here` has the nodes of pods that Kant has bound, until the watch shows the bindings; `notes_here` has the
    annotations sent with them. Disruption `budgets` and `claims` are by (namespace, name), `volumes` and
    `storage_classes` by name. `unreadable` has the paths of claims, volumes and classes that Kant may not read. `users`
    has the uids of the pods that use a claim, `selected` the claims whose volume is being provisioned for a node.

    `touched` has the changed pods by uid (a deleted pod in its last version), `resized` the uids of pods whose requests
    changed; `nodes_touched` has names, `budgets_touched` and `objects_touched` (kind, namespace, name).
    `claims_touched` has claims that changed, or whose volume or class changed. `namespaces` replaces, in the affinity
    of pods, selectors of namespaces by names. `serves_devices`: the cluster has the API of dynamic resource allocation;
    `unreadable_devices` has its paths that Kant may not read. Only of waiting pods of `schedulers` is every change
    relevant; of other pods, reports without news are ignored. Empty: every change counts.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: Store[str, Node] = field(init=False)
    all_namespaces: Store[str, Namespace] = field(init=False)
    objects: dict[str, Store[tuple[str, str], Unstructured]] = field(default_factory=dict)
    budgets: Store[tuple[str, str], DisruptionBudget] = field(init=False)
    claims: Store[ClaimName, Claim] = field(init=False)
    volumes: Store[str, PersistentVolume] = field(init=False)
    storage_classes: Store[str, StorageClass] = field(init=False)
    unreadable: set[str] = field(default_factory=set)
    users: dict[ClaimName, dict[str, None]] = field(default_factory=dict)
    selected: dict[ClaimName, None] = field(default_factory=dict)
    volume_version: int = 0
    version: int = 0
    on_node: dict[str, dict[str, None]] = field(default_factory=dict)
    touched: dict[str, Pod] = field(default_factory=dict)
    resized: dict[str, None] = field(default_factory=dict)
    bound_here: dict[str, str] = field(default_factory=dict)
    notes_here: dict[str, dict[str, str]] = field(default_factory=dict)
    nodes_touched: dict[str, None] = field(default_factory=dict)
    objects_touched: dict[tuple[str, str, str], None] = field(default_factory=dict)
    budgets_touched: dict[tuple[str, str], None] = field(default_factory=dict)
    namespaces: Namespaces = field(default_factory=Namespaces)
    claims_touched: dict[ClaimName, None] = field(default_factory=dict)
    serves_devices: bool = False
    unreadable_devices: set[str] = field(default_factory=set)
    csi: CsiMirror = field(default_factory=CsiMirror)
    scale_ups: ScaleUps = field(default_factory=ScaleUps)
    schedulers: tuple[str, ...] = ()
    _devices: DeviceMirror | None = None

    def __post_init__(self) -> None:
        self.nodes = Store(own_name, self._node_changed, relevant_of_node)
        self.all_namespaces = Store(own_name, self._namespace_changed, lambda one: one.metadata.labels)
        self.budgets = Store(space_name, lambda key, *_: self.budgets_touched.setdefault(key))
        self.claims = Store(space_name, self._claim_changed, relevant_of_claim)
        self.volumes = Store(own_name, self._volume_changed)
        self.storage_classes = Store(own_name, lambda *_: self.claims_touched.update(dict.fromkeys(self.users)))

    # --- pods ---------------------------------------------------------------

    def pod(self, kind: str, pod: Pod) -> bool:
        """Record that a pod was added, modified or deleted (`kind`). Returns False if nothing relevant has changed."""
        uid = pod.metadata.uid
        from_watch = uid not in self.bound_here
        pod = self.namespaces.resolved(self._with_node(as_counted(pod), kind == "deleted"))
        if self._devices is not None or pod.status.extended_resource_claim_status is not None:
            pod = self.devices.resolved(pod, kind == "deleted")
        if kind == "deleted":
            self.namespaces.selecting.pop(uid, None)
        before = self.pods.get(uid)
        if from_watch and kind == "modified" and before is not None and self._is_same(before, pod):
            self.pods[uid] = pod
            return False
        self.version += 1
        self.pods.pop(uid, None)
        self._count(before, False)
        if kind != "deleted":
            self.pods[uid] = pod
            self._count(pod, True)
            if before is not None and is_resized(before.spec, pod.spec):
                self.resized[uid] = None
        self._note_claims(pod, kind == "deleted")
        self.touched[uid] = pod
        return True

    def _is_same(self, before: Pod, now: Pod) -> bool:
        """Whether nothing relevant has changed in a pod that is bound, or that waits for another scheduler."""
        at, ours = now.spec.node_name, self.schedulers
        if before.spec.node_name != at or not (at or (ours and now.spec.scheduler_name not in ours)):
            return False
        return relevant_of_pod(before) == relevant_of_pod(now)

    def _note_claims(self, pod: Pod, gone: bool = False) -> None:
        if pod.spec.resource_claims:
            self.devices.pod(pod, gone)
        for name in claims_of(pod):
            claim = pod.metadata.namespace, name
            if gone or is_over(pod):
                self.claims_touched[claim] = None
            if not gone:
                self.users.setdefault(claim, {})[pod.metadata.uid] = None
            elif claim in self.users:
                self.users[claim].pop(pod.metadata.uid, None)
                if not self.users[claim]:
                    del self.users[claim]

    def _with_node(self, pod: Pod, gone: bool = False) -> Pod:
        """Return the pod with the node to which Kant has bound it, if the watch does not show the binding yet."""
        node = self.bound_here.get(pod.metadata.uid) if self.bound_here else None
        if node is None:
            return pod
        if gone or pod.spec.node_name:
            del self.bound_here[pod.metadata.uid]
            self.notes_here.pop(pod.metadata.uid, None)
            return pod
        pod = replace(pod, spec=replace(pod.spec, node_name=node))
        notes = self.notes_here.get(pod.metadata.uid)
        if notes:
            own = {**(pod.metadata.annotations or {}), **notes}
            pod = replace(pod, metadata=replace(pod.metadata, annotations=own))
        return pod

    def apply_bindings(self, uids: Iterable[str]) -> None:
        """Treat these pods, which Kant has bound, as if the watch already showed their bindings."""
        for uid in uids:
            pod = self.pods.get(uid) if uid in self.bound_here else None
            if pod is not None and not pod.spec.node_name:
                self.pod("modified", pod)

    def _count(self, pod: Pod | None, there: bool) -> None:
        """Add a pod to the index of its node, or remove it."""
        if pod is None or not pod.spec.node_name or is_over(pod):
            return
        own = self.on_node.setdefault(pod.spec.node_name, {})
        own.pop(pod.metadata.uid, None)
        if there:
            own[pod.metadata.uid] = None
        elif not own:
            del self.on_node[pod.spec.node_name]

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        """Replace all pods."""
        fresh = {pod.metadata.uid: pod for pod in pods}
        for uid in [uid for uid in self.pods if uid not in fresh]:
            self.pod("deleted", self.pods[uid])
        for uid, pod in fresh.items():
            before = self.pods.get(uid)
            if before is None or before.metadata.resource_version != pod.metadata.resource_version:
                self.pod("modified", pod)

    # --- devices ---------------------------------------------------------------

    @property
    def has_devices(self) -> bool:
        """Whether Kant has ever seen a ResourceSlice, DeviceClass, taint rule, ResourceClaim or pod with a claim."""
        return self._devices is not None

    @property
    def devices(self) -> DeviceMirror:
        """Devices, and claims to them; imported on first use."""
        if self._devices is None:
            from kant.kube.follow.device_mirror import DeviceMirror

            self._devices = DeviceMirror(self._served_otherwise)
        return self._devices

    def _served_otherwise(self) -> None:
        """Update which pods need a claim for their extended resources."""
        for pod in list(self.pods.values()):
            now = self.devices.resolved(pod)
            if now != pod:
                self.pod("modified", now)

    # --- nodes and namespaces ---------------------------------------------------------------

    def _node_changed(self, name: str, *_: object) -> None:
        self.version += 1
        self.nodes_touched[name] = None

    def _namespace_changed(self, name: str, before: Namespace | None, now: Namespace | None) -> None:
        """Update which namespaces pods select, after a namespace was added, changed or deleted."""
        self.namespaces.note(name, now)
        found = self.namespaces.again(self.pods.values())
        for pod in found:
            self.pod("modified", pod)
        self.namespaces.touched |= bool(found)

    # --- storage ---------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        """A live view of claims, volumes, classes and nodes: it shows later changes, too."""
        return Storage(self.claims, self.volumes, self.storage_classes, self.nodes, not self.unreadable)

    def _claim_changed(self, key: ClaimName, before: Claim | None, now: Claim | None) -> None:
        self.selected.pop(key, None)
        if now is not None and not now.spec.volume_name and SELECTED_NODE in (now.metadata.annotations or {}):
            self.selected[key] = None
        self.claims_touched[key] = None

    def _volume_changed(self, key: str, *volumes: PersistentVolume | None) -> None:
        self.volume_version += 1
        for volume in volumes:
            if volume is not None and volume.spec.claim_ref is not None:
                self.claims_touched[volume.spec.claim_ref.namespace, volume.spec.claim_ref.name] = None

    # --- other objects ---------------------------------------------------------------

    def kind(self, plural: str) -> Store[tuple[str, str], Unstructured]:
        """Return the objects of the kind with this plural name."""

        def changed(key: tuple[str, str], *_: object) -> None:
            self.objects_touched[(plural, *key)] = None
            if plural == TAINT_RULES:
                self.devices.taint_rules(self.objects[plural].values())

        if plural not in self.objects:
            self.objects[plural] = Store(space_name, changed, partial(relevant_of_object, plural))
        return self.objects[plural]

    def named(self, plural: str, namespace: str, name: str) -> Unstructured | None:
        """Return one object of the kind `plural`; None if it does not exist."""
        return self.kind(plural).get((namespace, name))
