"""Device requests: what the claims of pods ask for, in terms of the devices in the cluster.

Results are cached until ResourceSlices, device classes or nodes change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2s
from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.device_views import ResourceClaim
from kant.kube.objects.refusals import NotYetError, SelectorError
from kant.kube.objects.views import Node, Pod
from kant.kube.reconcile.dynamic_resources import NO_GPUS
from kant.kube.translate.device_capacity import part_of, taken_of, times_in
from kant.kube.translate.device_claims import (
    MOST_CONSUMERS,
    Asked,
    Want,
    anonymous,
    asked_of,
    claim_names,
    consumed_by,
    held_by,
    identity,
    is_made,
    is_ours,
    key_of,
    known_names,
    reach_terms,
)
from kant.kube.translate.devices import Candidate, DeviceId, Reach
from kant.kube.translate.resources import Claimed, used_of
from kant.kube.translate.selectors import Term
from kant.kube.translate.sharing import has_plugin
from kant.kube.translate.volumes import ClaimName
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.translate.device_selectors import DeviceSelectors


class DeviceRequests:
    """`homes` has, for each claim that several pods share, its home: the nodes on which devices are sought for it now.

    `has_other_homes`: a shared claim has other homes to try, if the gang does not fit on its present home.
    """

    def __init__(self, mirror: Mirror, scheduler: str = "kant", selectors: DeviceSelectors | None = None) -> None:
        self.mirror = mirror
        self.devices = mirror.devices
        self.scheduler = scheduler
        self._selectors = selectors
        self.homes: dict[ClaimName, Reach] = {}
        self._sought: Counter[Reach] = Counter()  # by home: how many devices claims seek or have there
        self.has_other_homes = False
        self._turns: dict[ClaimName, int] = {}
        self._version = -1
        self._asked: dict[str, Asked] = {}
        self._found: dict[tuple[tuple[str, ...], tuple[str, ...]], frozenset[DeviceId]] = {}  # by selectors
        self._gpus: dict[Want, Claimed | None] = {}

    @property
    def selectors(self) -> DeviceSelectors:
        """Evaluates the CEL expressions of claims; imported with the first expression."""
        if self._selectors is None:
            from kant.kube.translate.device_selectors import DeviceSelectors

            self._selectors = DeviceSelectors()
        return self._selectors

    @property
    def turned_away(self) -> bool:
        """Whether the CEL expressions of some namespace have exceeded the namespace's limit of CPU time."""
        return self._selectors is not None and self._selectors.turned_away

    def begin(self) -> None:
        """Forget the requests of claims, and seek the devices of shared claims in their next home."""
        for key in self.homes:
            self._turns[key] = self._turns.get(key, 0) + 1
        self._turns = {key: turn for key, turn in self._turns.items() if key in self.devices.users}
        self._forget()

    def _forget(self) -> None:
        """Forget everything cached, since slices, classes or nodes have changed."""
        self._version = self.devices.version
        self._asked.clear()
        self._found.clear()
        self._gpus.clear()
        self.homes.clear()
        self._sought.clear()
        self.has_other_homes = False
        if self._selectors is not None:
            self._selectors.turned_away = False
            self._selectors.keep(self.devices.inventory.stamps)

    def _renew(self) -> None:
        """Forget everything cached if slices or classes have changed since it was computed."""
        if self._version != self.devices.version:
            self._forget()

    def asked(self, claim: ResourceClaim) -> Asked:
        """Return what a claim asks for. Raises NotYetError if a class is missing, InputError if it is malformed."""
        self._renew()
        key = claim.metadata.uid
        if not is_made(claim):  # not created yet: its requests depend on the node
            key = " ".join((identity(claim), *(one.name for one in claim.spec.devices.requests)))
        found = self._asked.get(key)
        if found is None:
            found = self._asked[key] = asked_of(claim, self.devices.classes)
        return found

    # --- requests of a pod ----------------------------------------------------------------------------------------

    def check(self, pod: Pod) -> None:
        """Raise NotYetError if a claim of the pod cannot be used yet, InputError if Kant cannot allocate it."""
        where = f"pod {pod.metadata.namespace}/{pod.metadata.name}, spec.resourceClaims"
        if not self.mirror.serves_devices:
            raise InputError(where, "a cluster with the API resource.k8s.io/v1 (Kubernetes 1.34 or newer)")
        if self.mirror.unreadable_devices:
            raise InputError(where, "permission for Kant to list resourceclaims, resourceslices and deviceclasses")
        for name in claim_names(pod):
            claim = self.devices.claims.get((pod.metadata.namespace, name))
            if claim is None:
                raise NotYetError(f"its claim {name} does not exist")
            if claim.metadata.deletion_timestamp is not None:
                raise NotYetError(f"its claim {name} is being deleted")
            self._check_use(pod, claim)

    def _check_use(self, pod: Pod, claim: ResourceClaim) -> None:
        name, uid = claim.metadata.name, pod.metadata.uid
        owner = next((one.uid for one in claim.metadata.owner_references if one.controller), uid)
        if owner != uid and name not in {one.resource_claim_name for one in pod.spec.resource_claims}:
            raise NotYetError(f"its claim {name} belongs to another pod")
        consumers = {one.uid for one in claim.status.reserved_for}
        if len(consumers | {uid}) > MOST_CONSUMERS:
            raise NotYetError(f"its claim {name} is used by {len(consumers)} pods, the most that may use it")
        if not self.is_settled(claim):
            asked = self.asked(claim)
            for want in (want for alternatives in asked.requests for want in alternatives):
                self._try(want, asked.namespace)

    def _try(self, want: Want, namespace: str) -> None:
        """Raise NotYetError if selectors of a request cannot be evaluated now, InputError if they never can."""
        try:
            self._matching(want, namespace)
        except SelectorError as error:
            if error.later:
                raise NotYetError(str(error)) from None
            raise InputError(f"request {want.name}", f"selectors that can be evaluated ({error})") from None

    def are_made(self, pod: Pod) -> bool:
        """Whether all claims of the pod exist, so that its device requests are known."""
        try:
            return all((pod.metadata.namespace, name) in self.devices.claims for name in claim_names(pod))
        except NotYetError:
            return False

    def claims(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims of the pod that exist."""
        found = (self.devices.claims.get((pod.metadata.namespace, name)) for name in known_names(pod))
        return [one for one in found if one is not None]

    def is_settled(self, claim: ResourceClaim) -> bool:
        """Whether the claim is allocated permanently: by another allocator, or for a bound pod."""
        if claim.status.allocation is None:
            return False
        if not is_ours(claim):
            return True
        return any(self.is_bound(one.uid) for one in claim.status.reserved_for)

    def is_bound(self, uid: str) -> bool:
        """Whether a pod is bound to a node, or is for another scheduler to place."""
        pod = self.mirror.pods.get(uid)
        if pod is None or is_over(pod):
            return False
        return bool(pod.spec.node_name) or uid in self.mirror.bound_here or pod.spec.scheduler_name != self.scheduler

    def demands(self, pod: Pod) -> list[tuple[Term, ...]]:
        """Return, for each claim that restricts a pod's nodes, alternative terms: a node must match one of these."""
        found: list[tuple[Term, ...]] = []
        for claim in self.claims(pod):
            terms = reach_terms(claim) if self.is_settled(claim) else self._home(claim)
            found += [terms] if terms is not None else []
        return found

    def _home(self, claim: ResourceClaim) -> tuple[Term, ...] | None:
        """Return terms for the nodes on which to seek a shared claim's devices; None: unshared, or not tied to nodes.

        The home with the most free devices that no other claim seeks is tried first, then the others in turn.
        """
        key = key_of(claim)
        if len(self.devices.users.get(key, ())) < 2:
            return None
        if key not in self.homes:
            free: Counter[Reach] = Counter()
            for one in self._candidates(claim):
                if one.reach.term is not None:
                    free[one.reach] += all(
                        self.homes.get(by) == one.reach for by in self.devices.holders.get(one.id, ())
                    )
            homes = sorted(free, key=lambda reach: (self._sought[reach] - free[reach], repr(reach)))
            self.seek_at(key, homes[self._turns.get(key, 0) % len(homes)] if homes else Reach())
            self.has_other_homes = self.has_other_homes or len(homes) > 1
        term = self.homes[key].term
        return (term,) if term is not None else None

    def seek_at(self, key: ClaimName, home: Reach) -> None:
        """Seek the devices of a claim at `home`, and count them there when other claims choose their homes."""
        self.homes[key], wants = home, self._requests(self.devices.claims[key])
        self._sought[home] += sum(min((want.number for want, _ in own), default=0) for own in wants)

    def _candidates(self, claim: ResourceClaim) -> list[Candidate]:
        """Return the devices that match any request of a claim; [] if that cannot be determined."""
        ids = dict.fromkeys(
            one for wants in self._requests(claim) for want, own in wants if not want.admin for one in own
        )
        return [self.devices.inventory.by_id[one] for one in ids]

    def _requests(self, claim: ResourceClaim) -> list[list[tuple[Want, frozenset[DeviceId]]]]:
        """Return the alternatives of each request, each with its matching devices; [] if that is unknown."""
        try:
            asked = self.asked(claim)
            none, space = frozenset[DeviceId](), asked.namespace  # requests with administrator access use up no device
            return [[(w, none if w.admin else self._matching(w, space)) for w in wants] for wants in asked.requests]
        except (InputError, SelectorError):
            return []

    def most_at_one_node(self, pod: Pod) -> int:
        """Return an upper bound on how many pods with equal claims can get devices on one node; 0 if unknown."""
        found: list[int] = []
        for claim in self.claims(pod):
            if not self.is_settled(claim):
                found += self._most_of(claim)
        return min(found, default=0)

    def _most_of(self, claim: ResourceClaim) -> list[int]:
        """Return the bound of `most_at_one_node` for each request of a claim whose devices each belong to one node."""
        found: list[int] = []
        for wants in self._requests(claim):
            homes: Counter[str] = Counter()
            for device in map(self.devices.inventory.by_id.__getitem__, {one for _, own in wants for one in own}):
                if device.shared:
                    homes[device.reach.node] += max(times_in(dict(want.capacity), device.limits) for want, _ in wants)
                elif device.id not in self.devices.holders:
                    homes[device.reach.node] += 1
            least = min((want.number for want, _ in wants), default=0)
            if not any(want.admin for want, _ in wants) and least and homes and all(homes):
                found.append(max(homes.values()) // least)
        return found

    def are_one(self, pods: Sequence[Pod]) -> bool:
        """Whether several of these pods share an unallocated claim that needs one node (see `_is_of_one_node`)."""
        shared: dict[ClaimName, ResourceClaim] = {}
        seen: set[ClaimName] = set()
        for pod in pods if len(pods) > 1 else ():
            for claim in self.claims(pod):
                if key_of(claim) in seen:
                    shared[key_of(claim)] = claim
                seen.add(key_of(claim))
        return any(not self.is_settled(one) and self._is_of_one_node(one) for one in shared.values())

    def _is_of_one_node(self, claim: ResourceClaim) -> bool:
        """Whether all devices that match some request of a claim each belong to one node."""
        by_id = self.devices.inventory.by_id
        found = ([one for _, own in wants for one in own] for wants in self._requests(claim))
        return any(ids and all(by_id[one].reach.node for one in ids) for ids in found)

    # --- GPUs -----------------------------------------------------------------------------------------------------

    def gpus(self, pod: Pod) -> Claimed:
        """Return the GPUs that a pod has or requests by claims. A shared claim counts only for its first pod."""
        counted = [self._gpus_of(claim) or NO_GPUS for claim in self.claims(pod) if self._is_first(pod, claim)]
        found = sum(one.gpus for one in counted)
        gpus = max(found - used_of(pod.spec).gpus, 0) if found and pod.spec.by_claim else found
        return Claimed(gpus, sum(one.milli for one in counted))

    def uncounted(self, pod: Pod) -> str:
        """Return a claim of a pod with GPUs that cannot be counted (whole GPUs and parts, or unknown ones); or ""."""
        counted = {one.metadata.name: self._gpus_of(one) for one in self.claims(pod)}
        whole = used_of(pod.spec).gpus or any(one is not None and one.gpus for one in counted.values())
        return next((name for name, one in counted.items() if one is None or (one.milli and whole)), "")

    def _is_first(self, pod: Pod, claim: ResourceClaim) -> bool:
        users = (self.mirror.pods.get(uid) for uid in self.devices.users.get(key_of(claim), ()))
        live = [one for one in users if one is not None and not is_over(one)]
        return _rank(pod) <= min(map(_rank, live), default=_rank(pod))

    def _gpus_of(self, claim: ResourceClaim) -> Claimed | None:
        """Return the GPUs that a claim has or requests; None if they cannot be counted."""
        if claim.status.allocation is not None and self.is_settled(claim):
            return self._gpus_held(claim)
        try:
            asked = self.asked(claim)
            counts = [[self._gpus_of_want(want, asked.namespace) for want in wants] for wants in asked.requests]
        except (InputError, SelectorError):
            return NO_GPUS  # the error is reported when its pods are checked
        gpus, milli = 0, 0
        for ways in counts:
            known = [one for one in ways if one is not None]
            if len(known) < len(ways) or len({(one.gpus, one.milli > 0) for one in known}) > 1:
                return None
            gpus, milli = gpus + known[0].gpus, milli + max(one.milli for one in known)
        return Claimed(gpus, milli)

    def _gpus_held(self, claim: ResourceClaim) -> Claimed | None:
        """Return the GPUs that an allocated claim has; None if it has part of a GPU whose size is unknown."""
        gpus, milli = 0, 0
        for id_ in held_by(claim):
            device = self.devices.inventory.by_id.get(id_)
            if device is None or not device.is_gpu:
                continue
            worth = part_of(consumed_by(claim, id_), device.limits) if device.shared else device.worth
            if self._counts(device):
                gpus += 1
            elif worth:
                milli += worth
            else:
                return None
        return Claimed(gpus, milli)

    def _worth(self, want: Want, device: Candidate) -> int | None:
        """Return how many thousandths of a GPU a request gets from a partition or a shared device; None if unknown."""
        if not device.shared:
            return device.worth
        return part_of(taken_of(dict(want.capacity), device.limits) or {}, device.limits) or None

    def _gpus_of_want(self, want: Want, namespace: str) -> Claimed | None:
        self._renew()
        if want not in self._gpus:
            self._gpus[want] = self._gpus_among(want, namespace)
        return self._gpus[want]

    def _gpus_among(self, want: Want, namespace: str) -> Claimed | None:
        """Return the GPUs that a request asks for; None: not countable. If partitions differ, the largest counts."""
        if want.admin:
            return NO_GPUS
        found = [self.devices.inventory.by_id[one] for one in self._matching(want, namespace)]
        kinds = {(self._counts(one), one.is_gpu) for one in found}
        if not any(is_gpu for _, is_gpu in kinds):
            return NO_GPUS
        if len(kinds) > 1 or not want.number:
            return None
        if (True, True) in kinds:
            return Claimed(want.number)
        worths = [self._worth(want, one) for one in found if taken_of(dict(want.capacity), one.limits) is not None]
        known = [one for one in worths if one]
        return Claimed(0, want.number * max(known)) if known and len(known) == len(worths) else None

    def _matching(self, want: Want, namespace: str) -> frozenset[DeviceId]:
        """Return the devices that a request matches, allocated or not. Raises SelectorError."""
        self._renew()
        key = want.selectors, want.own
        found = self._found.get(key)
        if found is None:
            all_devices = self.devices.inventory.by_id.values()
            found = frozenset(one.id for one in all_devices if self._holds(want, one, namespace))
            self._found[key] = found
        return found

    def _holds(self, want: Want, candidate: Candidate, namespace: str) -> bool:
        stamp, name = candidate.stamp, candidate.id[2]

        def holds(expression: str, tenant: str) -> bool:
            return self.selectors.matches(expression, stamp, name, lambda: candidate.facts, tenant)

        if candidate.is_gpu and self._has_plugin(candidate.reach.node):
            return False
        return all(holds(one, "") for one in want.selectors) and all(holds(one, namespace) for one in want.own)

    def _counts(self, device: Candidate) -> bool:
        """Whether a device is a whole GPU of one node that claims can allocate."""
        return device.is_whole_gpu and bool(device.reach.node) and not self._has_plugin(device.reach.node)

    def _has_plugin(self, node: str) -> bool:
        """Whether a device plugin serves a node's GPUs: a DRA driver there would offer the same GPUs again."""
        view = self.mirror.nodes.get(node)
        return view is not None and has_plugin(view)

    def gpus_at(self, node: Node) -> int:
        """Return the number of GPUs of a node that claims can allocate."""
        return 0 if has_plugin(node) else self.devices.inventory.gpus_of(node.metadata.name)

    def matches(self, want: Want, candidate: Candidate, namespace: str) -> bool:
        """Whether a device matches a request of a claim in `namespace`. Raises SelectorError."""
        return candidate.id in self._matching(want, namespace)

    def digest(self, pod: Pod) -> str:
        """Return a digest that is equal for pods whose unallocated claims ask for the same; "": no such claims."""
        asked: list[str] = []
        for claim in self.claims(pod):
            if self.is_settled(claim):
                continue
            try:
                asked.append(repr(anonymous(self.asked(claim))))
            except InputError:
                continue
        return blake2s("\n".join(asked).encode(), digest_size=6).hexdigest() if asked else ""


def _rank(pod: Pod) -> tuple[bool, str, str]:
    return not pod.spec.node_name, pod.metadata.creation_timestamp, pod.metadata.name
