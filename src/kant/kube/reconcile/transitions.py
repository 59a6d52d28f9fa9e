"""Transitions of the job of a workload: each is recorded on the workload and reported to the core as events.

This module does not decide on transitions: `workloads`, `partially_bound` and the plans of the core decide.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.refusals import MalformedError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.elastic_jobs import identity, kinds_of, may_be_elastic, with_floors
from kant.kube.reconcile.existing_pods import ExistingPods
from kant.kube.reconcile.messages import UNSCHEDULABLE, Messages
from kant.kube.reconcile.slots import Member, Slot, coming, slots_of, table_of
from kant.kube.reconcile.tasks import Tasks, starting_pods
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase, Workload, give_up
from kant.kube.translate.group_spec import is_stand_in
from kant.kube.translate.pods import GangJob
from kant.live.core import Core
from kant.live.sentences import public_id
from kant.model.event import JobCancelled, JobFinished, JobRefused, JobStarted, JobSubmitted
from kant.model.job import Job
from kant.model.placement import COUNTED, Allocation


@dataclass(eq=False)
class Transitions:
    """`by_job` has the workloads that are jobs of the core, by the id of the job.

    `to_bind` and `to_evict` have workloads on which the driver must act. `completed` has gangs that have become
    complete, each with the seconds for which it was partially bound. `partial` has the workloads that are partially
    bound. `unprotected` has workloads for which the core must still be told whether they may be preempted.
    """

    core: Core
    mirror: Mirror
    translation: Translation
    existing_pods: ExistingPods
    in_flight: Collection[str]  # uids of pods whose binding has not been answered

    def __post_init__(self) -> None:
        self.filters = self.translation.filters
        self.messages = Messages(self.core.clock)
        self.by_job: dict[str, Workload] = {}
        self.to_bind: deque[Workload] = deque()
        self.to_evict: deque[tuple[Workload, str]] = deque()
        self.completed: deque[tuple[Workload, float]] = deque()
        self.partial: dict[Workload, None] = {}
        self.unprotected: dict[Workload, None] = {}
        self.unbound: dict[Workload, None] = {}  # started workloads that are not known to be bound
        self.vacated: dict[Workload, None] = {}  # workloads that have lost pods since they were bound
        self._unplaced: dict[Workload, None] = {}  # workloads that have waited, and may still wait
        self.changed: dict[tuple[str, str], None] = {}  # (uid, node) of pods to count again
        self.closed: set[str] = set()  # nodes that accept no pod now
        self.refused: dict[Workload, None] = {}  # workloads whose start node filters have refused
        self.nowhere: dict[Workload, str] = {}  # single-pod workloads kept from all nodes by filters; the pod's uid
        self.node_names = self.core.state.node_rows.names  # the node names by row, kept current while nodes join

    def is_in_flight(self, workload: Workload) -> bool:
        """Whether a binding of the workload is unanswered. Until then no other workload gets its allocation."""
        return any(slot.pod in self.in_flight for slot in workload.slots)

    # --- becoming a job -------------------------------------------------------------------------------------------

    def submit(self, workload: Workload, bound: list[Pod], waiting: list[Pod], more: list[Pod] | None = None) -> None:
        """Submit a workload as a job. Bound pods stay on their nodes. With `more` pods it becomes an elastic gang whose
        floor is the `waiting` pods. Raises InputError."""
        core = self.core
        more = more or []
        found = self.translation.job(core, workload.group, [*bound, *waiting, *more])
        members = self._members(found, [*bound, *waiting, *more])
        if more:
            floors = Counter(member.group for member in members[: len(waiting)])
            if not may_be_elastic(found.job):
                raise MalformedError("it is not an elastic gang")
            if any(not floors[group] for group in range(len(found.job.groups))):
                alike = [one.pod for one in members[len(waiting) :] if floors[one.group]]
                self.submit(workload, bound, waiting, alike)
                return
            found = found._replace(job=with_floors(found.job, floors))
        job = found.job
        workload.floor, workload.kinds = len(waiting) if more else 0, kinds_of(job)
        workload.least = len(bound) + len(waiting)
        core.happen(JobSubmitted(self.existing_pods.came(job), job))
        self.came(workload, job, members)
        workload.slots = [self._slot_of(member) for member in members[: len(bound)]]

    def _members(self, found: GangJob, pods: Sequence[Pod]) -> list[Member]:
        """Return the pods, each with its requests and the index of its group in the job."""
        groups = [at for at, group in enumerate(found.job.groups) for _ in range(group.count)]
        group_of = dict(zip(found.pods, groups, strict=True))
        return [Member(pod, found.job.groups[at].demand, at) for pod in pods for at in (group_of[pod.metadata.name],)]

    def waits(self, workload: Workload) -> None:
        """Note that the workload is a waiting job from now on."""
        workload.phase = Phase.WAITING
        self._unplaced[workload] = None

    def unplaced(self, *phases: Phase) -> list[Workload]:
        """Return the workloads in these phases (WAITING or REJECTED). Running workloads are not scanned."""
        self._unplaced = {one: None for one in self._unplaced if one.phase in (Phase.WAITING, Phase.REJECTED)}
        return [one for one in self._unplaced if one.phase in phases]

    def with_vacancies(self) -> list[Workload]:
        """Return the placed workloads that have slots without a bound pod. A few others may be among them."""
        placed = (one for one in self.vacated if one.phase is Phase.PLACED)
        self.vacated = {one: None for one in placed if not all(slot.bound for slot in one.slots)}
        return list(self.unbound | self.vacated)

    def came(self, workload: Workload, job: Job, members: list[Member]) -> None:
        """Note that `job`, which waits, was submitted to the core for this workload."""
        workload.job, workload.members, workload.reason = job.id, members, ""
        self.waits(workload)
        workload.adopted = False
        self.by_job[job.id] = workload

    def withhold(self, workload: Workload, waiting: list[Pod]) -> str:
        """Submit a workload and cancel it at once, to record it. Returns the job's public id. Raises InputError."""
        self.submit(workload, [], waiting)
        job = workload.job
        self.end(workload)
        return public_id(job)

    def _slot_of(self, member: Member) -> Slot:
        """Return the slot of a bound pod, with the GPUs that it is known to hold."""
        pod, devices = member.pod, self.translation.holdings(member.pod)[0][1]
        return Slot(pod.spec.node_name, member.demand, pod.metadata.uid, True, devices=devices, group=member.group)

    def adopt(
        self, workload: Workload, bound: list[Pod], floor: int = 0, tasks: Tasks = (), known: bool = True
    ) -> None:
        """Make the bound pods a running job on their nodes, whatever they request. `floor`: minimum pods (0: all).

        While its group is not `known`, the job is not preempted: it may turn out that the job can shrink instead.
        """
        first = starting_pods(tasks, (), bound, floor) if 0 < floor < len(bound) else bound
        chosen = {pod.metadata.uid for pod in first}
        bound = [*first, *(pod for pod in bound if pod.metadata.uid not in chosen)]
        workload.unread = False
        if self.existing_pods.adopt(workload, bound, len(first), known):
            workload.least = len(first)
            workload.adopted = True
            self.by_job[workload.job] = workload
            self.unprotected[workload] = None

    # --- starting -------------------------------------------------------------------------------------------------

    def start(self, workload: Workload, allocation: Allocation, held: Allocation | None = None) -> None:
        """Carry out a start that the core decided: give the pods slots. `held`: the allocation of pods bound before."""
        core = self.core
        kept = workload.slots if held is not None else []
        rest = allocation if held is None else _without(allocation, held)
        filled = {slot.pod for slot in kept}
        members = [member for member in workload.members if member.pod.metadata.uid not in filled]
        row = core.state.rows[workload.job]
        elastic = bool(core.state.shape_of(row).ceiling)
        slots = [*kept, *slots_of(rest, members, self.node_names, core.state.live[row], elastic)]
        core.happen(JobStarted(core.now, workload.job, allocation))
        workload.reason = ""
        why = self.check(workload, slots)
        if why:
            elsewhere = self.filters.is_excluded(self._to_bind(slots))
            core.happen(JobRefused(core.now, workload.job, why, elsewhere))
            if not elsewhere:
                self.messages.say(workload, why, UNSCHEDULABLE)
            return
        filled = {slot.pod for slot in slots}
        left = (one for one in members if one.pod.metadata.uid not in filled)
        further = [member for member in left if not is_stand_in(member.pod)]
        workload.slots, workload.members, workload.phase = slots, further, Phase.PLACED
        self.placed(workload, slots)
        self.time_partial(workload)

    def placed(self, workload: Workload, slots: list[Slot]) -> None:
        """Note that the pods of these slots are to be bound."""
        pods = self.mirror.pods
        for slot in slots:
            if not slot.bound:
                self.filters.promises.promise(slot.node, slot.pod)
                self.changed[slot.pod, slot.node] = None
                if workload.group is not None and slot.pod in pods:
                    slot.was, slot.since = identity(pods[slot.pod]), -1.0  # the pod may go before its binding is seen
        self._plan_devices(workload, slots)
        self.filters.promise_volumes(self._to_bind(slots))
        self.unbound[workload] = None
        self.unprotected[workload] = None
        self.to_bind.append(workload)

    def _plan_devices(self, workload: Workload, slots: list[Slot]) -> None:
        """Plan the devices for the claims of a workload's pods. `check` has found that there are enough."""
        claiming = [(node, pod) for node, pod in self._to_bind(slots) if pod.spec.resource_claims]
        if claiming:
            allocations, leaving = self.translation.devices.allocations, self.filters.promises.leaving
            allocations.expect(workload)
            allocations.promise(claiming, {uid for node, _ in claiming for uid in leaving.get(node, ())})

    def slots_of(self, workload: Workload, allocation: Allocation) -> list[Slot]:
        """Return slots for the first waiting pods of a workload, on the nodes of an allocation of its job."""
        state = self.core.state
        job = state.live[state.rows[workload.job]]
        return slots_of(allocation, workload.members, self.node_names, job, partly=True)

    def fits_nowhere(self, workload: Workload) -> None:
        """Note a single pod that the core cannot place in `nowhere`, if node filters keep the pod from nodes."""
        if self.core.scheduler.profile.preemption is None or len(workload.members) != 1 or workload.slots:
            return
        pod = workload.members[0].pod
        if self.filters.requirements(pod):
            self.nowhere[workload] = pod.metadata.uid

    def kept_by_filters(self, workload: Workload) -> str:
        """Return one sentence on the filters that keep a single pod from nodes with enough capacity; "" for none."""
        if len(workload.members) != 1:
            return ""
        pod, filters = workload.members[0].pod, self.filters
        able = [node for node in filters.failing if filters.holds(node, pod)]
        return filters.why_nowhere(pod, self.translation.eligible.accepting(pod, able))

    def why_not(self, job: str, allocation: Allocation, victims: Sequence[Slot]) -> str:
        """Return why a job could not start even if the pods in the slots `victims` were gone; "" if it could."""
        workload = self.by_job[job]
        return self.check(workload, self.slots_of(workload, allocation), {slot.pod for slot in victims})

    def check(self, workload: Workload, slots: list[Slot], going: Collection[str] = ()) -> str:
        """Return why node filters forbid the pods in these slots; "" if they do not. Pods in `going` are ignored."""
        filters, placed = self.filters, self._to_bind(slots)
        placed += [(slot.node, slot.expects) for slot in slots if slot.expects is not None and not slot.pod]
        why = filters.check(placed, going)
        if why:
            filters.outdated = True
            self.refused[workload] = None
            if filters.among_themselves(placed):
                filters.apart.add(workload.key)
        return why

    def may_run_on(self, node: str, pod: Pod) -> bool:
        """Whether a pod may run on a node by its constraints on nodes and by the node filters."""
        admits = node not in self.closed and self.translation.eligible.admits(pod, node)
        return admits and not self.filters.check([(node, pod)])

    def _to_bind(self, slots: list[Slot]) -> list[tuple[str, Pod]]:
        return [(slot.node, pod) for slot, pod in coming(slots, self.mirror.pods)]

    def started_elsewhere(self, workload: Workload) -> bool:
        """Note a start if another scheduler has bound all pods of a workload. Returns whether it has."""
        pods = [self.mirror.pods.get(member.pod.metadata.uid) for member in workload.members]
        workload.slots = [
            self._slot_of(replace(member, pod=pod))
            for pod, member in zip(pods, workload.members, strict=True)
            if pod is not None and pod.spec.node_name
        ]
        held = self.existing_pods.held(workload) if len(workload.slots) == len(pods) else None
        if held is None:
            workload.slots = []
            return False
        self.core.happen(JobStarted(self.core.now, workload.job, held))
        workload.members, workload.phase, workload.whole = [], Phase.PLACED, True
        self.unprotected[workload] = None
        return True

    def time_partial(self, workload: Workload) -> None:
        """Note the time if the workload is now partially bound, or the end of that time if it is now complete."""
        if workload.is_bound:
            if not workload.whole:
                seconds = self.core.clock() - workload.partial if workload.partial >= 0 else 0.0
                self.completed.append((workload, seconds))
            workload.partial, workload.whole = -1.0, True
        elif any(slot.bound or slot.done for slot in workload.slots) and workload.partial < 0:
            workload.partial = self.core.clock()
            self.partial[workload] = None

    def count_again(self, slots: Iterable[Slot]) -> None:
        """Note that the pods of these slots must be counted again on their nodes."""
        self.changed.update(dict.fromkeys((slot.pod, slot.node) for slot in slots if slot.pod))

    def count_promised(self) -> None:
        """Update `promises`: for each node, the pods to be bound to it, or bound but not shown so by the watch yet."""
        promises = self.filters.promises
        promises.promised.clear()
        unheard = self.mirror.bound_here
        for workload in list(self.unbound):
            nodes = [s.node for s in workload.slots if not s.done and (not s.bound or s.pod in unheard)]
            if workload.phase is not Phase.PLACED or not nodes:
                del self.unbound[workload]
            for slot in workload.slots if nodes else ():
                if slot.pod and not slot.done:
                    promises.promise(slot.node, slot.pod)

    # --- waiting again, or ending ---------------------------------------------------------------------------------

    def requeue(self, workload: Workload, why: str, blameless: bool) -> None:
        """Let a workload that could not be bound wait again. `blameless`: it may be placed elsewhere at once."""
        pods = self.mirror.pods
        self.core.happen(JobRefused(self.core.now, workload.job, why, blameless))
        meant = ((slot, pods.get(slot.pod) or slot.expects) for slot in workload.slots)
        placed = [Member(pod, slot.demand, slot.group) for slot, pod in meant if pod is not None]
        workload.members = [*placed, *workload.members]
        self.count_again(workload.slots)
        give_up(workload.slots)
        workload.slots, workload.after = [], frozenset()
        self.waits(workload)

    def end(self, workload: Workload, kind: type[JobCancelled] | type[JobFinished] = JobCancelled) -> None:
        """End the job of a workload: cancelled, or with JobFinished as `kind` finished."""
        self.existing_pods.freed(slot.node for slot in workload.slots)
        self.count_again(workload.slots)
        if workload.job and workload.phase is not Phase.REJECTED:
            self.core.happen(kind(self.core.now, workload.job))
        self.forget(workload)
        workload.partial, workload.whole, workload.lacking, workload.refused = -1.0, False, 0, ""
        workload.floor, workload.ended, workload.kinds = 0, 0, []
        workload.after, workload.unread = frozenset(), False

    def drop(self, workload: Workload) -> None:
        """Forget a workload without pods."""
        for those in (self.vacated, self._unplaced, self.messages.growing):
            those.pop(workload, None)

    def forget(self, workload: Workload) -> None:
        """Forget the job of a workload, which the core has already ended."""
        self.by_job.pop(workload.job, None)
        workload.job, workload.phase, workload.members, workload.slots = "", Phase.INCOMPLETE, [], []


def _without(allocation: Allocation, held: Allocation) -> Allocation:
    left = allocation.tolist()
    for piece in held[:, :COUNTED].tolist():  # only rows from the core have the columns of pod classes
        left.remove(next(one for one in left if one[:COUNTED] == piece))
    return table_of(left)
