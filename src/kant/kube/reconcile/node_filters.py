"""Node filters: constraints that the core cannot count, checked exactly for each pod before it is placed.

They check devices of claims (dynamic resource allocation), and volumes that are still to be chosen, provisioned or
attached. The core chooses nodes without knowing the filters. A start on a node that fails a filter is refused, so
nothing is overcommitted. From then on, nodes that fail the filter are not in the node sets of such pods.

The term is that of kube-scheduler (filter plugins DynamicResources, VolumeBinding and NodeVolumeLimits).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from hashlib import blake2s
from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import OWN
from kant.kube.objects.views import Pod, Requirement
from kant.kube.reconcile.dynamic_resources import DynamicResources
from kant.kube.reconcile.promises import NO_PODS, Placed, Promises
from kant.kube.translate.resources import Claimed, capacity_of, gives_gpus, used_of, with_gpus
from kant.kube.translate.sharing import has_plugin
from kant.kube.translate.volumes import ONE_POD, chosen_claims, claims_of, key_of, unbound_claims
from kant.model.job import Demand
from kant.model.rules import PodAntiAffinity

if TYPE_CHECKING:
    from kant.kube.reconcile.chosen_volumes import ChosenVolumes
    from kant.kube.reconcile.csi_volumes import CsiVolumes

FILTER = f"{OWN}/filter:"
"""Prefix of the names of filters. Node sets see failed filters as labels of the node: no real label has a colon."""

STORAGE, ATTACHED = f"{FILTER}storage ", f"{FILTER}attached "
DEVICES, FREE_DEVICES, PLUGIN = f"{FILTER}devices ", f"{FILTER}free-devices ", f"{FILTER}plugin"


class NodeFilters:
    """`failing` has, by node, the filters that it failed at the last check. `outdated`: a start has been refused since.

    `apart` has the keys of gangs whose pods conflict on a node, so that each pod needs a node for itself.
    """

    def __init__(self, mirror: Mirror, scheduler: str, devices: DynamicResources | None = None) -> None:
        self.mirror = mirror
        self.devices = devices or DynamicResources(mirror, scheduler)
        self.promises = Promises(mirror)
        self.failing: dict[str, frozenset[str]] = {}
        self.pods: dict[str, dict[str, Pod]] = {}  # the pods that need each filter, by uid, in order of request
        self.apart: set[str] = set()
        self.outdated = False
        self._clean: set[str] = set()  # filters that no node failed at the last check
        self._failed: set[str] = set()  # filters that some node failed at the last check
        self._new_failing: dict[str, None] = {}  # nodes newly found to fail a filter
        self._short_devices: dict[str, set[Demand]] = {}  # by digest: pods refused for lack of devices
        self._taken: dict[tuple[str, str], str] = {}  # by (digest, node): why such claims get no devices

    @cached_property
    def csi_volumes(self) -> CsiVolumes:
        """Checks volumes that CSI drivers attach or provision; imported with the first pod that has volumes."""
        from kant.kube.reconcile.csi_volumes import CsiVolumes

        return CsiVolumes(self.promises)

    @cached_property
    def chosen_volumes(self) -> ChosenVolumes:
        """Chooses local volumes for claims; imported with the first such claim."""
        from kant.kube.reconcile.chosen_volumes import ChosenVolumes

        return ChosenVolumes(self.promises)

    @property
    def chooses_volumes(self) -> bool:
        """Whether any pod so far has needed volumes to be chosen, provisioned or attached."""
        return any(name.startswith((f"{FILTER}volumes ", STORAGE, ATTACHED)) for name in self.pods)

    # --- what nodes fail, for node sets -------------------------------------------------------------------------

    def begin(self, waiting: Collection[Pod]) -> None:
        """Start over for a new state: determine which nodes fail the filters that the `waiting` pods need."""
        self.promises.promised.clear()
        self._look_at_all(waiting)

    def look_again(self) -> list[str]:
        """Determine again which nodes fail the filters that waiting pods need. Returns the uids of these pods."""
        before, uids = self.failing, {uid: None for pods in self.pods.values() for uid in pods}
        self.devices.seek_elsewhere()
        waiting = [pod for uid in uids if (pod := self.mirror.pods.get(uid)) is not None and not pod.spec.node_name]
        self._look_at_all(waiting)
        others = {node for node in before | self.failing if before.get(node) != self.failing.get(node)}
        self._new_failing = {node: None for node in self.mirror.nodes if node in others} if others else {}
        return [pod.metadata.uid for pod in waiting]

    def _look_at_all(self, waiting: Collection[Pod]) -> None:
        """Determine which nodes fail the filters that these pods need."""
        self._taken.clear()
        self.pods, self._clean, self.failing, self.outdated = {}, set(), {}, False
        for pod in waiting:
            for name in self._names(pod):
                self.pods.setdefault(name, {})[pod.metadata.uid] = pod
        first = {name: next(iter(pods.values())) for name, pods in self.pods.items()}
        for node in self.mirror.nodes if first else ():
            names = frozenset(name for name, pod in first.items() if self._fails(name, node, pod))
            if names:
                self.failing[node] = names
        named = {name for names in self.failing.values() for name in names}
        self._short_devices = {
            one: demands for one, demands in self._short_devices.items() if f"{FREE_DEVICES}{one}" in named
        }
        self._clean, self._failed, self._new_failing = self.pods.keys() - named, named, {}

    def requirements(self, pod: Pod) -> tuple[Requirement, ...]:
        """Return requirements that exclude the nodes that fail a filter of the pod."""
        names = self._names(pod)
        for name in names:
            self.pods.setdefault(name, {})[pod.metadata.uid] = pod
            if name not in self._clean and name not in self._failed:  # first use of this filter
                self._look(name, pod)
        return tuple(Requirement(name, "DoesNotExist") for name in names if name in self._failed)

    def _look(self, name: str, pod: Pod) -> None:
        """Determine which nodes fail a filter."""
        found = [node for node in self.mirror.nodes if self._fails(name, node, pod)]
        (self._failed if found else self._clean).add(name)
        for node in found:
            self.failing[node] = self.failing.get(node, frozenset()) | {name}
            self._new_failing[node] = None

    def take_failed(self) -> list[str]:
        """Return the nodes newly found to fail filters since the last call."""
        found, self._new_failing = list(self._new_failing), {}
        return found

    def limit(self, pod: Pod) -> PodAntiAffinity | None:
        """Return the pod class that limits how many such pods a node gets (see `DeviceLimits`); None: no limit."""
        if not (self._short_devices and pod.spec.resource_claims):
            return None
        is_short = self.devices.requests.digest(pod) in self._short_devices
        return self.devices.allocations.limits.of(pod) if is_short else None

    def why_nowhere(self, pod: Pod, nodes: Iterable[str]) -> str:
        """Return one sentence on which filters keep a pod from these nodes, which are suitable otherwise."""
        at = list(nodes)
        found = [name for name in self._names(pod) if any(name in self.failing.get(node, ()) for node in at)]
        return "; ".join(self._words(name, pod) for name in found)

    def _words(self, name: str, pod: Pod) -> str:
        kind, _, what = name.removeprefix(FILTER).partition(" ")
        if kind == "plugin":
            return "the suitable nodes provide their GPUs only through claims (dynamic resource allocation)"
        if kind == "devices":
            return f"no suitable node has the devices that its claims ask for ({_claims(pod)})"
        if kind == "free-devices":
            return f"the devices that its claims ask for ({_claims(pod)}) are in use on the suitable nodes"
        if kind == "volumes":
            names = ", ".join(claim.metadata.name for claim in chosen_claims(pod, self.mirror.storage))
            return f"no suitable node has free volumes that fit its claims ({names})"
        if kind == "storage":
            names = ", ".join(claim.metadata.name for claim in unbound_claims(pod, self.mirror.storage))
            return f"no suitable node has access to enough storage for its claims ({names})"
        driver, number, *_ = what.split(" ")
        return f"no suitable node may attach {number} more volumes of {driver}"

    def _names(self, pod: Pod) -> list[str]:
        names = list[str]()
        if pod.spec.resource_claims and (digest := self.devices.requests.digest(pod)):
            names.append(f"{DEVICES}{digest}")
            is_short = digest in self._short_devices and not self.devices.allocations.are_awaited([("", pod)])
            names += [f"{FREE_DEVICES}{digest}"] if is_short else []
        if (
            self.mirror.has_devices
            and self.mirror.devices.slices
            and used_of(pod.spec).gpus
            and not gives_gpus(pod.spec.by_claim)
        ):
            names.append(PLUGIN)
        if not pod.spec.volumes:
            return names
        if claims := chosen_claims(pod, self.mirror.storage):
            names.append(f"{FILTER}volumes {_digest([repr((*key_of(one), one.spec)) for one in claims])}")
        if asks := self.csi_volumes.asks(pod):
            names.append(f"{STORAGE}{_digest([asks])}")
        names += [f"{ATTACHED}{one}" for one in self.csi_volumes.limits_of(pod)]
        return names

    def _fails(self, name: str, node: str, pod: Pod) -> bool:
        kind, _, what = name.removeprefix(FILTER).partition(" ")
        if kind == "volumes":
            return self.chosen_volumes.match([(node, pod)]) is None
        if kind == "storage":
            return self.csi_volumes.fails(pod, node)
        if kind == "attached":
            return any(driver == what.split(" ")[0] for driver, _, _ in self.csi_volumes.room(node, [pod]))
        if kind == "plugin":
            view = self.mirror.nodes[node]
            return not has_plugin(view) and self.devices.gpus_at(view) > 0
        if kind == "devices":
            return self.devices.allocations.fails(pod, node, empty=True)
        free = self._free(node)
        has_room = any(_fits(demand, free) for demand in self._short_devices.get(what, ()))
        return has_room and self.devices.allocations.fails(pod, node)

    def holds(self, node: str, pod: Pod) -> bool:
        """Whether an empty node would have the GPUs, CPU and memory for a pod."""
        return _fits(self._used(pod), self._capacity(node))

    def _used(self, pod: Pod) -> Demand:
        return with_gpus(used_of(pod.spec), self.devices.gpus(pod))

    def _capacity(self, node: str) -> Demand:
        view = self.mirror.nodes.get(node)
        there = capacity_of(view.status.allocatable or view.status.capacity or {}) if view is not None else Demand()
        return with_gpus(there, Claimed(self.devices.gpus_at(view) if view is not None else 0))

    def _free(self, node: str) -> Demand:
        """Return the GPUs, CPU and memory that are free on a node, as the core counts them."""
        there, used = self._capacity(node), [self._used(pod) for pod in self.promises.on(node)]
        return Demand(
            there.gpus - sum(one.gpus for one in used),
            cpu=there.cpu - sum(one.cpu for one in used),
            memory=there.memory - sum(one.memory for one in used),
        )

    def improved(self, nodes: Iterable[str]) -> bool:
        """Whether one of these nodes passes a filter that it failed before."""
        seen = [(node, name) for node in nodes for name in self.failing.get(node, ())]
        waiting = {name: pod for name in {name for _, name in seen} if (pod := self._waiting(name)) is not None}
        return any(not self._fails(name, node, waiting[name]) for node, name in seen if name in waiting)

    def _waiting(self, name: str) -> Pod | None:
        """Return a waiting pod that needs a filter, or None. A placed pod would find its own devices in use."""
        asked = self.pods[name]
        for uid in list(asked):
            pod = self.mirror.pods.get(uid)
            if pod is None or pod.spec.node_name:
                del asked[uid]
            elif not name.startswith(FREE_DEVICES) or name in self._names(pod):  # else its claim will get devices
                return pod
        return None

    # --- whether pods may have their places -----------------------------------------------------------------------

    def check(self, placed: Placed, going: Collection[str] = NO_PODS) -> str:
        """Return one sentence on why pods may not all be placed on their nodes (`placed`); "" if they may.

        Pods in `going` do not count. If something is lacking, the node filters take it into account from now on.
        """
        taken = next((why for _, pod in placed if (why := self.claim_taken(pod, going))), "")
        if taken:
            return taken
        if why := self._short(placed, going):
            self._clean.clear()
        return why

    def _short(self, placed: Placed, going: Collection[str]) -> str:
        """Return, as one sentence, what these pods lack on their nodes; "" for nothing."""
        has_volumes = any(pod.spec.volumes for _, pod in placed)
        for node, pods in _by_node(placed).items() if has_volumes else ():
            if why := self.csi_volumes.too_many(node, pods, going):
                return why
        if why := self._devices(placed, going):
            return why
        if self._chooses_for(placed) and self.chosen_volumes.match(placed) is None:
            return "the nodes chosen for it lack free volumes that fit its claims"
        lacking = self.csi_volumes.lacks_storage(placed) if has_volumes else None
        if lacking is not None:
            self.csi_volumes.overdraw(placed, lacking)
            where = lacking.node.metadata.name
            return f"node {where} has no access to enough storage for the volume of its claim {lacking.claim[1]}"
        return ""

    def promise_volumes(self, placed: Placed) -> None:
        """Choose volumes for pods on nodes (`placed`) that `check` allows."""
        if self._chooses_for(placed):
            self.chosen_volumes.promise(placed)

    def _chooses_for(self, placed: Placed) -> bool:
        """Whether Kant must choose a volume for one of these pods."""
        return any(chosen_claims(pod, self.mirror.storage) for _, pod in placed if pod.spec.volumes)

    def claim_taken(self, pod: Pod, going: Collection[str] = NO_PODS) -> str:
        """Return one sentence on an exclusive claim (ReadWriteOncePod) of a pod that another pod uses, or ""."""
        mirror = self.mirror
        for name in claims_of(pod):
            key = pod.metadata.namespace, name
            claim = mirror.claims.get(key)
            if claim is None or ONE_POD not in claim.spec.access_modes:
                continue
            for uid in mirror.users.get(key, ()):
                other = mirror.pods.get(uid)
                if other is None or uid == pod.metadata.uid or uid in going or is_over(other):
                    continue
                if other.spec.node_name or any(uid in there for there in self.promises.promised.values()):
                    holder = f"{other.metadata.namespace}/{other.metadata.name}"
                    return f"its claim {name} allows one pod (ReadWriteOncePod), and pod {holder} uses it"
        return ""

    def among_themselves(self, placed: Placed) -> bool:
        """Whether pods that fail the filters together on one node could each pass on a node of their own."""
        for node, pods in _by_node(placed).items():
            alone = len(pods) > 1 and not any(self.check([(node, pod)]) for pod in pods)
            if alone and not (any(pod.spec.volumes for pod in pods) and self.csi_volumes.spreads(node, pods)):
                return True
        return False

    def _devices(self, placed: Placed, going: Collection[str]) -> str:
        claiming = [(node, pod) for node, pod in placed if pod.spec.resource_claims]
        if not claiming:
            return ""
        allocations = self.devices.allocations
        asked = [(allocations.requests.digest(pod), node) for node, pod in claiming]
        if allocations.are_awaited(claiming):  # the result differs from that of pods with equal claims
            return allocations.why_not(claiming, going)
        known = "" if going else next((self._taken[one] for one in asked if one in self._taken), "")
        why = known or allocations.why_not(claiming, going)
        for (digest, _), (_, pod) in zip(asked, claiming, strict=True) if why else ():
            if digest:
                self._short_devices.setdefault(digest, set()).add(self._used(pod))
        if why and asked[0][0] and len(asked) == 1 and not going:  # several pods may fail together that pass one by one
            self._taken[asked[0]] = why
        return why

    def is_excluded(self, placed: Placed) -> bool:
        """Whether the node of one of these pods is known to lack devices for it: other nodes may be tried at once."""
        claiming = ((node, pod) for node, pod in placed if pod.spec.resource_claims)
        return any((self.devices.requests.digest(pod), node) in self._taken for node, pod in claiming)


def _digest(parts: Iterable[str]) -> str:
    return blake2s(chr(10).join(parts).encode(), digest_size=6).hexdigest()


def _by_node(placed: Placed) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for node, pod in placed:
        found.setdefault(node, []).append(pod)
    return found


def _claims(pod: Pod) -> str:
    return ", ".join(one.name for one in pod.spec.resource_claims)


def _fits(demand: Demand, there: Demand) -> bool:
    return demand.gpus <= there.gpus and demand.cpu <= there.cpu and demand.memory <= there.memory
