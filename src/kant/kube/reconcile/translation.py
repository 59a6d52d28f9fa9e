"""Translation: turns the objects of the mirror into objects of the core, and keeps the state needed for this.

The rules are pure functions in `kant.kube.translate`. An error in an object is reported for that object (`InputError`),
and affects no other object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import GATE
from kant.kube.objects.refusals import NotYetError
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Pod, Unstructured
from kant.kube.reconcile.complaints import Complaints
from kant.kube.reconcile.declared_queues import DeclaredQueues
from kant.kube.reconcile.dynamic_resources import DynamicResources
from kant.kube.reconcile.elastic_jobs import role_of
from kant.kube.reconcile.eligible_nodes import EligibleNodes
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.reconcile.readiness import check_claims_of, check_provisioning, check_reservation
from kant.kube.reconcile.topologies import Topologies
from kant.kube.reconcile.translated_nodes import TranslatedNodes
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.groups import COMPOSITE, GroupRef, group_of
from kant.kube.translate.levels import level_asked
from kant.kube.translate.orders import is_held
from kant.kube.translate.pod_rules import RuleBook, apart_from
from kant.kube.translate.pods import NO_CHILD, Child, Filters, GangJob, Setting, job_of
from kant.kube.translate.resources import UNCOUNTED_CLAIM, check_parts, check_quota, with_gpus
from kant.kube.translate.shares import GpuShares, Holding
from kant.kube.translate.sharing import SHARED
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.job import Demand, Job, Role
from kant.model.preference import Preferences
from kant.model.rules import PodAntiAffinity, PodRules
from kant.model.units import FOREVER, SECOND

if TYPE_CHECKING:
    from kant.kube.translate.reservations import BookedGpus

REFILLED = 10 * SECOND
"""Microseconds until device selectors are evaluated again for a namespace that has exceeded its time limit."""


class Translation:
    """`groups` has the objects of groups, by the API path at which they were read; None: the path has no object.

    `stale`: the state no longer matches pods and objects, and must be rebuilt. `booked` has the reservations of GPUs.
    """

    def __init__(self, mirror: Mirror, scheduler: str = "kant", shadow: tuple[str, ...] = ()) -> None:
        self.mirror = mirror
        self.scheduler = scheduler
        self.shadow = shadow
        self.complaints = Complaints()
        self.rule_book = RuleBook()
        self.devices = DynamicResources(mirror, scheduler)
        self.filters = NodeFilters(mirror, scheduler, self.devices)
        self.shares = GpuShares()
        self.nodes = TranslatedNodes(mirror, self.devices, self.shares, self.complaints)
        self.eligible = EligibleNodes(mirror, self.filters, self.shares, Topologies(self.rule_book, mirror))
        self.queues = DeclaredQueues(mirror, self.complaints)
        self.groups: dict[str, Unstructured | None] = {}
        self.booked: list[BookedGpus] = []
        self.stale = False
        self.epoch = 0

    def beginning(self, now: int) -> int:
        """Return time zero of a state built now: when the oldest live pod was created (microseconds since 1970)."""
        live = (pod for pod in self.mirror.pods.values() if not is_over(pod))
        first = min((pod.metadata.creation_timestamp for pod in live if pod.metadata.creation_timestamp), default="")
        return min(microseconds(first, "pod"), now) if first else now

    # --- a state is built ---------------------------------------------------------------

    def begin(self, zero: int) -> None:
        """Start over for a new state: determine failing node filters, topology levels, and reservations."""
        mirror = self.mirror
        self.stale, self.epoch = False, zero
        self.complaints.clear()
        self._begin_rules()
        self.devices.begin()
        waiting = [pod for pod in mirror.pods.values() if not pod.spec.node_name and self.is_ours(pod)]
        self.shares.begin(tuple(mirror.nodes.values()))
        self.filters.begin(waiting)
        self.nodes.begin()
        self.booked = []
        if reservations := mirror.objects.get("reservations"):
            self._read_reservations(reservations.values(), zero)

    def _read_reservations(self, objects: Iterable[Unstructured], zero: int) -> None:
        from kant.kube.translate.reservations import BookedGpus, reservation_of  # few clusters have these

        for item in objects:
            try:
                reserved = reservation_of(item, zero)
            except InputError as wrong_one:
                self.complaints[f"Reservation {item.metadata.name}"] = str(wrong_one)
                continue
            if isinstance(reserved, BookedGpus):
                self.booked.append(reserved)
            else:
                self.nodes.reserved.append(reserved)

    def _begin_rules(self) -> None:
        """Determine the pod classes that affinity rules name, before any pod is counted."""
        self.rule_book = RuleBook()
        self.eligible.begin(Topologies(self.rule_book, self.mirror))
        for pod in self.mirror.pods.values():
            if pod.spec.affinity is None and not pod.spec.topology_spread_constraints:
                continue
            if pod.spec.node_name:
                self.rule_book.note(pod)
            elif self.is_ours(pod):
                with suppress(InputError):
                    self.rule_book.rules(pod)
        self.rule_book.begun()

    # --- nodes ---------------------------------------------------------------

    def next_change(self, now: int) -> int:
        """Return when a node reservation next begins or ends, or device selectors are tried again; FOREVER if never."""
        times = [time for reserved in self.nodes.reserved for time in (reserved.start, reserved.end) if time > now]
        times += [now + REFILLED] if self.devices.has_exceeded_limits else []
        return min(times, default=FOREVER)

    # --- pods ---------------------------------------------------------------

    def is_ours(self, pod: Pod) -> bool:
        """Whether Kant schedules the pod; in shadow mode, whether it needs GPUs and belongs to a shadowed scheduler."""
        if self.shadow:
            return pod.spec.scheduler_name in self.shadow and self.used(pod).gpus > 0
        return pod.spec.scheduler_name == self.scheduler

    def is_free(self, pod: Pod) -> bool:
        """Whether a waiting pod may start: no gate but Kant's is on the pod, and no user holds it."""
        return all(gate.name == GATE for gate in pod.spec.scheduling_gates) and not is_held(pod)

    def group_spec(self, ref: GroupRef) -> GroupSpec | None:
        """Return the properties of a group. None while the object that defines the group is unread.

        Raises InputError if the object is malformed, or missing although the group requires one.
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
            raise NotYetError(f"its group {ref.name} ({ref.source}) does not exist")
        from kant.kube.translate.group_objects import group_spec  # imported with the first object of a group

        spec = group_spec(ref.source, found, ref.part)
        if ref.source == COMPOSITE and ref.tasks:
            spec = spec._replace(tasks=ref.tasks)
        return spec._replace(least=ref.least) if ref.least and not spec.alone else spec

    def demand(self, pod: Pod, where: str = "") -> Demand:
        """Return the resources that a pod requests. Raises InputError if its spec is invalid."""
        where = where or f"pod {pod.metadata.namespace}/{pod.metadata.name}, spec"
        return with_gpus(self.shares.demand(pod, where), self.devices.gpus(pod))

    def used(self, pod: Pod) -> Demand:
        """Return what a bound pod uses of its node, even if the pod's spec is invalid."""
        return with_gpus(self.shares.used(pod), self.devices.gpus(pod))

    def holdings(self, pod: Pod) -> list[Holding]:
        """Return what a bound pod holds of its node: amounts, each with a bit mask of its GPUs (0: unknown)."""
        (demand, devices), *more = self.shares.holdings(pod)
        return [(with_gpus(demand, self.devices.gpus(pod)), devices), *more]

    def rules(self, pod: Pod, apart: PodAntiAffinity | None = None) -> PodRules:
        """Return the classes in which a pod counts, and its affinity rules for other pods. Raises InputError.

        `apart` is a further class of the pod, with a limit on the number of such pods per node.
        """
        return apart_from(self.rule_book.rules(pod), apart)

    def rules_there(self, pod: Pod, foreign: bool) -> PodRules:
        """Return the rules of a bound pod. If it is `foreign`, or its spec is invalid: only its classes and amounts."""
        with suppress(InputError):
            if not foreign:
                return self.rules(pod)
        return self.rule_book.counted(pod)

    def apart(self, key: str, pods: Sequence[Pod]) -> PodAntiAffinity | None:
        """Return the pod class that limits how many pods of a waiting workload a node gets; None: no limit."""
        if key in self.filters.apart:
            return PodAntiAffinity(f"gang {key}")
        return self.filters.limit(pods[0]) if len(pods) == 1 else None

    def job(self, core: Core, ref: GroupRef | None, pods: list[Pod], filters: Filters | None = None) -> GangJob:
        """Return the job of waiting pods. Raises InputError if they cannot be a job, or not yet.

        `filters` returns requirements on nodes besides those in a pod's spec; None: those of all node filters.
        """
        check_claims_of(pods, self.devices, self.filters)
        check_provisioning(pods, self.mirror)
        apart = self.apart(self._key(ref, pods), pods)
        found = self._job(ref, pods, filters or self.eligible.requirements_of, lambda pod: self.rules(pod, apart))
        job = found.job
        self.queues.check_namespace(job, pods)
        for pod in pods:
            counted = (*((SHARED,) if job.gpu_milli else ()), *self.demand(pod).mig.split(","))
            check_parts(pod.spec, job.queue, self.queues.config, counted)
        claimed = next((name for pod in pods if (name := self.devices.uncounted(pod))), "")
        if claimed:
            check_quota("resourceClaims", f"claim {claimed}", job.queue, self.queues.config, UNCOUNTED_CLAIM)
        if self.devices.are_one(pods) and job.within != "node":
            job = replace(job, within="node", within_required=True)
        if job.reservation:
            check_reservation(job, self.booked, core)
        self.eligible.check_sets(core, job, pods)
        return found._replace(job=replace(job, id=core.fresh_id(job.id)))

    def job_but_for_filters(self, core: Core, ref: GroupRef | None, pod: Pod) -> Job:
        """Return the job of a pod without the node filters for devices and volumes. Raises InputError like `job`."""
        return self.job(core, ref, [pod], self.shares.requirements).job

    def joining_job(self, core: Core, ref: GroupRef | None, pod: Pod) -> Job:
        """Return the job that a pod, which may join a running gang, would be by itself. Raises InputError."""
        check_claims_of([pod], self.devices, self.filters)
        job = self._job(ref, [pod], self.eligible.requirements_of, self.rules).job
        self.queues.check_namespace(job, [pod])
        self.eligible.check_sets(core, job, [pod])
        return job

    def role(self, core: Core, ref: GroupRef | None, pod: Pod) -> Role:
        """Return which nodes a pod accepts, even if there is no such node. Raises InputError."""
        role = role_of(self._job(ref, [pod], self.eligible.requirements_of).job)
        self.eligible.report_sets(core)
        return role

    def _key(self, ref: GroupRef | None, pods: list[Pod]) -> str:
        return "/".join(ref.key) if ref is not None else pods[0].metadata.uid

    def _preferences(self, pod: Pod) -> Preferences:
        of_nodes, sets = Preferences(), self.eligible.node_sets
        if sets.soft_taints or pod.spec.affinity is not None:
            from kant.kube.translate.preferences import preferences_of  # few pods prefer nodes

            where = f"pod {pod.metadata.namespace}/{pod.metadata.name}, spec"
            of_nodes = preferences_of(pod, sets.soft_taints, sets.name_of, where)
        return replace(of_nodes, pods=self.rule_book.pulls(pod), spread=self.rule_book.evenly(pod))

    def _job(
        self,
        ref: GroupRef | None,
        pods: list[Pod],
        filters: Filters | None,
        rules: Callable[[Pod], PodRules] | None = None,
    ) -> GangJob:
        """Return the job of these pods. If `filters` is None: as if the pods neither selected nor preferred nodes."""
        meta = pods[0].metadata
        name = f"{meta.namespace}/{ref.name if ref is not None else meta.name}"
        spec = self.group_spec(ref) if ref is not None else None
        setting = Setting(
            self.nodes.levels, epoch=self.epoch, storage=self.eligible.storage, filters=filters, demand=self.demand
        )
        if filters is not None:
            setting = setting._replace(node_sets=self.eligible.node_sets.name_of, preferences=self._preferences)
        if rules is not None:
            setting = setting._replace(rules=rules)
        if ref is not None and ref.source == COMPOSITE:
            setting = setting._replace(child=partial(self._child, spec))
        found = job_of(name, pods, setting, spec)
        self.queues.awaits_nodes |= found.job.node_wait > 0
        if spec is not None and spec.created:
            return found._replace(job=replace(found.job, submit=microseconds(spec.created, name) - self.epoch))
        return found

    def _child(self, outer: GroupSpec | None, pod: Pod) -> Child:
        """Return the PodGroup of a pod in a composite group if it has its own constraint, else NO_CHILD; InputError."""
        ref = group_of(pod)
        spec = self.group_spec(ref) if ref is not None else None
        if ref is None or spec is None or outer is None or spec.required in ("", outer.required):
            return NO_CHILD
        where = f"PodGroup {ref.name}, spec.schedulingConstraints"
        return ref.name, level_asked(self.nodes.levels, spec.required, where)

    def existing_job(self, core: Core, ref: GroupRef | None, pods: list[Pod], foreign: bool) -> Job:
        """Return the job of bound pods, even if their specs are invalid. Their node selectors are ignored."""
        if not foreign:
            try:
                job = self._job(ref, [_anywhere(pod) for pod in pods], None).job
                name = core.fresh_id(job.id)
                return replace(job, id=name, models=(), roles=(), within="", within_required=False)
            except InputError:
                pass
        meta = pods[0].metadata
        submit = microseconds(meta.creation_timestamp, meta.name) - self.epoch
        return Job(core.fresh_id(f"{meta.namespace}/{meta.name}"), submit, (), preemptible=False)

    def bound_at(self, pods: list[Pod]) -> int:
        """Return when the last of these pods was bound (microseconds of the run); its creation if that is unknown."""
        known = ((pod.metadata, pod.scheduled and pod.scheduled.last_transition_time) for pod in pods)
        return max(microseconds(at or meta.creation_timestamp, meta.name) for meta, at in known) - self.epoch


def _anywhere(pod: Pod) -> Pod:
    """Return the pod without its selection of nodes, volumes and claims. Its anti-affinity to other pods remains."""
    spec = pod.spec
    if spec.affinity is not None:
        spec = replace(spec, affinity=replace(spec.affinity, node_affinity=None))
    return replace(pod, spec=replace(spec, node_selector=None, volumes=(), resource_claims=()))
