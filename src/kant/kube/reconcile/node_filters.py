"""Node filters: what the core does not count, checked exactly for each pod before it gets its place.

These are amounts besides GPUs, CPU and memory (ephemeral storage, rdma/hca, hugepages), ports of the host, pods that
must not run beside each other, those that have to, and spreading that must hold. The core chooses nodes without knowing
of them. A start that would break one is refused; from then on the nodes that fail are in no node set of such pods,
until they do not fail any more. So nothing is ever overcommitted, while what GPUs bound anyway, such as one adapter for
each GPU, costs nothing.

The word is kube-scheduler's (filter plugins NodeResourcesFit, NodePorts, InterPodAffinity, PodTopologySpread).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2s

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import OWN
from kant.kube.objects.views import Pod, Requirement
from kant.kube.reconcile.chosen_volumes import ChosenVolumes
from kant.kube.reconcile.companions import Companions
from kant.kube.reconcile.csi_volumes import CsiVolumes
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.device_requests import has_plugin
from kant.kube.reconcile.lanes import Lanes
from kant.kube.reconcile.lots import Lots
from kant.kube.reconcile.neighbours import NOBODY, Neighbours, Placed
from kant.kube.reconcile.node_amounts import NodeAmounts, fits, unit
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.local_volumes import chosen_claims, key_of
from kant.kube.translate.neighbours import (
    Rule,
    Spread,
    apart_group,
    port_words,
    ports_of,
    rules_of,
    spreads_of,
    wanted_beside,
)  # fmt: skip
from kant.kube.translate.pods import whole_selection
from kant.kube.translate.resources import gives_gpus, others_of, used_of
from kant.kube.translate.volumes import ONE_POD, claims_of, unbound_claims
from kant.model.job import Demand

FILTER = f"{OWN}/filter:"
"""Before the name of a filter, which stands beside the labels of the nodes that fail it. No label has a colon."""

STORAGE, ATTACHED = f"{FILTER}storage ", f"{FILTER}attached "
DEVICES, FREE_DEVICES, PLUGIN = f"{FILTER}devices ", f"{FILTER}free-devices ", f"{FILTER}plugin"


class NodeFilters:
    """`failing` has, by node, the filters that it failed when the state was built, or somebody first asked for them."""

    def __init__(self, mirror: Mirror, scheduler: str, devices: DeviceAllocations | None = None) -> None:
        self.mirror = mirror
        self.devices = devices or DeviceAllocations(mirror, scheduler)
        self.neighbours = Neighbours(mirror, scheduler)
        self.companions = Companions(self.neighbours)
        self.amounts = NodeAmounts(mirror, self.neighbours, self.devices)
        self.lots = Lots(mirror, self.companions, self._takes, lambda pod: tuple(self._but_spreading(pod)))
        self.lanes = Lanes(mirror, self.companions, self.devices.requests)
        self.chosen_volumes = ChosenVolumes(self.neighbours)
        self.csi_volumes = CsiVolumes(self.neighbours)
        self.failing: dict[str, frozenset[str]] = {}
        self.pods: dict[str, Pod] = {}  # one for each filter in use
        self.spread: set[str] = set()
        self._clean: set[str] = set()  # filters that no node failed when they were looked at
        self._failed: set[str] = set()  # and those that some did
        self._new_failing: dict[str, None] = {}  # nodes of which more has been found
        self._short_devices: dict[str, set[Demand]] = {}  # likewise claims to devices, by what they ask for
        self._taken: dict[tuple[str, str], str] = {}  # why such claims get nothing at a node, in this state
        self._rules: dict[Rule, None] = {}  # of pods that have nodes
        self._among_gang: dict[str, frozenset[Rule | Spread]] = {}  # by uid, rules that its own gang may meet

    @property
    def chooses_volumes(self) -> bool:
        """Whether somebody waits for whom volumes are to be chosen, made or attached."""
        return any(name.startswith((f"{FILTER}volumes ", STORAGE, ATTACHED)) for name in self.pods)

    # --- what nodes fail, for node sets -------------------------------------------------------------------------

    def begin(self, waiting: Collection[Pod], gangs: Iterable[Sequence[Pod]] = ()) -> None:
        """Find out which nodes fail the filters of these pods now. `gangs` are those that start together."""
        self.neighbours.forget_promises()
        self._taken.clear()
        self._among_gang.clear()
        for pods in gangs:
            self.learn_gang(pods)
        self._rules = self.neighbours.rules_in_force()
        self.lots.begin(pod for pod in waiting if pod.metadata.uid not in self._among_gang)
        self.lanes.begin()
        self.pods, self._clean, self.failing = {}, set(), {}
        for pod in waiting:
            for name in self._names(pod):
                self.pods.setdefault(name, pod)
        for node in self.mirror.nodes if self.pods else ():
            names = frozenset(name for name, pod in self.pods.items() if self._fails(name, node, pod))
            if names:
                self.failing[node] = names
        self.amounts.keep(self._is_told)
        told = {name for names in self.failing.values() for name in names}
        self._short_devices = {
            one: demands for one, demands in self._short_devices.items() if f"{FREE_DEVICES}{one}" in told
        }
        self._clean, self._failed, self._new_failing = self.pods.keys() - told, told, {}

    def learn_gang(self, pods: Sequence[Pod]) -> None:
        """These pods start together: what one asks of others of them is no filter, but asked of all their places."""
        for pod in pods:
            self._among_gang.pop(pod.metadata.uid, None)
        asked: dict[Rule | Spread, None] = {}
        for pod in pods:
            asked |= dict.fromkeys(wanted_beside(pod)) | dict.fromkeys(spreads_of(pod))
        for one in asked if len(pods) > 1 else ():
            rule = one.like if isinstance(one, Spread) else one
            met = {pod.metadata.uid for pod in pods if rule.is_about(pod)}
            for pod in pods:
                uid = pod.metadata.uid
                if one in (wanted_beside(pod) if one is rule else spreads_of(pod)) and met - {uid}:
                    self._among_gang[uid] = self._among_gang.get(uid, frozenset()) | {one}

    def _asks(self, pod: Pod) -> tuple[list[Rule], list[Spread]]:
        """What a pod asks of pods that are not of its gang."""
        own: Collection[Rule | Spread] = self._among_gang.get(pod.metadata.uid, frozenset())
        return [one for one in wanted_beside(pod) if one not in own], [one for one in spreads_of(pod) if one not in own]

    def requirements(self, pod: Pod) -> tuple[Requirement, ...]:
        """The filters that some node fails for a pod: its own must fail none of them. And the pod's lot, if it has one,
        in place of its spreading: where that holds changes with each pod.
        """
        names = self._names(pod)
        lot = self.lots.of(pod) if pod.metadata.uid not in self._among_gang else None
        if lot is not None:
            names = self._but_spreading(pod)
        for name in names:
            if name not in self._clean and name not in self._failed:  # nobody has asked for this before
                self._look(name, pod)
        found = tuple(Requirement(name, "DoesNotExist") for name in names if name in self._failed)
        return (*found, lot) if lot is not None else found

    def _look(self, name: str, pod: Pod) -> None:
        """Find out which nodes fail a filter."""
        self.pods[name] = pod
        found = [node for node in self.mirror.nodes if self._fails(name, node, pod)]
        (self._failed if found else self._clean).add(name)
        for node in found:
            self.failing[node] = self.failing.get(node, frozenset()) | {name}
            self._new_failing[node] = None

    def take_failed(self) -> list[str]:
        """The nodes of which more was found to fail since somebody asked."""
        found, self._new_failing = list(self._new_failing), {}
        return found

    def _but_spreading(self, pod: Pod) -> list[str]:
        """All filters of a pod but for its spreading."""
        return [name for name in self._names(pod) if not name.startswith(f"{FILTER}spread ")]

    def _takes(self, node: str, pod: Pod) -> bool:
        """Whether a node has room for a pod, which fails none of these there."""
        if not fits(used_of(pod.spec), self.amounts.core_free(node)):
            return False
        return not any(self._fails(name, node, pod) for name in self._but_spreading(pod))

    def lane(self, pod: Pod) -> str:
        """The group of which a node takes one pod, for a pod that waits; "" where there is none (`Lanes`)."""
        is_short = bool(self._short_devices and pod.spec.resource_claims)
        is_short = is_short and self.devices.requests.digest(pod) in self._short_devices
        return self.lanes.of(pod, is_short) if is_short or pod.spec.topology_spread_constraints else ""

    def waited(self) -> float:
        """Seconds for which somebody has waited with a lot or in a lane."""
        return max(self.lots.waited(), self.lanes.waited())

    def why_nowhere(self, pod: Pod, nodes: Iterable[str]) -> str:
        """Which filters fail at all of these nodes, which would do but for them, in one sentence."""
        at = list(nodes)
        found = [name for name in self._names(pod) if any(name in self.failing.get(node, ()) for node in at)]
        return "; ".join(self._words(name, at, pod) for name in found)

    def _words(self, name: str, nodes: Sequence[str], pod: Pod) -> str:
        kind, _, what = name.removeprefix(FILTER).partition(" ")
        if kind == "port":
            return f"{port_words(what)} is taken on the nodes that would do"
        if kind == "beside":
            others = (self.neighbours.conflict(pod, node, counted=True) for node in nodes)
            other = next((one for one in others if one is not None), None)
            such = f", such as pod {_name(other)}" if other is not None else ""
            return f"on the nodes that would do are pods beside which it must not run{such}"
        if kind == "plugin":
            return "the nodes that would do give out their GPUs only for claims (dynamic resource allocation)"
        if kind == "devices":
            withheld = self.devices.requests.withheld(pod)
            return f"no node that would do has the devices that its claims ask for ({_claims(pod)}){withheld}"
        if kind == "free-devices":
            return f"the devices that its claims ask for ({_claims(pod)}) are taken on the nodes that would do"
        if kind == "volumes":
            names = ", ".join(claim.metadata.name for claim in chosen_claims(pod, self.mirror.storage))
            return f"no node that would do has free volumes that fit its claims ({names})"
        if kind == "storage":
            names = ", ".join(claim.metadata.name for claim in unbound_claims(pod, self.mirror.storage))
            return f"no node that would do reaches storage enough for its claims ({names})"
        if kind == "attached":
            driver, number, *_ = what.split(" ")
            return f"no node that would do may attach {number} more volumes of {driver}"
        if kind == "near":
            return "no pod beside which it has to run is where it would fit (podAffinity)"
        if kind == "spread":
            keys = ", ".join(dict.fromkeys(one.like.key for one in spreads_of(pod)))
            return f"where it would fit there are too many like it already (topologySpreadConstraints by {keys})"
        resource, _, amount = what.partition(" ")
        return f"no node that would do has {amount}{unit(resource)} of {resource} left"

    def _names(self, pod: Pod) -> list[str]:
        short = self.amounts.short
        names = [_amount_name(*one) for one in others_of(pod.spec).items() if one in short] if short else []
        names += [f"{FILTER}port {port}" for port in ports_of(pod.spec)]
        if pod.spec.resource_claims and (digest := self.devices.requests.digest(pod)):
            names.append(f"{DEVICES}{digest}")
            names += [f"{FREE_DEVICES}{digest}"] if digest in self._short_devices else []
        if self.mirror.devices.slices and used_of(pod.spec).gpus and not gives_gpus(pod.spec.by_claim):
            names.append(PLUGIN)
        if pod.spec.volumes and (claims := chosen_claims(pod, self.mirror.storage)):
            names.append(f"{FILTER}volumes {_digest([repr((*key_of(one), one.spec)) for one in claims])}")
        if asks := self.csi_volumes.asks(pod):
            names.append(f"{STORAGE}{_digest([asks])}")
        names += [f"{ATTACHED}{one}" for one in self.csi_volumes.limits_of(pod)]
        rules = rules_of(pod)
        theirs = [rule for rule in self._rules if rule.is_about(pod)] if self._rules else []
        if rules or theirs:
            parts = [*sorted(map(repr, rules)), "", *sorted(map(repr, theirs)), apart_group(pod)]
            names.append(f"{FILTER}beside {_digest(parts)}")
        near, spreads = self._asks(pod)
        if near:
            names.append(f"{FILTER}near {_digest([f'{rule} {rule.is_about(pod)}' for rule in near])}")
        if spreads:
            parts = [f"{one} {one.like.is_about(pod)}" for one in spreads]
            names.append(f"{FILTER}spread {_digest([*parts, repr(whole_selection(pod))])}")
        return names

    def _fails(self, name: str, node: str, pod: Pod) -> bool:
        kind, _, what = name.removeprefix(FILTER).partition(" ")
        if kind == "port":
            there = (one for one in self.neighbours.on(node) if what in ports_of(one.spec))
            return any(not self.neighbours.is_kin(pod, one) for one in there)
        if kind == "beside":
            return self.neighbours.conflict(pod, node, counted=True) is not None
        if kind == "volumes":
            return self.chosen_volumes.match([(node, pod)]) is None
        if kind == "storage":
            return self.csi_volumes.fails(pod, node)
        if kind == "attached":
            return any(driver == what.split(" ")[0] for driver, _, _ in self.csi_volumes.room(node, [pod]))
        if kind == "near":
            return self.companions.lacks(pod, node, self._among_gang.get(pod.metadata.uid, ()))
        if kind == "plugin":
            view = self.mirror.nodes[node]
            return not has_plugin(view) and self.devices.requests.gpus_at(view) > 0
        if kind == "devices":
            return self.devices.fails(pod, node, empty=True)
        if kind == "free-devices":
            free = self.amounts.core_free(node)
            has_room = any(fits(demand, free) for demand in self._short_devices.get(what, ()))
            return has_room and self.devices.fails(pod, node)
        if kind == "spread":
            return self.companions.skewed(pod, node, self._among_gang.get(pod.metadata.uid, ()))
        resource, _, text = what.partition(" ")
        return self.amounts.is_short(node, resource, int(text))

    def _is_told(self, one: tuple[str, int]) -> bool:
        return any(_amount_name(*one) in names for names in self.failing.values())

    def improved(self, nodes: Iterable[str]) -> bool:
        """Whether one of these nodes fails a filter no more, or any does on which pods elsewhere bear."""
        own = (rule for pod in self.pods.values() for rule in rules_of(pod))
        wide = bool(self.mirror.wide) or any(rule.key != HOSTNAME for rule in own)
        wide |= any(wanted_beside(pod) or spreads_of(pod) for pod in self.pods.values())
        seen = self.failing if wide else [node for node in nodes if node in self.failing]
        return any(not self._fails(name, node, self.pods[name]) for node in seen for name in self.failing[node])

    # --- whether pods may have their places -----------------------------------------------------------------------

    def check(self, placed: Placed, going: Collection[str] = NOBODY) -> str:
        """Why these pods may not have these places together, in one sentence; "" where they may.

        Pods in `going` will be gone. What is found short is told apart from now on.
        """
        taken = next((why for _, pod in placed if (why := self.claim_taken(pod, going))), "")
        if taken:
            return taken
        for node, pods in _by_node(placed).items():
            uids = {pod.metadata.uid for pod in pods} | set(going)
            why = self.amounts.why_not(node, pods, uids, bool(going)) or self._ports(node, pods, uids)
            why = why or self.csi_volumes.too_many(node, pods, going)
            if why:
                self._clean.clear()
                return why
        why = self._devices(placed, going)
        if why:
            self._clean.clear()
            return why
        if self.chosen_volumes.match(placed) is None:
            self._clean.clear()
            return "the nodes that it was to go to have not the free volumes that its claims ask for"
        lacking = self.csi_volumes.lacks_storage(placed)
        if lacking is not None:
            self._clean.clear()
            self.csi_volumes.overdraw(placed, lacking)
            where = lacking.node.metadata.name
            return f"near node {where} there is not enough storage for the volume of its claim {lacking.claim[1]}"
        for node, pod in placed:
            other = self.neighbours.conflict(pod, node, placed, going)
            if other is not None:
                self._clean.clear()
                return f"it must not run beside pod {_name(other)}, as on node {node}"
        scattered = self.companions.scattered(placed, going)
        if scattered is not None:
            self._clean.clear()
            return f"no pod beside which it has to run is in its domain of {scattered.key} (podAffinity)"
        uneven = self.companions.uneven(placed, going)
        if uneven is not None:
            self._clean.clear()
            return f"there would be too many like it in a domain (topologySpreadConstraints by {uneven.like.key})"
        return ""

    def claim_taken(self, pod: Pod, going: Collection[str] = NOBODY) -> str:
        """Which claim of a pod another pod has that shares it with nobody (ReadWriteOncePod), in one sentence."""
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
                if other.spec.node_name or any(uid in there for there in self.neighbours.promised.values()):
                    return f"its claim {name} takes one pod (ReadWriteOncePod), and pod {_name(other)} has it"
        return ""

    def limit_nodes(self, pods: Iterable[Pod]) -> bool:
        """Whether some of these pods ask for amounts of which nodes have few, and that the core does not count."""
        return any(others_of(pod.spec) or self.csi_volumes.wanted(pod) for pod in pods)

    def among_themselves(self, placed: Placed) -> bool:
        """Whether these pods are in each other's way, and might not be if each had a node for itself."""
        for node, pods in _by_node(placed).items():
            alone = len(pods) > 1 and not any(self.check([(node, pod)]) for pod in pods)
            if alone and not self.csi_volumes.spreads(node, pods):
                return True
        return False

    def _devices(self, placed: Placed, going: Collection[str]) -> str:
        claiming = [(node, pod) for node, pod in placed if pod.spec.resource_claims]
        if not claiming:
            return ""
        asked = [(self.devices.requests.digest(pod), node) for node, pod in claiming]
        known = "" if going else next((self._taken[one] for one in asked if one in self._taken), "")
        why = known or self.devices.why_not(claiming, going)
        for (digest, _), (_, pod) in zip(asked, claiming, strict=True) if why else ():
            if digest:
                self._short_devices.setdefault(digest, set()).add(self.amounts.used(pod))
        if why and asked[0][0] and len(asked) == 1 and not going:  # several may only be too many together
            self._taken[asked[0]] = why
        return why

    def is_told_apart(self, placed: Placed) -> bool:
        """Whether the next state knows that these pods cannot be there, so that they are tried elsewhere at once."""
        claiming = ((node, pod) for node, pod in placed if pod.spec.resource_claims)
        return any((self.devices.requests.digest(pod), node) in self._taken for node, pod in claiming)

    def _ports(self, node: str, pods: Sequence[Pod], ignored: Collection[str]) -> str:
        asked = Counter(port for pod in pods for port in ports_of(pod.spec))
        if not asked:
            return ""
        taken = {port for one in self.neighbours.on(node, ignored) for port in ports_of(one.spec)}
        port = next((port for port, count in asked.items() if count > 1 or port in taken), "")
        return f"{port_words(port)} of node {node} is taken" if port else ""


def _digest(parts: Iterable[str]) -> str:
    return blake2s(chr(10).join(parts).encode(), digest_size=6).hexdigest()


def _by_node(placed: Placed) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for node, pod in placed:
        found.setdefault(node, []).append(pod)
    return found


def _amount_name(resource: str, amount: int) -> str:
    return f"{FILTER}amount {resource} {amount}"


def _claims(pod: Pod) -> str:
    return ", ".join(one.name for one in pod.spec.resource_claims)


def _name(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
