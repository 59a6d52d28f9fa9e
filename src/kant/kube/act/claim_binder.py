"""The claim binder: writes the devices chosen for the claims of a workload before its pods are bound.

All claims of a workload are decided before the first is written, and all are written before the first pod is bound. The
claims themselves are the only record: Kant withdraws each of its allocations that no bound or placed pod uses. So the
outcome is the same after a refused write, a failed binding, the end of a pod, or a crash of the leader.

Source: kube-scheduler's plugin DynamicResources (bindClaim, Unreserve), and the resource claim controller, which also
withdraws the claims of ended pods.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from kant.kube.act.effects import Effects, RefusedError, Step, Work
from kant.kube.connect.client import ApiError
from kant.kube.follow.informers import DEVICES
from kant.kube.follow.mirror import Mirror
from kant.kube.objects.device_views import ResourceClaim
from kant.kube.objects.names import ALLOCATED
from kant.kube.objects.views import Pod, RequestMapping
from kant.kube.reconcile.device_allocations import ClaimPlan, DeviceAllocations
from kant.kube.reconcile.slots import Slot, coming
from kant.kube.reconcile.workload import Workload
from kant.kube.translate.attached_devices import unattached
from kant.kube.translate.device_claims import FINALIZER, identity, is_made, key_of, known_names, with_consumers
from kant.kube.translate.device_results import results_of
from kant.kube.translate.extended_claims import body_of, requests_same
from kant.kube.translate.volumes import ClaimName

PATIENCE = 60.0  # seconds to wait for devices that are being freed
GRACE = 5.0  # seconds after which a pod that was never seen counts as gone
REST = 10.0  # seconds until Kant checks again whether a device is attached
LOOK = 0.5  # seconds between two searches for claims to withdraw


class ClaimBinder:
    """Writes claims as effects. Each written claim has the leader's token: the API server rejects any other token."""

    def __init__(self, effects: Effects, mirror: Mirror, allocations: DeviceAllocations) -> None:
        self.effects = effects
        self.step: Step[ClaimName] = effects.step()
        self.mirror = mirror
        self.allocations = allocations
        self.clock = effects.clock
        self._written_at = -GRACE  # when the last effect began
        self._since: dict[str, float] = {}  # by pod uid: since when the pod waits for devices, or is not seen
        self._noted: dict[str, str] = {}  # by pod uid: the uid of the claim that the pod's status names
        self._looked = 0.0
        self.unattached: deque[tuple[Workload, str]] = deque()  # what workloads wait for, to be reported
        self._failed: dict[ClaimName, tuple[float, str]] = {}  # when attaching may be tried again, and why it failed

    @property
    def is_busy(self) -> bool:
        """Whether a request is unanswered, or the watch does not show its outcome yet."""
        unheard = self.clock() - self._written_at < GRACE and any(map(self._is_unseen, self.mirror.devices.claims))
        return bool(self.step.in_flight) or unheard

    def _is_unseen(self, key: ClaimName) -> bool:
        return self.step.is_unseen(key, self.mirror.devices.claims[key].metadata.resource_version)

    # --- pods to be bound -----------------------------------------------------------------------------------------

    def prepare(self, workload: Workload) -> bool:
        """Whether the workload's pods have all of their claims; write the missing ones. Raises RefusedError."""
        users = self._users(workload)
        unneeded = self._unneeded(workload) if self.mirror.devices.extended else {}
        if not users and not unneeded:
            return True
        self.allocations.expect(workload)
        missing = {key: there for key, there in users.items() if not self._has(key, there)}
        for key, slot in ({key: there[0][0] for key, there in missing.items()} | unneeded).items():
            if why := self.step.refusals.pop(key, ""):
                raise RefusedError(slot, f"its claim {key[1]} cannot be allocated: {why}", "claim")
            if key not in self.mirror.devices.claims:
                raise RefusedError(slot, f"its claim {key[1]} no longer exists", "claim")
        slots = {slot.pod for slot in workload.slots}
        if not missing and not unneeded:
            self._since = {uid: at for uid, at in self._since.items() if uid not in slots}
            return self._are_attached(workload, users)
        for key in missing:
            if key in self._failed and self._failed[key][0] > self.clock():
                self.unattached.append((workload, self._failed[key][1]))
                return False
        first = next(iter(missing.values()))[0][0] if missing else next(iter(unneeded.values()))
        if not all(self._is_planned(key, there) for key, there in missing.items()):
            placed = {pod.metadata.uid: (slot.node, pod) for there in missing.values() for slot, pod in there}
            why = self.allocations.promise(list(placed.values()))
            if why:
                raise RefusedError(first, why, "claim")
        if self.clock() - self._since.setdefault(first.pod, self.clock()) > PATIENCE:
            del self._since[first.pod]
            raise RefusedError(first, f"its claims could not be allocated in {PATIENCE:g} s", "claim")
        for key, slot in unneeded.items():
            self._begin(key, partial(self._remove, self.mirror.devices.claims[key], slot.pod))
        if not unneeded and self._is_free(missing):
            for key, there in missing.items():
                claim = self.mirror.devices.claims[key]
                plan = None if self.allocations.requests.is_settled(claim) else self.allocations.plans[key]
                self._begin(key, partial(self._write, claim, plan, [pod for _, pod in there]))
        return False

    def _are_attached(self, workload: Workload, users: dict[ClaimName, list[tuple[Slot, Pod]]]) -> bool:
        """Whether all devices are attached that must be attached before pods are bound. Raises RefusedError."""
        waits = ""
        for key, there in users.items():
            claim = self.mirror.devices.claims[key]
            found = unattached(claim, time.time())
            if found is not None and found.lost and not self._is_unseen(key):
                if not self.allocations.requests.is_settled(claim):
                    self._begin(key, partial(self._release, claim))
                self._failed[key] = self.clock() + REST, found.why
                raise RefusedError(there[0][0], found.why, "claim")
            waits = waits or (found.why if found is not None else "")
        if waits:
            self.unattached.append((workload, waits))
        return not waits

    def _begin(self, key: ClaimName, work: Work) -> None:
        if self.step.begin(key, work, self.mirror.devices.claims[key].metadata.resource_version):
            self._written_at = self.clock()

    def _is_planned(self, key: ClaimName, users: list[tuple[Slot, Pod]]) -> bool:
        if self.allocations.requests.is_settled(self.mirror.devices.claims[key]):
            return True
        plan = self.allocations.plans.get(key)
        return plan is not None and {pod.metadata.uid for _, pod in users} <= set(plan.pods)

    def _users(self, workload: Workload) -> dict[ClaimName, list[tuple[Slot, Pod]]]:
        """Return the claims of the workload's unbound pods, each with the pods that use it."""
        found: dict[ClaimName, list[tuple[Slot, Pod]]] = {}
        for slot, pod in coming(workload.slots, self.mirror.pods):
            for name in known_names(pod):
                key = pod.metadata.namespace, name
                if not pod.spec.by_claim or self.allocations.needed_at(key, slot.node) != ():
                    found.setdefault(key, []).append((slot, pod))
        return found

    def _unneeded(self, workload: Workload) -> dict[ClaimName, Slot]:
        """Return the claims for extended resources which the pods of a workload do not need on their nodes.

        Raises RefusedError for a claim that another program created.
        """
        found: dict[ClaimName, Slot] = {}
        devices = self.mirror.devices
        for slot, pod in coming(workload.slots, self.mirror.pods):
            if not pod.spec.by_claim:
                continue
            key = pod.metadata.namespace, pod.spec.resource_claims[-1].resource_claim_name or ""
            needed, claim = self.allocations.needed_at(key, slot.node), devices.claims.get(key)
            if needed is None or claim is None or not is_made(claim):
                continue
            if identity(claim) != pod.metadata.uid:
                why = f"the claim {key[1]}, which would be created for it, exists already"
                raise RefusedError(slot, why, "claim")
            is_same = bool(needed) and requests_same(claim, devices.extended[key].claim(needed))
            if not is_same or claim.metadata.deletion_timestamp is not None:
                found[key] = slot
        return found

    def _has(self, key: ClaimName, users: list[tuple[Slot, Pod]]) -> bool:
        """Whether a claim is allocated as planned, and reserved for the pods of `users`."""
        claim, plan = self.mirror.devices.claims.get(key), self.allocations.plans.get(key)
        if claim is None or claim.status.allocation is None or key in self.step.in_flight:
            return False
        reserved = {one.uid for one in claim.status.reserved_for}
        if not all(pod.metadata.uid in reserved for _, pod in users):
            return False
        if plan is not None and plan.made is not None and not self._is_noted(claim, plan, users[0][1]):
            return False
        return self.allocations.requests.is_settled(claim) or (plan is not None and _is_as(claim, plan))

    def _is_noted(self, claim: ResourceClaim, plan: ClaimPlan, pod: Pod) -> bool:
        """Whether the pod's status, as seen or as just written, names the claim for the pod's extended resources."""
        if pod.metadata.uid in self._noted:
            return self._noted[pod.metadata.uid] == claim.metadata.uid
        said = pod.status.extended_resource_claim_status
        return said is not None and said.request_mappings == self._mappings(plan)

    def _mappings(self, plan: ClaimPlan) -> tuple[RequestMapping, ...]:
        return self.mirror.devices.extended[plan.claim].mappings(plan.extended)

    def _is_free(self, missing: dict[ClaimName, list[tuple[Slot, Pod]]]) -> bool:
        """Whether no other claim holds the devices planned for `missing`: an earlier one may not have freed them."""
        holders = self.mirror.devices.holders
        for key in missing:
            plan = self.allocations.plans.get(key)
            for grant in plan.grants if plan is not None else ():
                dedicated = not (grant.want.admin or grant.device.shared)
                if dedicated and any(holder not in missing for holder in holders.get(grant.device.id, ())):
                    return False
        plans = [plan for key in missing if (plan := self.allocations.plans.get(key)) is not None]
        return not self.allocations.is_beyond([grant for plan in plans for grant in plan.grants], missing)

    async def _write(self, claim: ResourceClaim, plan: ClaimPlan | None, pods: list[Pod]) -> None:
        """Allocate a claim by `plan` (None: leave it), and reserve it for `pods` and its other placed pods."""
        if plan is not None and plan.made is not None:
            claim = await self._create(plan, claim)
        reserved = claim.status.reserved_for
        status: dict[str, Any] = {}
        if plan is None or _is_as(claim, plan):
            claim = await self._signed(claim)
        else:
            claim = await self._signed(claim, {ALLOCATED: "true"})
            if claim.status.allocation is not None:  # Kant wrote it for an earlier plan: remove it first
                claim = await self._patch(claim, {"status": {"allocation": None, "reservedFor": None}}, "/status")
            reserved = ()
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            status["allocation"] = results_of(claim, plan.grants, self.mirror.devices.classes, plan.node, now)
        users = (uid for uid in self.mirror.devices.users.get(key_of(claim), ()) if self.allocations.is_placed(uid))
        others = [self.mirror.pods[uid] for uid in users if uid in self.mirror.pods]
        status["reservedFor"] = msgspec.to_builtins(with_consumers(reserved, pods, others))
        claim = await self._patch(claim, {"status": status}, "/status")
        if plan is not None and plan.made is not None:
            await self._note(claim, plan, pods[0])

    async def _signed(self, claim: ResourceClaim, marks: dict[str, str] | None = None) -> ResourceClaim:
        """Return the claim with the token of this leader, and with `marks` also these annotations and a finalizer."""
        notes = (marks or {}) | self.effects.signature
        there = claim.metadata.annotations or {}
        is_bare = marks is not None and FINALIZER not in claim.metadata.finalizers
        if not is_bare and all(there.get(key) == value for key, value in notes.items()):
            return claim
        kept = {"finalizers": [*dict.fromkeys((*claim.metadata.finalizers, FINALIZER))]} if is_bare else {}
        return await self._patch(claim, {"metadata": {"annotations": notes} | kept})

    # --- claims for extended resources ----------------------------------------------------------------------------

    async def _create(self, plan: ClaimPlan, claim: ResourceClaim) -> ResourceClaim:
        """Return the claim that a pod needs on its node; create the claim if it does not exist."""
        assert plan.made is not None
        if is_made(claim):
            return claim
        path = f"{DEVICES}/namespaces/{plan.claim[0]}/resourceclaims"
        body = body_of(plan.made, self.effects.signature)
        raw = await self.effects.client.create(path, body, guard=self.effects.holds, timeout=self.effects.timeout)
        return msgspec.json.decode(raw, type=ResourceClaim)

    async def _note(self, claim: ResourceClaim, plan: ClaimPlan, pod: Pod) -> None:
        """Write into the pod's status, for the kubelet, which claim has the pod's extended resources."""
        mappings = [msgspec.to_builtins(one) for one in self._mappings(plan)]
        found = await self._tell(pod, {"resourceClaimName": claim.metadata.name, "requestMappings": mappings})
        if found.status.extended_resource_claim_status is None:
            what = ", ".join(plan.extended)
            self.step.refusals[plan.claim] = (
                f"the API server does not let device classes serve extended resources, such as {what} "
                "(its feature gate DRAExtendedResource is off)"
            )
            return
        self._noted[pod.metadata.uid] = claim.metadata.uid

    async def _tell(self, pod: Pod, status: dict[str, Any] | None) -> Pod:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": {"extendedResourceClaimStatus": status}}
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/status"
        return msgspec.json.decode(await self.effects.patch(path, body), type=Pod)

    async def _remove(self, claim: ResourceClaim, uid: str) -> None:
        """Delete a claim that a pod does not need on its new node."""
        pod = self.mirror.pods.get(uid)
        if pod is not None and pod.status.extended_resource_claim_status is not None:
            await self._tell(pod, None)
        self._noted[uid] = ""
        await self._release(claim)

    # --- unused claims --------------------------------------------------------------------------------------------

    def take_back(self) -> None:
        """Withdraw the allocations by Kant that no bound or placed pod uses."""
        now, devices = self.clock(), self.mirror.devices
        if now - self._looked < LOOK or not (devices.ours or self._since or self._noted or self._failed):
            return
        self._looked = now
        unseen: dict[str, float] = {}
        for key in list(devices.ours):
            claim = devices.claims[key]
            if key in self.step.in_flight or self._is_unseen(key):
                continue
            if not self.allocations.requests.is_settled(claim) and not self._is_awaited(claim, unseen):
                self._begin(key, partial(self._release, claim))
        self._failed = {key: one for key, one in self._failed.items() if one[0] > now}
        waits = {uid: at for uid, at in self._since.items() if uid in self.mirror.pods}
        self._since = waits | unseen
        self._noted = {uid: claim for uid, claim in self._noted.items() if uid in self.mirror.pods}

    def _is_awaited(self, claim: ResourceClaim, unseen: dict[str, float]) -> bool:
        """Whether a placed pod uses the claim or may use it: the watch of pods may lag behind that of claims."""
        now, awaited = self.clock(), False
        plan = self.allocations.plans.get(key_of(claim))
        for uid in [*(one.uid for one in claim.status.reserved_for), *(plan.pods if plan is not None else ())]:
            if self.allocations.is_left(uid):
                continue
            if uid not in self.mirror.pods:
                unseen[uid] = self._since.get(uid, now)
            awaited = awaited or uid in self.mirror.pods or now - unseen[uid] < GRACE
        return awaited

    async def _release(self, claim: ResourceClaim) -> None:
        claim = await self._signed(claim)
        if claim.status.allocation is not None:
            claim = await self._patch(claim, {"status": {"allocation": None, "reservedFor": None}}, "/status")
        finalizers = [one for one in claim.metadata.finalizers if one != FINALIZER]
        is_own = claim.metadata.uid != identity(claim)
        claim = await self._patch(claim, {"metadata": {"finalizers": finalizers, "annotations": {ALLOCATED: None}}})
        if is_own and claim.metadata.deletion_timestamp is None:
            await self.effects.client.delete(
                _path(claim), uid=claim.metadata.uid, guard=self.effects.holds, timeout=self.effects.timeout
            )

    async def _patch(self, claim: ResourceClaim, change: dict[str, Any], part: str = "") -> ResourceClaim:
        """Change the claim, unless another write has changed it since it was read. Returns the changed claim."""
        known = {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        body = change | {"metadata": change.get("metadata", {}) | known}
        try:
            raw = await self.effects.patch(f"{_path(claim)}{part}", body)
            changed = msgspec.json.decode(raw, type=ResourceClaim)
        except ApiError as error:
            if part or error.code != 422:
                raise
            changed = await self._put(claim, change["metadata"])
        if changed.metadata.resource_version != known["resourceVersion"]:
            self.step.replaced(key_of(claim), known["resourceVersion"])
        return changed

    async def _put(self, claim: ResourceClaim, change: dict[str, Any]) -> ResourceClaim:
        """Change only metadata, where a JSON patch would also change driver parameters (written with spaces)."""
        meta, notes, effects = claim.metadata, change.get("annotations", {}), self.effects
        version = await effects.client.change_metadata(
            _path(claim), meta.resource_version, notes, change.get("finalizers"), effects.holds, effects.timeout
        )
        kept = {key: text for key, text in ((meta.annotations or {}) | notes).items() if text is not None}
        finalizers = tuple(change.get("finalizers", meta.finalizers))
        now = replace(meta, resource_version=version, annotations=kept, finalizers=finalizers)
        return replace(claim, metadata=now)


def _path(claim: ResourceClaim) -> str:
    return f"{DEVICES}/namespaces/{claim.metadata.namespace}/resourceclaims/{claim.metadata.name}"


def _is_as(claim: ResourceClaim, plan: ClaimPlan) -> bool:
    if claim.status.allocation is None:
        return False
    written = [(one.driver, one.pool, one.device) for one in claim.status.allocation.devices.results]
    return identity(claim) == plan.uid and written == [one.device.id for one in plan.grants]
