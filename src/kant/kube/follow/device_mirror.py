"""The mirror of dynamic resource allocation: the latest ResourceSlices, DeviceClasses and ResourceClaims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec.structs import replace

from kant.kube.follow.store import Store, own_name
from kant.kube.objects.device_views import DeviceClass, ResourceClaim, ResourceSlice
from kant.kube.objects.views import Pod, PodClaim, Unstructured
from kant.kube.translate.device_claims import held_by, is_made, is_ours, key_of, known_names
from kant.kube.translate.device_taints import DeviceTaintRule, taint_rule
from kant.kube.translate.devices import DeviceId, Inventory
from kant.kube.translate.extended_claims import ExtendedClaim, extended_of, name_for, served_by
from kant.kube.translate.volumes import ClaimName

REMEMBERED = 10_000


class FollowedKind(NamedTuple):
    """The type as which objects of a kind are decoded, and functions that record one changed object or all objects."""

    view: type[Any]
    change: Callable[[str, Any], object]
    replace: Callable[[list[Any]], None]


@dataclass(slots=True)
class DeviceMirror:
    """`slices` by name, `classes` by name, `claims` by (namespace, name). `users` has the uids of the pods that use a
    claim, `gone` those of the last deleted pods that used one. `holders` has the claims to which a device is allocated,
    `ours` the claims that Kant has allocated.

    `touched` has the changed claims. `rules` has the DeviceTaintRules. `is_new`: rules, slices or classes have changed.

    `served` has, by extended resource, the class that provides it. `extended` has the claims for extended resources of
    pods without a node. They are also in `claims`, without a uid until they are created. `on_served` is called when
    classes begin or cease to provide extended resources.

    `kinds` has, by plural, the view of each followed kind and the functions that record one change or all objects.
    """

    on_served: Callable[[], None] = lambda: None

    slices: Store[str, ResourceSlice] = field(init=False)
    classes: Store[str, DeviceClass] = field(init=False)
    claims: dict[ClaimName, ResourceClaim] = field(default_factory=dict)
    users: dict[ClaimName, dict[str, None]] = field(default_factory=dict)
    holders: dict[DeviceId, dict[ClaimName, None]] = field(default_factory=dict)
    ours: dict[ClaimName, None] = field(default_factory=dict)
    gone: dict[str, None] = field(default_factory=dict)
    touched: dict[ClaimName, None] = field(default_factory=dict)
    is_new: bool = False
    version: int = 0
    rules: tuple[DeviceTaintRule, ...] = ()
    served: dict[str, str] = field(default_factory=dict)
    extended: dict[ClaimName, ExtendedClaim] = field(default_factory=dict)
    kinds: dict[str, FollowedKind] = field(init=False)
    _inventory: Inventory | None = None

    def __post_init__(self) -> None:
        self.slices = Store(own_name, self._renew)
        self.classes = Store(own_name, self._classes_changed)
        self.kinds = {
            "deviceclasses": FollowedKind(DeviceClass, self.classes.change, self.classes.replace),
            "resourceslices": FollowedKind(ResourceSlice, self.slices.change, self.slices.replace),
            "resourceclaims": FollowedKind(ResourceClaim, self.claim, self.replace_claims),
        }

    @property
    def inventory(self) -> Inventory:
        """All devices of the cluster."""
        if self._inventory is None:
            self._inventory = Inventory(self.slices.values(), self.rules)
        return self._inventory

    def taint_rules(self, rules: Iterable[Unstructured]) -> None:
        """Replace all DeviceTaintRules by these objects."""
        self.rules = tuple(taint_rule(one) for one in rules)
        self._renew()

    def _classes_changed(self, *_: object) -> None:
        self._renew()
        before, self.served = self.served, served_by(self.classes.values())
        if before != self.served:
            self.on_served()

    def _renew(self, *_: object) -> None:
        self._inventory, self.is_new, self.version = None, True, self.version + 1
        self.touched.update(dict.fromkeys(self.users))

    def claim(self, kind: str, claim: ResourceClaim) -> None:
        """Record that a claim was added, modified or deleted."""
        key, before = key_of(claim), self.claims.pop(key_of(claim), None)
        self._hold(before, False)
        if kind != "deleted":
            self.claims[key] = claim
            self._hold(claim, True)
        elif key in self.extended:  # the pod still needs the claim, which may be created again
            self.claims[key] = self.extended[key].claim(version=f"after {claim.metadata.resource_version}")
        if kind == "deleted" or before is None or _relevant(before) != _relevant(claim):
            self.touched[key] = None

    def replace_claims(self, claims: Iterable[ResourceClaim]) -> None:
        """Replace all claims."""
        fresh = {key_of(claim): claim for claim in claims}
        for claim in [one for key, one in self.claims.items() if key not in fresh and is_made(one)]:
            self.claim("deleted", claim)
        for claim in fresh.values():
            self.claim("modified", claim)

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

    # --- extended resources ----------------------------------------------------------------------------------------

    def resolved(self, pod: Pod, gone: bool = False) -> Pod:
        """Return the pod with the claim for its extended resources, if device classes provide some of them.

        A waiting pod may need the claim; a bound pod has the claim if the pod's status says so, or if the claim exists.
        """
        spec, said = pod.spec, pod.status.extended_resource_claim_status
        found = extended_of(pod, self.served) if self.served else None
        if found is None and said is None and not spec.by_claim:
            return pod
        own = spec.resource_claims[:-1] if spec.by_claim else spec.resource_claims
        key = pod.metadata.namespace, name_for(pod)
        known = self.claims.get(key)
        if found is not None and not gone and not spec.node_name:
            self.extended[key] = found
            if known is None or not is_made(known):
                self.claims[key] = found.claim(version=known.metadata.resource_version if known is not None else "")
            name = found.name
        else:
            self._forget_extended(key)
            name = said.resource_claim_name if said is not None else ""
            name = name or (key[1] if known is not None and is_made(known) else "")
        if not name:
            return replace(pod, spec=replace(spec, resource_claims=own, by_claim=())) if spec.by_claim else pod
        served = tuple(one.resource for one in found.parts) if found is not None else ("extended resources",)
        claim = PodClaim(", ".join(served), resource_claim_name=name)
        return replace(pod, spec=replace(spec, resource_claims=(*own, claim), by_claim=served))

    def _forget_extended(self, key: ClaimName) -> None:
        if self.extended.pop(key, None) is not None and not is_made(self.claims[key]):
            del self.claims[key]

    def pod(self, pod: Pod, gone: bool) -> None:
        """Record which claims a pod uses, and mark them as changed when it stops using them."""
        if gone:
            self.gone[pod.metadata.uid] = None
            if len(self.gone) > REMEMBERED:
                del self.gone[next(iter(self.gone))]
        for name in known_names(pod):
            key = pod.metadata.namespace, name
            if not gone:
                users = self.users.setdefault(key, {})
                users[pod.metadata.uid] = None
                if len(users) > 1:  # the pods share the devices of the claim
                    self.touched[key] = None
            elif key in self.users:
                self.touched[key] = None
                self.users[key].pop(pod.metadata.uid, None)
                if not self.users[key]:
                    del self.users[key]


def _relevant(claim: ResourceClaim) -> tuple[object, ...]:
    """Return what decides whether waiting pods can use a claim."""
    meta = claim.metadata
    return meta.uid, meta.deletion_timestamp, claim.spec, claim.status.allocation, len(claim.status.reserved_for)
