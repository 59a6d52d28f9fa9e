"""Device allocations: which devices the claims of pods get, decided for all pods of a workload before any is written.

A plan stands from when its workload starts until its pods are bound; until then, and after that as long as the claims
are allocated, nobody else gets these devices. An allocation of ours that no bound pod uses and no plan stands for is
provisional: it is decided again, or taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2s
from typing import NamedTuple

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.device_views import ResourceClaim
from kant.kube.objects.views import Node, Pod, Toleration
from kant.kube.reconcile.neighbours import NOBODY, Placed
from kant.kube.translate.device_allocator import Free, Grant, Task, TooHardError, allocate
from kant.kube.translate.device_claims import (
    MOST_CONSUMERS,
    Asked,
    Want,
    asked_of,
    claim_names,
    held_by,
    is_ours,
    key_of,
    known_names,
    reach_terms,
)
from kant.kube.translate.device_selectors import DeviceSelectors, SelectorError
from kant.kube.translate.devices import Candidate, Counter, DeviceId
from kant.kube.translate.flavors import admits
from kant.kube.translate.resources import GPU_RESOURCES
from kant.kube.translate.selectors import Selection, Term
from kant.kube.translate.sharing import SHARED
from kant.kube.translate.volumes import ClaimName, ClaimWaitsError
from kant.model.errors import InputError

ANY_TAINT = (Toleration(operator="Exists"),)


class ClaimPlan(NamedTuple):
    """What a claim is to get, and for which pods (uids)."""

    claim: ClaimName
    uid: str
    grants: tuple[Grant, ...]
    pods: tuple[str, ...]


class DeviceAllocations:
    """`plans` has, by claim, what is to be written for workloads that have started.

    `stands` says whether a pod (uid) is still on its way to a node.
    """

    def __init__(
        self,
        mirror: Mirror,
        scheduler: str = "kant",
        selectors: DeviceSelectors | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.mirror = mirror
        self.devices = mirror.devices
        self.scheduler = scheduler
        self.selectors = selectors or DeviceSelectors()
        self.clock = clock
        self.plans: dict[ClaimName, ClaimPlan] = {}
        self.stands: Callable[[str], bool] = lambda uid: False
        self._version = -1
        self._found: dict[Want, frozenset[DeviceId]] = {}
        self._never: dict[tuple[str, str], bool] = {}

    def begin(self) -> None:
        """Slices, classes or nodes have changed: forget what was found of them."""
        self._version = self.devices.version
        self._found.clear()
        self._never.clear()
        self.selectors.turned_away = False
        self.selectors.keep(self.devices.inventory.stamps)

    # --- what a pod asks for --------------------------------------------------------------------------------------

    def check(self, pod: Pod) -> None:
        """Raise ClaimWaitsError where a claim of the pod cannot be used yet, InputError where Kant cannot give it."""
        if not pod.spec.resource_claims:
            return
        where = f"pod {pod.metadata.namespace}/{pod.metadata.name}, spec.resourceClaims"
        if not self.devices.is_served:
            raise InputError(where, "a cluster that has the API resource.k8s.io/v1 (Kubernetes 1.34 or newer)")
        if self.devices.unreadable:
            raise InputError(where, "the right to list resourceclaims, resourceslices and deviceclasses")
        for name in claim_names(pod):
            claim = self.devices.claims.get((pod.metadata.namespace, name))
            if claim is None:
                raise ClaimWaitsError(f"its claim {name} is not there")
            if claim.metadata.deletion_timestamp is not None:
                raise ClaimWaitsError(f"its claim {name} is being deleted")
            self._check_use(pod, claim)

    def _check_use(self, pod: Pod, claim: ResourceClaim) -> None:
        name, uid = claim.metadata.name, pod.metadata.uid
        made_for = next((one.uid for one in claim.metadata.owner_references if one.controller), uid)
        if made_for != uid and name not in {one.resource_claim_name for one in pod.spec.resource_claims}:
            raise ClaimWaitsError(f"its claim {name} belongs to another pod")
        plan = self.plans.get(key_of(claim))
        if plan is not None and uid not in plan.pods and self._is_standing(plan):
            raise ClaimWaitsError(f"its claim {name} is being allocated for another pod")
        consumers = {one.uid for one in claim.status.reserved_for}
        if len(consumers | {uid}) > MOST_CONSUMERS:
            raise ClaimWaitsError(f"its claim {name} is used by {len(consumers)} pods, as many as may")
        if not self.is_settled(claim):
            asked = asked_of(claim, self.devices.classes)
            for want in (want for alternatives in asked.requests for want in alternatives):
                self._try(want, asked.namespace)

    def _try(self, want: Want, namespace: str) -> None:
        """Raise where selectors of this cannot be evaluated."""
        try:
            self._matching(want, namespace)
        except SelectorError as error:
            if error.later:
                raise ClaimWaitsError(str(error)) from None
            raise InputError(f"request {want.name}", f"selectors that can be evaluated ({error})") from None

    def claims(self, pod: Pod) -> list[ResourceClaim]:
        """Those of its claims that are there."""
        found = (self.devices.claims.get((pod.metadata.namespace, name)) for name in known_names(pod))
        return [one for one in found if one is not None]

    def is_settled(self, claim: ResourceClaim) -> bool:
        """Whether it is allocated, and stays so: by somebody else, or for a pod that is bound."""
        if claim.status.allocation is None:
            return False
        if not is_ours(claim):
            return True
        return any(self._is_bound(one.uid) for one in claim.status.reserved_for)

    def _is_bound(self, uid: str) -> bool:
        """Whether a pod has its node, or somebody else sees to that."""
        pod = self.mirror.pods.get(uid)
        if pod is None or is_over(pod):
            return False
        return bool(pod.spec.node_name) or uid in self.mirror.bound_here or pod.spec.scheduler_name != self.scheduler

    def demands(self, pod: Pod) -> list[tuple[Term, ...]]:
        """For each claim that has its devices the terms of which a node has to meet one."""
        found = (reach_terms(claim) for claim in self.claims(pod) if self.is_settled(claim))
        return [terms for terms in found if terms is not None]

    def are_one(self, pods: Sequence[Pod]) -> bool:
        """Whether several of these pods share a claim that is to get devices of one node."""
        shared: dict[ClaimName, ResourceClaim] = {}
        seen: set[ClaimName] = set()
        for pod in pods if len(pods) > 1 else ():
            for claim in self.claims(pod):
                if key_of(claim) in seen:
                    shared[key_of(claim)] = claim
                seen.add(key_of(claim))
        return any(not self.is_settled(one) and self._is_of_one_node(one) for one in shared.values())

    def _is_of_one_node(self, claim: ResourceClaim) -> bool:
        inventory = self.devices.inventory
        try:
            asked = asked_of(claim, self.devices.classes)
            found = [
                [self._matching(want, asked.namespace) for want in wants if not want.admin] for wants in asked.requests
            ]
        except (InputError, ClaimWaitsError, SelectorError):
            return False
        return any(
            ids and all(inventory.by_id[one].reach.node for one in ids)
            for wants in found
            for ids in [[one for own in wants for one in own]]
        )

    # --- GPUs -----------------------------------------------------------------------------------------------------

    def gpus(self, pod: Pod) -> int:
        """How many GPUs of its node a pod has, or asks for, by its claims. A claim of several counts for its first."""
        if not pod.spec.resource_claims or not self.devices.is_served:
            return 0
        return sum(self._gpus_of(claim) or 0 for claim in self.claims(pod) if self._is_first(pod, claim))

    def uncounted(self, pod: Pod) -> str:
        """A claim of the pod that asks for parts of GPUs, or for no certain number of them; "" where none does."""
        return next((one.metadata.name for one in self.claims(pod) if self._gpus_of(one) is None), "")

    def _is_first(self, pod: Pod, claim: ResourceClaim) -> bool:
        users = (self.mirror.pods.get(uid) for uid in self.devices.users.get(key_of(claim), ()))
        live = [one for one in users if one is not None and not is_over(one)]
        return _rank(pod) <= min(map(_rank, live), default=_rank(pod))

    def _gpus_of(self, claim: ResourceClaim) -> int | None:
        """The whole GPUs of a claim; None where it has parts of some, or nobody can tell."""
        if claim.status.allocation is not None and self.is_settled(claim):
            held = [self.devices.inventory.by_id.get(one) for one in held_by(claim)]
            parts = any(one is not None and one.is_gpu and not self._counts(one) for one in held)
            return None if parts else sum(one is not None and self._counts(one) for one in held)
        try:
            asked = asked_of(claim, self.devices.classes)
            counts = [{self._gpus_of_want(want, asked.namespace) for want in wants} for wants in asked.requests]
        except (InputError, ClaimWaitsError, SelectorError):
            return 0  # it is told when its pods come
        if any(len(one) > 1 or None in one for one in counts):
            return None
        return sum(number for one in counts for number in one if number)

    def _gpus_of_want(self, want: Want, namespace: str) -> int | None:
        if want.admin:
            return 0
        found = [self.devices.inventory.by_id[one] for one in self._matching(want, namespace)]
        kinds = {self._counts(one) for one in found}
        if (
            len(kinds) > 1
            or any(one.is_gpu and not self._counts(one) for one in found)
            or (True in kinds and not want.number)
        ):
            return None
        return want.number if True in kinds else 0

    def _matching(self, want: Want, namespace: str) -> frozenset[DeviceId]:
        """The devices that a request is about, whoever has them. Raises SelectorError."""
        if self._version != self.devices.version:
            self.begin()
        found = self._found.get(want)
        if found is None:
            all_devices = self.devices.inventory.by_id.values()
            found = frozenset(one.id for one in all_devices if self._holds(want, one, namespace))
            self._found[want] = found
        return found

    def _holds(self, want: Want, candidate: Candidate, namespace: str) -> bool:
        stamp, name = candidate.stamp, candidate.id[2]

        def holds(expression: str, tenant: str) -> bool:
            return self.selectors.matches(expression, stamp, name, lambda: candidate.facts, tenant)

        if candidate.is_gpu and self._has_plugin(candidate.reach.node):
            return False
        return all(holds(one, "") for one in want.selectors) and all(holds(one, namespace) for one in want.own)

    def _counts(self, device: Candidate) -> bool:
        """Whether it is one of the GPUs of a node."""
        return device.is_whole_gpu and bool(device.reach.node) and not self._has_plugin(device.reach.node)

    def _has_plugin(self, node: str) -> bool:
        """Whether a device plugin gives out the GPUs of a node: devices of a GPU driver there are the same GPUs."""
        view = self.mirror.nodes.get(node)
        return view is not None and has_plugin(view)

    def gpus_at(self, node: Node) -> int:
        """The GPUs of a node that are had by claims."""
        return 0 if has_plugin(node) else self.devices.inventory.gpus_of(node.metadata.name)

    # --- who gets what --------------------------------------------------------------------------------------------

    def matches(self, want: Want, candidate: Candidate, namespace: str) -> bool:
        """Whether a device is one of those that a request is about. Raises SelectorError."""
        return candidate.id in self._matching(want, namespace)

    def why_not(self, placed: Placed, going: Collection[str] = NOBODY) -> str:
        """Why these pods cannot have their devices at these nodes, in one sentence; "" where they can."""
        return self._decide(placed, going)[0]

    def promise(self, placed: Placed) -> str:
        """Plan the devices of these pods at these nodes. Returns why that cannot be; "" where it is done."""
        why, plans = self._decide(placed, NOBODY)
        if not why:
            self.plans.update({plan.claim: plan for plan in plans})
        return why

    def fails(self, pod: Pod, node: str, empty: bool = False) -> bool:
        """Whether the pod cannot have its devices at a node; `empty`: not even if nobody else had any."""
        if not empty:
            return bool(self._decide([(node, pod)], NOBODY)[0])
        if self._version != self.devices.version:
            self.begin()
        key = self.digest(pod), node
        if key not in self._never:
            self._never[key] = bool(self._decide([(node, pod)], NOBODY, True)[0])
        return self._never[key]

    def digest(self, pod: Pod) -> str:
        """Equal for pods whose claims ask for the same, and are free to get it anywhere; "" for no such claims."""
        asked: list[str] = []
        for claim in self.claims(pod):
            if self.is_settled(claim):
                continue
            try:
                asked.append(repr(asked_of(claim, self.devices.classes)))
            except (InputError, ClaimWaitsError):
                continue
        return blake2s("\n".join(asked).encode(), digest_size=6).hexdigest() if asked else ""

    def _decide(self, placed: Placed, going: Collection[str], empty: bool = False) -> tuple[str, list[ClaimPlan]]:
        users: dict[ClaimName, list[tuple[str, Pod]]] = {}
        for node, pod in placed:
            for name in known_names(pod):
                users.setdefault((pod.metadata.namespace, name), []).append((node, pod))
        todo, tasks, plans = [], [], list[ClaimPlan]()
        for key, there in users.items():
            claim = self.devices.claims.get(key)
            if claim is None:
                return f"its claim {key[1]} is not there", []
            if self.is_settled(claim):
                if not empty and (node := self._beyond(claim, [node for node, _ in there])):
                    return f"node {node} does not reach the devices of its claim {key[1]}", []
                continue
            pods = tuple(pod.metadata.uid for _, pod in there)
            shared = self._shared(key, pods)
            if shared is not None and not empty:
                if any(not self._reaches(shared, node) for node, _ in there):
                    return f"another pod is about to have its claim {key[1]} elsewhere", []
                plans.append(shared)
                continue
            try:
                tasks.append(
                    self._task(asked_of(claim, self.devices.classes), dict.fromkeys(node for node, _ in there))
                )
            except (InputError, ClaimWaitsError) as error:
                return str(error), []
            todo.append((key, claim.metadata.uid, pods))
        if not tasks:
            return "", plans
        try:
            found = allocate(tasks, self._free(users, going, empty))
        except TooHardError:
            return f"no devices were found for its claim {todo[0][0][1]}: there are too many ways to choose them", []
        except SelectorError as error:
            return str(error), []
        if found is None:
            names = ", ".join(dict.fromkeys(key[1] for key, _, _ in todo[:3]))
            nodes = list(dict.fromkeys(node for node, _ in placed))
            where = f"node {nodes[0]} has" if len(nodes) == 1 else f"nodes {', '.join(nodes[:3])} have"
            return f"{where} not the free devices that its claim {names} asks for", []
        plans += [
            ClaimPlan(key, uid, tuple(grants), pods) for (key, uid, pods), grants in zip(todo, found, strict=True)
        ]
        return "", plans

    def _shared(self, key: ClaimName, pods: Sequence[str]) -> ClaimPlan | None:
        """The plan for a claim that other pods are about to have as well, with these pods; None where there is none."""
        plan = self.plans.get(key)
        if plan is None or not self._is_standing(plan):
            return None
        others = tuple(uid for uid in plan.pods if uid not in pods and self.stands(uid))
        return plan._replace(pods=(*others, *pods)) if others else None

    def _reaches(self, plan: ClaimPlan, node: str) -> bool:
        view = self.mirror.nodes.get(node)
        return view is not None and all(one.device.reach.has(view) for one in plan.grants)

    def _beyond(self, claim: ResourceClaim, nodes: Iterable[str]) -> str:
        """One of these nodes at which an allocated claim cannot be used; "" where there is none."""
        terms = reach_terms(claim)
        if terms is None:
            return ""
        views = self.mirror.nodes
        return next(
            (one for one in nodes if one in views and not admits(Selection((), terms, ANY_TAINT), views[one])), ""
        )

    def _task(self, asked: Asked, nodes: Iterable[str]) -> Task:
        """The devices that can be used at all of these nodes."""
        inventory, views = self.devices.inventory, [self.mirror.nodes.get(node) for node in nodes]
        lists = [inventory.at(view) for view in views if view is not None]
        if not lists or len(lists) < len(views):
            return Task(asked, ())
        common = set(lists[0]).intersection(*lists[1:])
        whole = tuple(one for one in lists[0] if one in common and not inventory.pools[one.pool].wrong)
        return Task(asked, whole, any(inventory.pools[one.pool].wrong for one in lists[0]))

    def _free(self, deciding: Collection[ClaimName], going: Collection[str], empty: bool) -> Free:
        """What no claim has, or is about to get, but for those decided here and those of pods that will be gone."""
        inventory, left = self.devices.inventory, dict[tuple[str, str], dict[Counter, int]]()
        planned = self._planned(deciding)

        def is_free(device: DeviceId) -> bool:
            if empty:
                return True
            if device in planned:
                return False
            return all(key in deciding or self._goes(key, going) for key in self.devices.holders.get(device, ()))

        def what_is_left(counter: Counter) -> int:
            pool = counter[:2]
            if pool not in left:
                held = [one for one in inventory.pools[pool].devices if one.takes and not is_free(one.id)]
                left[pool] = {}
                for one in held:
                    for taken, amount in one.takes:
                        left[pool][taken] = left[pool].get(taken, 0) + amount
            return inventory.counters.get(counter, 0) - left[pool].get(counter, 0)

        return Free(is_free, what_is_left, self.matches)

    def _planned(self, deciding: Collection[ClaimName]) -> set[DeviceId]:
        found = set()
        for key, plan in list(self.plans.items()):
            if not self._is_standing(plan):
                del self.plans[key]
            elif key not in deciding:
                found |= {one.device.id for one in plan.grants if not one.want.admin}
        return found

    def _is_standing(self, plan: ClaimPlan) -> bool:
        claim = self.devices.claims.get(plan.claim)
        return claim is not None and claim.metadata.uid == plan.uid and any(map(self.stands, plan.pods))

    def _goes(self, key: ClaimName, going: Collection[str]) -> bool:
        """Whether a claim is held only by pods that will be gone, and is ours to take back."""
        claim = self.devices.claims.get(key)
        if claim is None or not going or not is_ours(claim):
            return False
        return all(one.uid in going for one in claim.status.reserved_for)


def has_plugin(node: Node) -> bool:
    """Whether a device plugin gives out GPUs of a node."""
    there = node.status.capacity or {}
    return any(str(there.get(name, 0)) != "0" for name in (*GPU_RESOURCES, SHARED))


def _rank(pod: Pod) -> tuple[bool, str, str]:
    return not pod.spec.node_name, pod.metadata.creation_timestamp, pod.metadata.name
