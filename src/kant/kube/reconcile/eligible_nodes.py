"""Eligible nodes: the nodes on which pods may run by labels, taints, volumes and devices, as node sets of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.refusals import NoMatchingNodeError
from kant.kube.objects.views import Node as View
from kant.kube.objects.views import Pod, Requirement
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.reconcile.topologies import Topologies
from kant.kube.translate.node_facts import why_nowhere
from kant.kube.translate.node_sets import NodeSets, SetChange, names_in
from kant.kube.translate.nodes import model_of
from kant.kube.translate.pods import Filters, model_asked, selection
from kant.kube.translate.selectors import Selection
from kant.kube.translate.shares import GpuShares
from kant.kube.translate.volumes import Storage, why_out_of_reach
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.event import NodeSetChanged
from kant.model.job import Job


class EligibleNodes:
    """`node_sets` has the node sets of one state, `topologies` the domains that affinity rules of its pods name."""

    def __init__(self, mirror: Mirror, filters: NodeFilters, shares: GpuShares, topologies: Topologies) -> None:
        self.mirror = mirror
        self.filters = filters
        self.shares = shares
        self.begin(topologies)
        self._nowhere = -1, dict[tuple[Selection, ...], str]()  # version of the mirror; why no node is suitable

    def begin(self, topologies: Topologies) -> None:
        """Start over for a new state."""
        self.topologies = topologies
        self.node_sets = NodeSets()
        self._set_changes: list[SetChange] = []

    def follow_facts(self, name: str) -> None:
        """Note that the labels, taints, devices or conditions of a node of the state may have changed."""
        self.node_sets.follow(name, self.mirror.nodes.get(name), self.filters.failing.get(name, ()))
        self.topologies.changed[name] = None

    def report_sets(self, core: Core) -> None:
        """Emit events for changes to the node sets and domains that jobs name."""
        self.topologies.tell(core)
        for name in self.filters.take_failed():
            if name in core.state.node_index:
                self.follow_facts(name)
        for change in self.node_sets.take_changes():
            if change.added or change.removed:
                core.happen(NodeSetChanged(core.now, change.name, change.added, change.removed))
            if not change.is_new:
                self._set_changes.append(change)

    def take_set_changes(self, used: Callable[[], set[str]]) -> list[SetChange]:
        """Return the changes of node sets since the last call. If there are many sets, forget those not `used`."""
        if self.node_sets.are_many:
            self.node_sets.keep(used())
        found, self._set_changes = self._set_changes, []
        return found

    def check_sets(self, core: Core, job: Job, pods: list[Pod]) -> None:
        """Tell the core the nodes of the sets that a job names. Raises NoMatchingNodeError if the job has no node."""
        self.report_sets(core)
        if self.node_sets.is_nowhere(job):
            raise NoMatchingNodeError(partial(self.why_no_node, pods), frozenset(names_in(job)))

    def accepting(self, pod: Pod, nodes: Iterable[str], filters: Filters | None = None) -> list[str]:
        """Return those of `nodes` that a pod accepts by its spec; `filters` (None: only shares) adds requirements."""
        try:
            said, model = selection(pod, self.storage, filters or self.shares.requirements), model_asked(pod)
        except InputError:
            return []
        views = ((name, self.mirror.nodes.get(name)) for name in nodes)
        return [name for name, view in views if view and model in ("", model_of(view)) and self._admits(said, view)]

    def admits(self, pod: Pod, node: str) -> bool:
        """Whether a pod accepts a node in its present condition: GPU model, labels, taints, and node filters."""
        return bool(self.accepting(pod, (node,), self.requirements_of))

    def _admits(self, selection: Selection, view: View) -> bool:
        return selection.admits(*self.node_sets.said(view))

    def requirements_of(self, pod: Pod) -> tuple[Requirement, ...]:
        return (*self.filters.requirements(pod), *self.shares.requirements(pod))

    @property
    def storage(self) -> Storage:
        return self.mirror.storage._replace(devices=self.filters.devices.demands)

    def why_no_node(self, pods: list[Pod]) -> str:
        """Return, as one sentence, why no node is suitable for these pods."""
        nodes, storage, devices = self.mirror.nodes.values(), self.storage, self.mirror.has_devices
        for pod in pods:
            if why := self.shares.why_nowhere(pod):
                return why
            if not (pod.spec.volumes or pod.spec.resource_claims or devices):
                continue
            own = selection(pod, storage)
            would = [view.metadata.name for view in nodes if self._admits(own, view)]
            why = self.filters.why_nowhere(pod, would)
            if why and all(self.filters.failing.get(name) for name in would):
                return why
            said = why_out_of_reach(pod, storage)
            bare = replace(pod, spec=replace(pod.spec, volumes=(), resource_claims=()))
            if said and not would and any(self._admits(selection(bare), view) for view in nodes):
                return f"no suitable node can use its volumes: {said}"
        if self._nowhere[0] != self.mirror.version:
            self._nowhere = self.mirror.version, {}
        known, asked = self._nowhere[1], tuple(selection(pod, storage) for pod in pods)
        if asked not in known:
            known[asked] = why_nowhere(asked, list(map(self.node_sets.said, nodes)))
        return known[asked]
