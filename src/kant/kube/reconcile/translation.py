"""Translation: the objects of the mirror as objects of the model, with the state that this needs.

The rules themselves are in the modules that it calls, each a pure function of the objects. A malformed object costs one
sentence about it (`InputError`), and affects no other.

Long: it keeps what the rules share, and asks each of them in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import GATE
from kant.kube.objects.refusals import MalformedError, NoMatchingNodeError, NotYetError
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Node as View
from kant.kube.objects.views import Pod, Requirement, Unstructured
from kant.kube.reconcile.device_allocations import DeviceAllocations
from kant.kube.reconcile.elastic_jobs import role_of
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.reconcile.queue_presence import NONE_LEFT, QueuePresence
from kant.kube.reconcile.readiness import check_claims_of, check_provisioning, check_reservation
from kant.kube.reconcile.topologies import Topologies
from kant.kube.translate.crds import BookedGpus, ReservedNodes, levels_of, queue_config_of, reservation_of
from kant.kube.translate.group_specs import GroupSpec, group_spec
from kant.kube.translate.groups import COMPOSITE, GroupRef, group_of
from kant.kube.translate.levels import Levels, level_asked, levels_seen
from kant.kube.translate.node_facts import why_nowhere
from kant.kube.translate.node_sets import NodeSets, SetChange, names_in
from kant.kube.translate.nodes import about, contradictions, model_of, node_of
from kant.kube.translate.orders import is_held
from kant.kube.translate.pod_rules import NO_LIMIT, RuleBook, amounts_at, apart_from
from kant.kube.translate.pods import (
    NO_CHILD,
    Child,
    Filters,
    GangJob,
    Rules,
    Setting,
    everywhere,
    job_of,
    model_asked,
    no_child,
    no_filters,
    no_rules,
    selection,
)
from kant.kube.translate.preferences import no_preferences, preferences_of
from kant.kube.translate.queue_namespaces import QueueNamespaces
from kant.kube.translate.resources import UNCOUNTED_CLAIM, check_parts, check_quota, with_gpus
from kant.kube.translate.selectors import Selection
from kant.kube.translate.shares import GpuShares, Holding
from kant.kube.translate.sharing import SHARED
from kant.kube.translate.volumes import Storage, why_out_of_reach
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.event import NodeSetChanged, QueuesChanged
from kant.model.job import Demand, Job, Role
from kant.model.node import MAX_POOLS, Node
from kant.model.preference import Preferences
from kant.model.rules import PodAntiAffinity, PodRules
from kant.model.status import NodeStatus
from kant.model.tenant import QueueConfig
from kant.model.units import FOREVER, SECOND

REFILLED = 10 * SECOND
"""Microseconds until the device selectors of a namespace that has used up its time are tried again."""


class Translation:
    """`groups` has the objects of groups by the path at which they were read, None where there is none.

    `stale`: the state does not fit what pods and objects ask for any more. `complaints` are errors in nodes and our own
    objects, by the object.
    """

    def __init__(self, mirror: Mirror, scheduler: str = "kant", shadow: tuple[str, ...] = ()) -> None:
        self.mirror = mirror
        self.scheduler = scheduler
        self.shadow = shadow
        self.node_sets = NodeSets()
        self._set_changes: list[SetChange] = []
        self.rule_book = RuleBook()
        self.topologies = Topologies(self.rule_book, mirror)
        self.levels = Levels()
        self.devices = DeviceAllocations(mirror, scheduler)
        self.filters = NodeFilters(mirror, scheduler, self.devices)
        self.shares = GpuShares()
        self.groups: dict[str, Unstructured | None] = {}
        self.reserved: list[ReservedNodes] = []
        self.booked: list[BookedGpus] = []
        self.complaints: dict[str, str] = {}
        self.stale = False
        self._nowhere = -1, dict[tuple[Selection, ...], str]()  # why no node fits, at a version of the mirror
        self.awaits_nodes = False  # whether a queue or a job waits for nodes that autoscalers add
        self.epoch = 0
        self.queue_config = QueueConfig()
        self.presence = QueuePresence()
        self.queue_namespaces = QueueNamespaces()
        self._left_out: set[str] = set()  # nodes of pools beyond the limit
        self._labels: dict[str, str] | None = None  # the keys of labels of nodes, where no Topology says the levels
        self._split: dict[str, str] = {}  # complaints about nodes that can be used nevertheless

    def beginning(self, now: int) -> int:
        """Return time zero of a state built now (microseconds since 1970): the creation of the oldest live pod."""
        live = (pod for pod in self.mirror.pods.values() if not is_over(pod))
        first = min((pod.metadata.creation_timestamp for pod in live if pod.metadata.creation_timestamp), default="")
        return min(microseconds(first, "pod"), now) if first else now

    # --- a state is built ---------------------------------------------------------------

    def begin(self, zero: int) -> None:
        """Begin a state: learn which filters nodes fail now, the levels of the fabric, and reservations of nodes."""
        mirror = self.mirror
        self.stale, self.epoch, self.complaints = False, zero, {}
        self.node_sets, self._set_changes = NodeSets(), []
        self._begin_rules()
        self.devices.begin()
        waiting = [pod for pod in mirror.pods.values() if not pod.spec.node_name and self.is_ours(pod)]
        self.shares.begin(tuple(mirror.nodes.values()))
        self.filters.begin(waiting)
        found, wrong = levels_of(
            item for kind, items in mirror.objects.items() if kind.startswith("topologies") for item in items.values()
        )
        self._labels = None if found else _labels_of(mirror.nodes.values())
        self.levels = found or levels_seen((self._labels,))
        self._complain("Topology", wrong)
        self._look_for_contradictions()
        self._left_out = set()
        self.reserved, self.booked = [], []
        for item in mirror.objects.get("reservations", {}).values():
            try:
                reserved = reservation_of(item, zero)
            except InputError as wrong_one:
                self.complaints[f"Reservation {item.metadata.name}"] = str(wrong_one)
                continue
            if isinstance(reserved, BookedGpus):
                self.booked.append(reserved)
            else:
                self.reserved.append(reserved)

    def _begin_rules(self) -> None:
        """Learn which classes the rules of pods name, before any pod is counted."""
        self.rule_book = RuleBook()
        self.topologies = Topologies(self.rule_book, self.mirror)
        for pod in self.mirror.pods.values():
            if pod.spec.affinity is None and not pod.spec.topology_spread_constraints:
                continue
            if pod.spec.node_name:
                self.rule_book.note(pod)
            elif self.is_ours(pod):
                with suppress(InputError):
                    self.rule_book.rules(pod)
        self.rule_book.begun()

    def _amounts(self, view: View) -> tuple[tuple[str, int], ...]:
        """Return the exact amounts of a node. Resources served by claims have no limit: devices are a filter."""
        amounts = dict(amounts_at(view))
        amounts |= {name: NO_LIMIT for name in self.mirror.devices.served if not amounts.get(name)}
        return tuple(sorted(amounts.items()))

    def queues(self, core: Core, at: int | None = None) -> None:
        """Tell the core the queues that the objects define, if they have changed."""
        objects = self.mirror.kind("queues")
        self.presence.see(bool(objects))
        self.queue_config, wrong = queue_config_of(objects.values())
        if self.presence.gone:
            self.queue_config = NONE_LEFT
        labels = self.mirror.namespaces.labels
        wrong |= self.queue_namespaces.follow(objects.values(), self.queue_config, labels)
        self._complain("Queue", wrong)
        if self.queue_config != core.state.quota_usage.declared:
            self.awaits_nodes = self.awaits_nodes or any(queue.node_wait for queue in self.queue_config.queues)
            core.happen(QueuesChanged(core.now if at is None else at, self.queue_config))

    def _complain(self, kind: str, wrong: dict[str, str]) -> None:
        for name in [name for name in self.complaints if name.startswith(f"{kind} ")]:
            del self.complaints[name]
        self.complaints.update({f"{kind} {name}": sentence for name, sentence in wrong.items()})

    # --- nodes ---------------------------------------------------------------

    def node(self, view: View, now: int) -> tuple[Node, NodeStatus, int, int] | None:
        """Return a node, its status, until when (-1 unless it is drained), and how many of its GPUs it lacks.

        None for a node that cannot be translated.
        """
        if view.metadata.name in self._left_out:
            return None
        try:
            seen = node_of(view, self.levels, self.devices.requests.gpus_at(view))
        except InputError as wrong:
            self.complaints[about(view)] = str(wrong)
            return None
        self.stale = self.stale or self.shares.is_new(view)
        self.drop_complaint(about(view), self._split.get(about(view), ""))
        node, status, until = replace(seen.node, amounts=self._amounts(view)), seen.status, -1
        for reserved in self.reserved:
            if reserved.start <= now < reserved.end and matches(reserved, view.metadata.labels or {}):
                if reserved.queues:
                    node = replace(node, queues=tuple(sorted({*node.queues, *reserved.queues})))
                elif status == NodeStatus.IN_SERVICE:
                    status, until = NodeStatus.DRAINING, now
        return node, status, until, seen.lost

    def joins(self, views: Collection[View]) -> bool:
        """Learn the fabric labels of joining nodes. Returns whether the levels, and so all nodes, have changed."""
        if self._labels is not None and (labels := _labels_of(views)).keys() - self._labels:
            self._labels |= labels
            if levels_seen((self._labels,)) != self.levels:
                return True
        if self.levels.hbd:
            self._look_for_contradictions()
        return False

    def leaves(self, name: str) -> None:
        """Forget a node that has left."""
        self.shares.forget(name)
        self.topologies.leave(name)
        self._left_out.discard(name)

    def _look_for_contradictions(self) -> None:
        self._split = contradictions(self.mirror.nodes.values(), self.levels)
        self.complaints |= self._split

    def leave_out_rare(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Return the nodes of as many pools as a cluster may have, the largest pools first; the others get no jobs."""
        sizes = Counter(node.pool for node in nodes)
        kept = {pool for pool, _ in sizes.most_common(MAX_POOLS)}
        self._left_out = {node.name for node in nodes if node.pool not in kept}
        for name in self._left_out:
            what = "GPU models and reservations of the nodes"
            self.complaints[f"node {name}"] = f"{what} make more than {MAX_POOLS} pools; it takes nothing"
        return tuple(node for node in nodes if node.pool in kept)

    def drop_complaint(self, about: str, rest: str = "") -> None:
        """Drop the complaint about an object, or replace it by `rest`."""
        if rest:
            self.complaints[about] = rest
        else:
            self.complaints.pop(about, None)

    def next_change(self, now: int) -> int:
        """Return when a reservation begins or ends, or device selectors are tried again; FOREVER for never."""
        times = [time for reserved in self.reserved for time in (reserved.start, reserved.end) if time > now]
        times += [now + REFILLED] if self.devices.requests.selectors.turned_away else []
        return min(times, default=FOREVER)

    # --- node sets -----------------------------------------------------------

    def follow_facts(self, name: str) -> None:
        """Note that a node of the state may have other labels, taints, devices or conditions."""
        self.node_sets.follow(name, self.mirror.nodes.get(name), self.filters.failing.get(name, ()))
        self.topologies.follow(name)

    def tell_sets(self, core: Core) -> None:
        """Emit events for changes in the nodes of the node sets and the domains that jobs name."""
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
        """Return the changes of node sets of jobs, each once. Sets that are not `used` are forgotten at times."""
        if self.node_sets.are_many:
            self.node_sets.keep(used())
        found, self._set_changes = self._set_changes, []
        return found

    # --- pods ---------------------------------------------------------------

    def is_ours(self, pod: Pod) -> bool:
        """Whether Kant schedules the pod; in shadow mode, whether a shadowed scheduler does and it needs GPUs."""
        if self.shadow:
            return pod.spec.scheduler_name in self.shadow and self.used(pod).gpus > 0
        return pod.spec.scheduler_name == self.scheduler

    def is_free(self, pod: Pod) -> bool:
        """Whether a waiting pod may start: it has no gate of another controller and no hold."""
        return all(gate.name == GATE for gate in pod.spec.scheduling_gates) and not is_held(pod)

    def group_spec(self, ref: GroupRef) -> GroupSpec | None:
        """Return what is known of a group, by its object where it has one; None while that has not been read.

        Raises InputError for a malformed object, and for a required one that does not exist.
        """
        if not ref.paths:
            return GroupSpec(ref.least or 1, tasks=ref.tasks)
        unread = [path for path in ref.paths if path not in self.groups]
        found = next((item for path in ref.paths if (item := self.groups.get(path)) is not None), None)
        if found is None:
            if unread:
                return None
            if ref.least:
                return GroupSpec(ref.least)
            raise NotYetError(f"its group {ref.name} ({ref.source}) is not there")
        spec = group_spec(ref.source, found, ref.part)
        if ref.source == COMPOSITE and ref.tasks:
            spec = spec._replace(tasks=ref.tasks)
        return spec._replace(least=ref.least) if ref.least and not spec.alone else spec

    def demand(self, pod: Pod, where: str = "") -> Demand:
        """Return what a pod asks for. Raises InputError."""
        where = where or f"pod {pod.metadata.namespace}/{pod.metadata.name}, spec"
        return with_gpus(self.shares.demand(pod, where), self.devices.requests.gpus(pod))

    def used(self, pod: Pod) -> Demand:
        """Return what a pod takes of the node that it is bound to, even if its spec is invalid."""
        return with_gpus(self.shares.used(pod), self.devices.requests.gpus(pod))

    def holdings(self, pod: Pod) -> list[Holding]:
        """Return what a pod holds of the node that it is bound to, and which GPUs of it."""
        (demand, devices), *more = self.shares.holdings(pod)
        return [(with_gpus(demand, self.devices.requests.gpus(pod)), devices), *more]

    def rules(self, pod: Pod, apart: PodAntiAffinity | None = None) -> PodRules:
        """Return what a pod counts as and demands of the pods around it. Raises InputError.

        `apart` is a further class in which it counts, with a limit per node.
        """
        return apart_from(self.rule_book.rules(pod), apart)

    def rules_there(self, pod: Pod, foreign: bool) -> PodRules:
        """Return the rules of a bound pod, even if its spec is invalid."""
        with suppress(InputError):
            if not foreign:
                return self.rules(pod)
        return self.rule_book.counted(pod)

    def apart(self, key: str, pods: Sequence[Pod]) -> PodAntiAffinity | None:
        """Return the class that limits the pods of a waiting workload per node; None for no limit."""
        if key in self.filters.apart:
            return PodAntiAffinity(f"gang {key}")
        return self.filters.limit(pods[0]) if len(pods) == 1 else None

    def job(self, core: Core, ref: GroupRef | None, pods: list[Pod], filters: Filters | None = None) -> GangJob:
        """Return the job of waiting pods. Raises InputError.

        `filters`: what they demand of nodes beyond their specs; by default all that is short now.
        """
        check_claims_of(pods, self.devices, self.filters)
        check_provisioning(pods, self.mirror)
        apart = self.apart(self._key(ref, pods), pods)
        found = self._job(ref, pods, filters or self._requirements, lambda pod: self.rules(pod, apart))
        job = found.job
        self._check_namespace(job, pods)
        for pod in pods:
            counted = (*((SHARED,) if job.gpu_milli else ()), *self.demand(pod).mig.split(","))
            check_parts(pod.spec, job.queue, self.queue_config, counted)
        claimed = next((name for pod in pods if (name := self.devices.requests.uncounted(pod))), "")
        if claimed:
            check_quota("resourceClaims", f"claim {claimed}", job.queue, self.queue_config, UNCOUNTED_CLAIM)
        if self.devices.requests.are_one(pods) and job.within != "node":
            job = replace(job, within="node", within_required=True)
        if job.reservation:
            check_reservation(job, self.booked, core)
        self._check_sets(core, job, pods)
        return found._replace(job=replace(job, id=core.fresh_id(job.id)))

    def job_but_for_filters(self, core: Core, ref: GroupRef | None, pod: Pod) -> Job:
        """Return the job of a pod without the filters for what the core does not count. Raises as `job` does."""
        return self.job(core, ref, [pod], self.shares.requirements).job

    def accepting(self, pod: Pod, nodes: Iterable[str]) -> list[str]:
        """Return those of these nodes that a pod accepts by its spec, whatever is short there."""
        try:
            said, model = selection(pod, self._storage, self.shares.requirements), model_asked(pod)
        except InputError:
            return []
        views = ((name, self.mirror.nodes.get(name)) for name in nodes)
        return [name for name, view in views if view and model in ("", model_of(view)) and self._admits(said, view)]

    def joining_job(self, core: Core, ref: GroupRef | None, pod: Pod) -> Job:
        """Return a pod that may join a running gang as a job of its own. Raises as `job` does."""
        check_claims_of([pod], self.devices, self.filters)
        job = self._job(ref, [pod], self._requirements, self.rules).job
        self._check_namespace(job, [pod])
        self._check_sets(core, job, [pod])
        return job

    def role(self, core: Core, ref: GroupRef | None, pod: Pod) -> Role:
        """Return what a pod accepts, even if no node matches. Raises InputError."""
        role = role_of(self._job(ref, [pod], self._requirements, no_rules).job)
        self.tell_sets(core)
        return role

    def _check_sets(self, core: Core, job: Job, pods: list[Pod]) -> None:
        """Report the nodes of the sets that a job names. Raises NoMatchingNodeError where one of them has none."""
        self.tell_sets(core)
        if self.node_sets.is_nowhere(job):
            raise NoMatchingNodeError(self.why_no_node(pods), frozenset(names_in(job)))

    def admits(self, pod: Pod, node: str) -> bool:
        """Whether a node now has the GPU model, labels and taints that a pod accepts."""
        view = self.mirror.nodes.get(node)
        try:
            is_model = view is not None and model_asked(pod) in ("", model_of(view))
            return view is not None and is_model and self._admits(self._selection(pod), view)
        except InputError:
            return False

    def _admits(self, selection: Selection, view: View) -> bool:
        return selection.admits(*self.node_sets.said(view))

    def _check_namespace(self, job: Job, pods: list[Pod]) -> None:
        """Raise InputError where the queue is not open to the namespace of the pods."""
        if self.queue_namespaces.allowed:
            why = self.queue_namespaces.refuses(job.queue, pods[0].metadata.namespace)
            if why:
                raise MalformedError(why)

    def _key(self, ref: GroupRef | None, pods: list[Pod]) -> str:
        return "/".join(ref.key) if ref is not None else pods[0].metadata.uid

    def _selection(self, pod: Pod) -> Selection:
        return selection(pod, self._storage, self._requirements)

    def _requirements(self, pod: Pod) -> tuple[Requirement, ...]:
        return (*self.filters.requirements(pod), *self.shares.requirements(pod))

    def _preferences(self, pod: Pod) -> Preferences:
        where = f"pod {pod.metadata.namespace}/{pod.metadata.name}, spec"
        of_nodes = preferences_of(pod, self.node_sets.soft_taints, self.node_sets.name_of, where)
        return replace(of_nodes, pods=self.rule_book.pulls(pod), spread=self.rule_book.evenly(pod))

    @property
    def _storage(self) -> Storage:
        return self.mirror.storage._replace(devices=self.devices.requests.demands)

    def why_no_node(self, pods: list[Pod]) -> str:
        """Return why no node fits these pods, in one sentence."""
        nodes, storage, devices = self.mirror.nodes.values(), self._storage, self.mirror.devices.slices
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
                return f"no node that would do reaches its volumes: {said}"
        if self._nowhere[0] != self.mirror.version:
            self._nowhere = self.mirror.version, {}
        known, asked = self._nowhere[1], tuple(selection(pod, storage) for pod in pods)
        if asked not in known:
            known[asked] = why_nowhere(asked, list(map(self.node_sets.said, nodes)))
        return known[asked]

    def _job(self, ref: GroupRef | None, pods: list[Pod], filters: Filters, rules: Rules) -> GangJob:
        meta = pods[0].metadata
        name = f"{meta.namespace}/{ref.name if ref is not None else meta.name}"
        spec = self.group_spec(ref) if ref is not None else None
        setting = Setting(
            self.levels,
            self.node_sets.name_of if filters is not no_filters else everywhere,
            self.epoch,
            storage=self._storage,
            filters=filters,
            demand=self.demand,
            preferences=self._preferences if filters is not no_filters else no_preferences,
            rules=rules,
            child=partial(self._child, spec) if ref is not None and ref.source == COMPOSITE else no_child,
        )
        found = job_of(name, pods, setting, spec)
        self.awaits_nodes = self.awaits_nodes or found.job.node_wait > 0
        if spec is not None and spec.created:
            return found._replace(job=replace(found.job, submit=microseconds(spec.created, name) - self.epoch))
        return found

    def _child(self, outer: GroupSpec | None, pod: Pod) -> Child:
        """Return the PodGroup of a pod in a composite group, if it has its own constraint. Raises InputError."""
        ref = group_of(pod)
        spec = self.group_spec(ref) if ref is not None else None
        if ref is None or spec is None or outer is None or spec.required in ("", outer.required):
            return NO_CHILD
        where = f"PodGroup {ref.name}, spec.schedulingConstraints"
        return ref.name, level_asked(self.levels, spec.required, where)

    def existing_job(self, core: Core, ref: GroupRef | None, pods: list[Pod], foreign: bool) -> Job:
        """Return the job of bound pods, even if their specs are invalid: which nodes they select no longer matters."""
        if not foreign:
            try:
                job = self._job(ref, [_anywhere(pod) for pod in pods], no_filters, no_rules).job
                name = core.fresh_id(job.id)
                return replace(job, id=name, models=(), roles=(), within="", within_required=False)
            except InputError:
                pass
        meta = pods[0].metadata
        submit = microseconds(meta.creation_timestamp, meta.name) - self.epoch
        return Job(core.fresh_id(f"{meta.namespace}/{meta.name}"), submit, (), preemptible=False)

    def bound_at(self, pods: list[Pod]) -> int:
        """Return when the last of these pods was bound; its creation time where the binding time is unknown."""
        times = []
        for pod in pods:
            said = [one.last_transition_time for one in pod.status.conditions if one.type == "PodScheduled"]
            text = (said[0] if said else None) or pod.metadata.creation_timestamp
            times.append(microseconds(text, pod.metadata.name) - self.epoch)
        return max(times)


def matches(reserved: ReservedNodes, labels: dict[str, str]) -> bool:
    """Whether a node with these labels is reserved."""
    return all(labels.get(key) == value for key, value in reserved.selector.items())


def _anywhere(pod: Pod) -> Pod:
    """Return the pod as if it selected no nodes. Its anti-affinity to other pods remains."""
    spec = pod.spec
    if spec.affinity is not None:
        spec = replace(spec, affinity=replace(spec.affinity, node_affinity=None))
    return replace(pod, spec=replace(spec, node_selector=None, volumes=(), resource_claims=()))


def _labels_of(views: Iterable[View]) -> dict[str, str]:
    return {key: "" for view in views for key in view.metadata.labels or ()}
