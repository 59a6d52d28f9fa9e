"""The mirror of dynamic resource allocation: slices of devices, their classes and claims, as they were said last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kant.kube.objects.device_views import DeviceClass, ResourceClaim, ResourceSlice
from kant.kube.objects.views import Pod
from kant.kube.translate.device_claims import held_by, is_ours, key_of, known_names
from kant.kube.translate.devices import DeviceId, Inventory
from kant.kube.translate.volumes import ClaimName

REMEMBERED = 10_000


@dataclass(slots=True)
class DeviceMirror:
    """`slices` by name, `classes` by name, `claims` by (namespace, name). `users` are the uids of the pods that use a
    claim, `gone` those of pods that did, the last of them. `holders` are the claims that a device is allocated to, and
    `ours` those that Kant has allocated.

    `is_served`: the cluster has this API; `unreadable` are the paths of it that we may not read. `touched` has claims
    of which something changed, and `is_new` says whether slices or classes have.
    """

    slices: dict[str, ResourceSlice] = field(default_factory=dict)
    classes: dict[str, DeviceClass] = field(default_factory=dict)
    claims: dict[ClaimName, ResourceClaim] = field(default_factory=dict)
    users: dict[ClaimName, dict[str, None]] = field(default_factory=dict)
    holders: dict[DeviceId, dict[ClaimName, None]] = field(default_factory=dict)
    ours: dict[ClaimName, None] = field(default_factory=dict)
    is_served: bool = False
    unreadable: set[str] = field(default_factory=set)
    gone: dict[str, None] = field(default_factory=dict)
    touched: dict[ClaimName, None] = field(default_factory=dict)
    is_new: bool = False
    version: int = 0
    _inventory: Inventory | None = None

    @property
    def inventory(self) -> Inventory:
        """All devices there are."""
        if self._inventory is None:
            self._inventory = Inventory(self.slices.values())
        return self._inventory

    def slice(self, kind: str, one: ResourceSlice) -> None:
        """A slice was added, modified or deleted."""
        if kind == "deleted":
            self.slices.pop(one.metadata.name, None)
        else:
            self.slices[one.metadata.name] = one
        self._renew()

    def replace_slices(self, slices: Iterable[ResourceSlice]) -> None:
        """All slices there are."""
        self.slices = {one.metadata.name: one for one in slices}
        self._renew()

    def device_class(self, kind: str, one: DeviceClass) -> None:
        """A class was added, modified or deleted."""
        if kind == "deleted":
            self.classes.pop(one.metadata.name, None)
        else:
            self.classes[one.metadata.name] = one
        self._renew()

    def replace_classes(self, classes: Iterable[DeviceClass]) -> None:
        """All classes there are."""
        self.classes = {one.metadata.name: one for one in classes}
        self._renew()

    def _renew(self) -> None:
        self._inventory, self.is_new, self.version = None, True, self.version + 1
        self.touched.update(dict.fromkeys(self.users))

    def claim(self, kind: str, claim: ResourceClaim) -> None:
        """A claim was added, modified or deleted."""
        key, before = key_of(claim), self.claims.pop(key_of(claim), None)
        self._hold(before, False)
        if kind != "deleted":
            self.claims[key] = claim
            self._hold(claim, True)
        if kind == "deleted" or before is None or _essence(before) != _essence(claim):
            self.touched[key] = None

    def replace_claims(self, claims: Iterable[ResourceClaim]) -> None:
        """All claims there are."""
        self.claims = {key_of(claim): claim for claim in claims}
        self.holders.clear()
        self.ours.clear()
        for claim in self.claims.values():
            self._hold(claim, True)
        self.touched.update(dict.fromkeys((*self.claims, *self.users)))

    def _hold(self, claim: ResourceClaim | None, there: bool) -> None:
        if claim is None:
            return
        key = key_of(claim)
        for device in held_by(claim):
            if there:
                self.holders.setdefault(device, {})[key] = None
            elif device in self.holders:
                self.holders[device].pop(key, None)
                if not self.holders[device]:
                    del self.holders[device]
        self.ours.pop(key, None)
        if there and is_ours(claim):
            self.ours[key] = None

    def pod(self, pod: Pod, gone: bool) -> None:
        """Note which claims a pod uses, and touch them where it does so no more."""
        if gone:
            self.gone[pod.metadata.uid] = None
            if len(self.gone) > REMEMBERED:
                del self.gone[next(iter(self.gone))]
        for name in known_names(pod):
            key = pod.metadata.namespace, name
            if not gone:
                users = self.users.setdefault(key, {})
                users[pod.metadata.uid] = None
                if len(users) > 1:  # what one gets is what the others get
                    self.touched[key] = None
            elif key in self.users:
                self.touched[key] = None
                self.users[key].pop(pod.metadata.uid, None)
                if not self.users[key]:
                    del self.users[key]


def _essence(claim: ResourceClaim) -> tuple[object, ...]:
    """All of a claim that pods which wait depend on."""
    meta = claim.metadata
    return meta.uid, meta.deletion_timestamp, claim.spec, claim.status.allocation, len(claim.status.reserved_for)
