"""The devices of a cluster as drivers publish them: which nodes can use each device, and what devices of a pool share.

Source: k8s.io/dynamic-resource-allocation, structured/internal (pools_incubating.go): only the slices of a pool's
newest generation count. If some of these slices are missing, none counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kant.kube.objects import device_views as d
from kant.kube.objects import views as k
from kant.kube.objects.quantity import exact
from kant.kube.translate.device_capacity import NANO, Limit, limits_of
from kant.kube.translate.device_taints import DeviceTaintRule
from kant.kube.translate.mig_devices import MEMORY, milli_of
from kant.kube.translate.node_facts import admits
from kant.kube.translate.selectors import NAME, Selection, Term
from kant.model.errors import InputError
from kant.model.units import GPU

DeviceId = tuple[str, str, str]
"""Driver, pool and name of a device."""

PoolId = tuple[str, str]
"""Driver and name of a pool."""

Counter = tuple[str, str, str, str]
"""Driver, pool, counter set and name of a shared counter."""

GPU_DRIVERS = ("gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com")
"""Drivers whose devices are GPUs, or parts of GPUs."""

WHOLE = ("", "gpu", "amdgpu")
"""Values of the attribute `type` that mean that a device is a whole GPU."""

_ANY_TAINT = (k.Toleration(operator="Exists"),)


class Reach(NamedTuple):
    """The nodes that can use a device: `node`, or the nodes that `term` selects; if neither is set, all nodes."""

    node: str = ""
    term: Term | None = None

    def has(self, node: k.Node) -> bool:
        if self.node:
            return node.metadata.name == self.node
        return self.term is None or admits(Selection((), (self.term,), _ANY_TAINT), node)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A device. `stamp` is the uid and version of its slice. `takes` has the amounts of shared counters that it uses.

    `taints` are its own taints and those of DeviceTaintRules. `usable` False: Kant does not allocate the device, since
    it does not understand on which nodes it can be used. A `shared` device serves several claims, within its `limits`.
    `worth` is the size of a partition in thousandths of a GPU; None if unknown.
    """

    id: DeviceId
    view: d.Device
    reach: Reach
    stamp: str
    takes: tuple[tuple[Counter, int], ...] = ()
    taints: tuple[k.Taint, ...] = ()
    usable: bool = True
    limits: Mapping[str, Limit] = field(default_factory=dict)
    worth: int | None = None

    @property
    def shared(self) -> bool:
        return self.view.allow_multiple_allocations

    @property
    def driver(self) -> str:
        return self.id[0]

    @property
    def pool(self) -> PoolId:
        return self.id[:2]

    @cached_property
    def facts(self) -> dict[str, Any]:
        from kant.kube.translate.device_selectors import facts_of  # few clusters have device claims

        return facts_of(self.view, self.driver)

    @property
    def is_gpu(self) -> bool:
        """Whether the device is a GPU, or a part of a GPU."""
        return self.driver in GPU_DRIVERS

    @cached_property
    def is_whole_gpu(self) -> bool:
        kind = self.view.attributes.get("type") or self.view.attributes.get(f"{self.driver}/type")
        return self.is_gpu and not self.shared and ((kind.string_value if kind is not None else "") or "") in WHOLE

    def attribute(self, name: str) -> object:
        """Return the value of a fully qualified attribute; None if the device lacks it."""
        domain, _, own = name.rpartition("/")
        found = self.view.attributes.get(name)
        if found is None and domain == self.driver:
            found = self.view.attributes.get(own)
        return found


@dataclass(slots=True)
class DevicePool:
    id: PoolId
    devices: list[Candidate] = field(default_factory=list)
    wrong: str = ""  # why none of its devices can be allocated; "": they can


class Inventory:
    """All devices of a cluster. `counters` has the total of each shared counter, in billionths."""

    def __init__(self, slices: Iterable[d.ResourceSlice] = (), rules: Sequence[DeviceTaintRule] = ()) -> None:
        self._rules = rules
        self.pools: dict[PoolId, DevicePool] = {}
        self.counters: dict[Counter, int] = {}
        self.by_id: dict[DeviceId, Candidate] = {}
        self.stamps: set[str] = set()
        for id_, own in sorted(_newest(slices).items()):
            self._add(DevicePool(id_), sorted(own, key=lambda one: one.metadata.name))
        self._here: dict[str, list[Candidate]] = defaultdict(list)  # devices of one node
        self._wide: list[Candidate] = []
        for candidate in self.by_id.values():
            (self._here[candidate.reach.node] if candidate.reach.node else self._wide).append(candidate)
        self._at: dict[str, tuple[object, tuple[Candidate, ...]]] = {}

    def _add(self, pool: DevicePool, slices: list[d.ResourceSlice]) -> None:
        self.pools[pool.id] = pool
        count = slices[0].spec.pool.resource_slice_count
        if len(slices) != count:
            pool.wrong = f"pool {pool.id[1]} of driver {pool.id[0]} has {len(slices)} of its {count} slices"
        try:
            counters = self._counters(pool, slices)
        except InputError as error:
            pool.wrong, counters = str(error), {}
        for one in slices:
            stamp = f"{one.metadata.uid} {one.metadata.resource_version}"
            self.stamps.add(stamp)
            for device in one.spec.devices:
                try:
                    found = _candidate(one, device, stamp, self._rules, counters)
                except InputError as error:
                    pool.wrong = str(error)
                    continue
                if any(counter not in counters for counter, _ in found.takes):
                    pool.wrong = f"device {device.name} of pool {pool.id[1]} uses counters that its pool does not have"
                if found.id in self.by_id:
                    pool.wrong = f"pool {pool.id[1]} has two devices {device.name}"
                self.by_id[found.id] = found
                pool.devices.append(found)

    def _counters(self, pool: DevicePool, slices: Iterable[d.ResourceSlice]) -> dict[Counter, int]:
        found = {}
        for one in slices:
            for name, counter, value in _amounts(one.spec.shared_counters):
                found[(*pool.id, name, counter)] = value
        self.counters |= found
        return found

    def at(self, node: k.Node) -> tuple[Candidate, ...]:
        """Return the devices that a node can use, in the order in which they are allocated.

        Pools with devices that must be attached before use come last.
        """
        name = node.metadata.name
        known = self._at.get(name)
        if known is None or known[0] is not node:
            found = [*self._here.get(name, ()), *(one for one in self._wide if one.reach.has(node))]
            late = {one.pool for one in found if one.view.binding_conditions}
            known = self._at[name] = node, tuple(sorted(found, key=lambda one: (one.pool in late, one.pool)))
        return known[1]

    def gpus_of(self, node: str) -> int:
        """Return the number of whole GPUs that belong to a node alone."""
        return sum(one.is_whole_gpu for one in self._here.get(node, ()))


def _newest(slices: Iterable[d.ResourceSlice]) -> Mapping[PoolId, list[d.ResourceSlice]]:
    found: dict[PoolId, list[d.ResourceSlice]] = {}
    for one in slices:
        id_ = one.spec.driver, one.spec.pool.name
        known = found.get(id_)
        if known is None or known[0].spec.pool.generation < one.spec.pool.generation:
            found[id_] = [one]
        elif known[0].spec.pool.generation == one.spec.pool.generation:
            known.append(one)
    return found


def _candidate(
    one: d.ResourceSlice,
    device: d.Device,
    stamp: str,
    rules: Sequence[DeviceTaintRule],
    counters: Mapping[Counter, int],
) -> Candidate:
    spec = one.spec
    source = device if spec.per_device_node_selection else spec
    takes = tuple(
        ((spec.driver, spec.pool.name, name, counter), value)
        for name, counter, value in _amounts(device.consumes_counters)
    )
    reach = Reach(source.node_name, None if source.all_nodes else _term(source.node_selector))
    # newer releases may name the nodes in other ways
    usable = bool(source.node_name) or source.all_nodes or source.node_selector is not None
    id_ = spec.driver, spec.pool.name, device.name
    taints = (*device.taints, *(rule.taint for rule in rules if rule.is_about(*id_)))
    worth = _worth(device, takes, counters)
    return Candidate(id_, device, reach, stamp, takes, taints, usable, limits_of(device), worth)


def _worth(device: d.Device, takes: Iterable[tuple[Counter, int]], counters: Mapping[Counter, int]) -> int | None:
    """Return the size of a partition in thousandths of a GPU, by its MIG profile or else its memory. None if unknown.

    The GPU's total memory is that of the counter `memory`, which all partitions of the GPU share.
    """
    memory = next(((amount, counters.get(one, 0)) for one, amount in takes if one[3] == "memory"), (0, 0))
    kind = device.attributes.get("profile")
    labels = {MEMORY: str(memory[1] // (NANO << 20))} if memory[1] else {}
    by_profile = milli_of(f"nvidia.com/mig-{kind.string_value}", labels) if kind is not None else 0
    return by_profile or (-(-GPU * memory[0] // memory[1]) if memory[0] and memory[1] else None)


def _term(selector: k.NodeSelector | None) -> Term | None:
    """Return the only term of a node selector, as in slices and allocations. None (all nodes) if it is empty."""
    if selector is None or not selector.node_selector_terms:
        return None
    term = selector.node_selector_terms[0]
    requirements = (*term.match_expressions, *term.match_fields)
    return Term(requirements) if requirements else None


def _amounts(sets: Iterable[d.CounterSet]) -> Iterable[tuple[str, str, int]]:
    """Yield each counter: its set, its name, and its amount in billionths."""
    for one in sets:
        name = one.counter_set or one.name
        for counter, amount in sorted(one.counters.items()):
            yield name, counter, int(exact(amount.value, f"counter {counter} of {name}") * NANO)


def reach_of(devices: Iterable[Candidate], node: str) -> k.NodeSelector | None:
    """Return a selector of the nodes that can use all of these devices, chosen for `node`. None: all nodes can.

    Source: createNodeSelector of the same package.
    """
    requirements: dict[k.Requirement, None] = {}
    for one in devices:
        if one.reach.node or one.view.binds_to_node:
            requirements = {k.Requirement(NAME, "In", (one.reach.node or node,)): None}
            break
        if one.reach.term is not None:
            requirements.update(dict.fromkeys(one.reach.term.requirements))
    if not requirements:
        return None
    fields = tuple(one for one in requirements if one.key == NAME)
    return k.NodeSelector((k.SelectorTerm(tuple(one for one in requirements if one.key != NAME), fields),))
