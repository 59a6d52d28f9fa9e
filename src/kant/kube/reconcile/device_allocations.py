"""Device allocations: which devices the claims of pods get, decided for all pods of a workload before any is written.

A plan is valid from the start of its workload until the pods are bound. While it is valid, and later while its claims
are allocated, no other pod gets its devices. An allocation by Kant that is used by no bound pod and no valid plan is
provisional: it may be changed or withdrawn.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.device_views import ResourceClaim
from kant.kube.objects.refusals import NotYetError, SelectorError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.device_limits import DeviceLimits
from kant.kube.reconcile.device_requests import DeviceRequests
from kant.kube.reconcile.promises import NO_PODS, Placed
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.device_capacity import Limit, Taken
from kant.kube.translate.device_claims import Asked, consumed_by, identity, is_ours, key_of, known_names, reach_terms
from kant.kube.translate.devices import Counter, DeviceId, PoolId
from kant.kube.translate.node_facts import meets
from kant.kube.translate.volumes import ClaimName
from kant.model.errors import InputError

if TYPE_CHECKING:  # the allocator is imported with the first claim
    from kant.kube.translate.device_allocator import Free, Grant, Task


class ClaimPlan(NamedTuple):
    """The devices that a claim is to get, for these pods (uids). `node` is that of the first; `uid`: the `identity`.

    `made` is the complete claim if Kant creates the claim, for a pod's `extended` resources; else None.
    """

    claim: ClaimName
    uid: str
    grants: tuple[Grant, ...]
    pods: tuple[str, ...]
    made: ResourceClaim | None = None
    extended: tuple[str, ...] = ()
    node: str = ""


class DeviceAllocations:
    """`plans` has, by claim, the allocation to be written, for workloads that have started.

    `coming` has, by pod uid, the workloads whose pods are placed, bound or not.
    """

    def __init__(self, mirror: Mirror, scheduler: str = "kant", requests: DeviceRequests | None = None) -> None:
        self.mirror = mirror
        self.devices = mirror.devices
        self.requests = requests or DeviceRequests(mirror, scheduler)
        self.limits = DeviceLimits(mirror, self.requests)
        self.plans: dict[ClaimName, ClaimPlan] = {}
        self.coming: dict[str, Workload] = {}
        self._claims_of: dict[DeviceId, dict[ClaimName, None]] = {}  # by device: the claims that are planned to get it
        self._never: dict[tuple[str, str], bool] = {}
        self._version = -1

    def begin(self) -> None:
        """Start over for a new state, in which no unbound pod is placed."""
        self._version = -1
        self.coming.clear()
        self.plans.clear()
        self._claims_of.clear()
        self.requests.begin()
        self.limits.begin()

    def seek_elsewhere(self) -> None:
        """Look for the devices of shared claims on other nodes (`DeviceRequests.homes`), unless devices are planned."""
        homes = self.requests.homes
        planned = {key: homes.pop(key) for key, plan in self.plans.items() if key in homes and self._is_valid(plan)}
        self.requests.begin()
        self.limits.begin()
        for key, home in planned.items():
            self.requests.seek_at(key, home)

    def check(self, pod: Pod) -> None:
        """Raise NotYetError if a claim of the pod cannot be used yet, InputError if Kant can never allocate it."""
        self.requests.check(pod)
        for claim in self.requests.claims(pod):
            plan = self.plans.get(key_of(claim))
            if plan is not None and pod.metadata.uid not in plan.pods and self._is_valid(plan):
                raise NotYetError(f"its claim {claim.metadata.name} is being allocated for another pod")

    def expect(self, workload: Workload) -> None:
        """Note that the placed pods of a workload are to be bound."""
        self.coming.update({slot.pod: workload for slot in workload.slots if slot.pod and not slot.bound})

    def is_placed(self, uid: str) -> bool:
        """Whether a pod is placed on a node, and not known to be bound yet."""
        workload = self.coming.get(uid)
        if workload is None:
            return False
        stands = workload.phase is Phase.PLACED and any(one.pod == uid and not one.bound for one in workload.slots)
        if not stands:
            del self.coming[uid]
        return stands

    # --- allocation -----------------------------------------------------------------------------------------------

    def why_not(self, placed: Placed, going: Collection[str] = NO_PODS) -> str:
        """Return, as one sentence, why pods cannot get their devices on nodes (`placed`); "" if they can."""
        return self._decide(placed, going)[0]

    def are_awaited(self, placed: Placed) -> bool:
        """Whether these pods share a claim whose devices are planned for other pods that are about to be bound."""
        own = [pod.metadata.uid for _, pod in placed]
        keys = {(pod.metadata.namespace, name) for _, pod in placed for name in known_names(pod)}
        return any(self._shared(key, own) is not None for key in keys)

    def promise(self, placed: Placed, going: Collection[str] = NO_PODS) -> str:
        """Plan the devices of pods on nodes (`placed`). Returns why that is impossible; "" if it is done."""
        why, plans = self._decide(placed, going)
        for plan in plans if not why else ():
            if len(self.devices.users.get(plan.claim, ())) > len(plan.pods):
                self.devices.touched[plan.claim] = None  # other pods that use the claim wait for its allocation
            self._drop(plan.claim)
            self.plans[plan.claim] = plan
            for one in plan.grants:
                if not one.want.admin:
                    self._claims_of.setdefault(one.device.id, {})[plan.claim] = None
        return why

    def fails(self, pod: Pod, node: str, empty: bool = False) -> bool:
        """Whether a pod cannot get its devices on a node; with `empty`, even if none of the node's were in use."""
        if not empty:
            return bool(self._decide([(node, pod)], NO_PODS)[0])
        if self._version != self.devices.version:
            self._version = self.devices.version
            self._never.clear()
        key = self.requests.digest(pod), node
        if key not in self._never:
            self._never[key] = bool(self._decide([(node, pod)], NO_PODS, True)[0])
        return self._never[key]

    def _decide(self, placed: Placed, going: Collection[str], empty: bool = False) -> tuple[str, list[ClaimPlan]]:
        from kant.kube.translate.device_allocator import TooHardError, allocate

        users: dict[ClaimName, list[tuple[str, Pod]]] = {}
        for node, pod in placed:
            for name in known_names(pod):
                users.setdefault((pod.metadata.namespace, name), []).append((node, pod))
        todo, plans = list[ClaimPlan](), list[ClaimPlan]()
        tasks: list[Task] = []
        for key, there in users.items():
            claim = self.devices.claims.get(key)
            if claim is None:
                return f"its claim {key[1]} does not exist", []
            needed = self.needed_at(key, there[0][0])
            if needed is not None and not needed:
                continue  # device plugins of the node provide all of the resources
            if self.requests.is_settled(claim):
                node = "" if empty else self._beyond(claim, [node for node, _ in there])
                if node:
                    return f"node {node} cannot use the devices of its claim {key[1]}", []
                continue
            pods = tuple(pod.metadata.uid for _, pod in there)
            shared = self._shared(key, pods)
            if shared is not None and not empty:
                if any(not self._reaches(shared, node) for node, _ in there):
                    return f"another pod is about to use its claim {key[1]} on other nodes", []
                plans.append(shared)
                continue
            made = self.devices.extended[key].claim(needed) if needed else None
            try:
                tasks.append(self._task(self.requests.asked(made or claim), dict.fromkeys(node for node, _ in there)))
            except InputError as error:
                return str(error), []
            todo.append(ClaimPlan(key, identity(claim), (), pods, made, needed or (), there[0][0]))
        if not tasks:
            return "", plans
        try:
            found = allocate(tasks, self._free(users, going, empty))
        except TooHardError:
            return f"no devices were found for {_asks(todo[0])} within the limit of the search", []
        except SelectorError as error:
            return str(error), []
        if found is None:
            asks = ", ".join(dict.fromkeys(map(_asks, todo[:3])))
            nodes = list(dict.fromkeys(node for node, _ in placed))
            where = f"node {nodes[0]} does" if len(nodes) == 1 else f"nodes {', '.join(nodes[:3])} do"
            return f"{where} not have the free devices for {asks}", []
        plans += [one._replace(grants=tuple(grants)) for one, grants in zip(todo, found, strict=True)]
        return "", plans

    def needed_at(self, key: ClaimName, node: str) -> tuple[str, ...] | None:
        """Return the extended resources that a pod on the node gets through this claim; None: the claim is for none."""
        extended = self.devices.extended.get(key)
        return extended.needed_at(self.mirror.nodes.get(node)) if extended is not None else None

    def _shared(self, key: ClaimName, pods: Sequence[str]) -> ClaimPlan | None:
        """Return the plan of a claim that other placed pods also use, with these pods added; None: no such plan."""
        plan = self.plans.get(key)
        if plan is None or not self._is_valid(plan):
            return None
        others = tuple(uid for uid in plan.pods if uid not in pods and self.is_placed(uid))
        return plan._replace(pods=(*others, *pods)) if others else None

    def _reaches(self, plan: ClaimPlan, node: str) -> bool:
        view = self.mirror.nodes.get(node)
        binds = node != plan.node and any(one.device.view.binds_to_node for one in plan.grants)
        return view is not None and not binds and all(one.device.reach.has(view) for one in plan.grants)

    def _beyond(self, claim: ResourceClaim, nodes: Iterable[str]) -> str:
        """Return one of `nodes` that cannot use the devices of an allocated claim; "" if all can."""
        nodes = list(nodes)
        try:
            terms = reach_terms(claim)
        except InputError:
            return nodes[0]
        views = self.mirror.nodes
        return next((one for one in nodes if one in views and not meets(terms, views[one])), "")

    def _task(self, asked: Asked, nodes: Iterable[str]) -> Task:
        """Return a task for the allocator: what a claim asks for, and the devices that every one of `nodes` can use."""
        from kant.kube.translate.device_allocator import Task

        inventory, views = self.devices.inventory, [self.mirror.nodes.get(node) for node in nodes]
        lists = [inventory.at(view) for view in views if view is not None]
        if not lists or len(lists) < len(views):
            return Task(asked, ())
        common = set(lists[0]).intersection(*lists[1:])
        if len(lists) > 1:
            common = {one for one in common if not one.view.binds_to_node}
        whole = tuple(one for one in lists[0] if one in common and not inventory.pools[one.pool].wrong)
        return Task(asked, whole, any(inventory.pools[one.pool].wrong for one in lists[0]))

    def _free(self, deciding: Collection[ClaimName], going: Collection[str], empty: bool) -> Free:
        """Return the free devices. Claims in `deciding`, and claims of leaving pods (`going`), count as using none."""
        from kant.kube.translate.device_allocator import Free

        inventory, left = self.devices.inventory, dict[PoolId, dict[Counter, int]]()

        def is_free(device: DeviceId) -> bool:
            if empty:
                return True
            if self._planned(device, deciding):
                return False
            return all(key in deciding or self._goes(key, going) for key in self.devices.holders.get(device, ()))

        def what_is_spent(device: DeviceId) -> Taken:
            planned = {} if empty else self._planned(device, deciding)
            found = Tally[str]()
            for plan in planned.values():
                for grant in plan.grants:
                    found.update(grant.taken if grant.device.id == device and not grant.want.admin else {})
            for key in self.devices.holders.get(device, ()) if not empty else ():
                if key not in deciding and key not in planned and not self._goes(key, going):
                    found.update(consumed_by(self.devices.claims[key], device))
            return found

        def what_is_left(counter: Counter) -> int:
            pool = counter[:2]
            if pool not in left:
                held = [one for one in inventory.pools[pool].devices if one.takes and not is_free(one.id)]
                left[pool] = {}
                for one in held:
                    for taken, amount in one.takes:
                        left[pool][taken] = left[pool].get(taken, 0) + amount
            return inventory.counters.get(counter, 0) - left[pool].get(counter, 0)

        return Free(is_free, what_is_left, self.requests.matches, what_is_spent)

    def _planned(self, device: DeviceId, deciding: Collection[ClaimName]) -> dict[ClaimName, ClaimPlan]:
        """Return the valid plans that give a device to claims not in `deciding`; drop the invalid ones."""
        found = {key: self.plans[key] for key in self._claims_of.get(device, ()) if key not in deciding}
        for key in [key for key, plan in found.items() if not self._is_valid(plan)]:
            del found[key]
            self._drop(key)
        return found

    def is_beyond(self, grants: Iterable[Grant], writing: Collection[ClaimName]) -> bool:
        """Whether claims not in `writing` leave too little of a shared device for these allocations."""
        spent: dict[DeviceId, Tally[str]] = {}
        limits: dict[DeviceId, Mapping[str, Limit]] = {}
        for one in grants:
            if one.device.shared and not one.want.admin:
                limits[one.device.id] = one.device.limits
                spent.setdefault(one.device.id, Tally()).update(one.taken)
        for device, own in spent.items():
            for key in self.devices.holders.get(device, ()):
                own.update(consumed_by(self.devices.claims[key], device) if key not in writing else {})
        return any(own[name] > limit.value for device, own in spent.items() for name, limit in limits[device].items())

    def _drop(self, key: ClaimName) -> None:
        plan = self.plans.pop(key, None)
        for one in plan.grants if plan is not None else ():
            claims = self._claims_of.get(one.device.id, {})
            claims.pop(key, None)
            if not claims:
                self._claims_of.pop(one.device.id, None)

    def _is_valid(self, plan: ClaimPlan) -> bool:
        claim = self.devices.claims.get(plan.claim)
        return claim is not None and identity(claim) == plan.uid and any(map(self.is_placed, plan.pods))

    def _goes(self, key: ClaimName, going: Collection[str]) -> bool:
        """Whether Kant may withdraw the allocation of a claim: all pods that use it are gone, leaving or unplaced."""
        claim = self.devices.claims.get(key)
        if claim is None or not is_ours(claim):
            return False
        return all(one.uid in going or self.is_left(one.uid) for one in claim.status.reserved_for)

    def is_left(self, uid: str) -> bool:
        """Whether a pod does not use its claims: it is gone, has ended, or is neither bound nor placed."""
        if uid in self.devices.gone:
            return True
        pod = self.mirror.pods.get(uid)
        return pod is not None and (is_over(pod) or not (self.requests.is_bound(uid) or self.is_placed(uid)))


def _asks(plan: ClaimPlan) -> str:
    """Return, as text, the extended resources, or the claim, for which a plan has devices."""
    return ", ".join(plan.extended) or f"its claim {plan.claim[1]}"
