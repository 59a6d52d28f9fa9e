"""Workloads: the pods of the API server as jobs of the core.

A workload is the unit of scheduling: a gang, or a single pod. `settle` compares one in the mirror with what the core
knows of it, and emits the difference as events. It is level-triggered: settling twice, late, or after missed changes
leads to equal states. A restart settles everything, from nothing.

A gang is as many pods as its group cannot do without, the first by name. Further pods, and those that replace a failed
pod, take the slot of a failed pod where there is one; else they are jobs of one pod.

Long: `settle` and the few questions that it asks of what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from operator import itemgetter

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import MOVABLE
from kant.kube.objects.refusals import MalformedError, NoMatchingNodeError, NotYetError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.affected import Affected
from kant.kube.reconcile.changing_sets import ChangingSets
from kant.kube.reconcile.elastic_gangs import AnewError, ElasticGangs
from kant.kube.reconcile.elastic_jobs import has_been_scaled, identity
from kant.kube.reconcile.existing_pods import ExistingPods
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.messages import ERROR, QUEUED, UNSCHEDULABLE
from kant.kube.reconcile.node_preemption import NodePreemption
from kant.kube.reconcile.partially_bound import PartiallyBound
from kant.kube.reconcile.regrouping import Regrouping
from kant.kube.reconcile.rule_changes import RuleChanges
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.tasks import lacking_task, starting_pods
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase, Workload, maker, waits
from kant.kube.translate.group_specs import GroupSpec
from kant.kube.translate.groups import ORDERED, GroupRef
from kant.kube.translate.orders import is_held, ordered
from kant.kube.translate.parts import stands_in
from kant.kube.translate.pods import ranked
from kant.live.core import Core
from kant.model.errors import InputError, StateError
from kant.model.event import JobCancelled, JobFinished

HELD = "it is held until somebody releases it"
ALONE = GroupSpec(1)
PROTECTED = 30.0  # seconds without another eviction of what a disruption budget protects


@dataclass(eq=False)
class Workloads:
    """All workloads of one state.

    `awaited` are groups whose objects have to be read.
    """

    core: Core
    mirror: Mirror
    translation: Translation
    leaving: dict[str, dict[str, None]] = field(default_factory=dict)
    in_flight: Collection[str] = ()

    def __post_init__(self) -> None:
        core, mirror, translation = self.core, self.mirror, self.translation
        self.existing_pods = ExistingPods(core, translation, self.leaving)
        self.members = Membership(mirror, translation)
        self.transitions = Transitions(core, mirror, translation, self.existing_pods, self.in_flight)
        self.messages = self.transitions.messages
        self.by_job = self.transitions.by_job
        self.partially_bound = PartiallyBound(self.transitions)
        self.elastic = ElasticGangs(self.transitions)
        self.changing_sets = ChangingSets(self.transitions, self.elastic, self.members)
        self.node_preemption = NodePreemption(self.transitions)
        self.rule_changes = RuleChanges(self.transitions, self.members)
        self.affected = Affected(self.transitions, self.members)
        self.regrouping = Regrouping(self.transitions, self.members)
        self.awaited: dict[GroupRef, None] = {}
        self.recall: Callable[[set[str]], None] = lambda nodes: None  # takes back unsent bindings to nodes
        self.recount: Callable[[Iterable[str]], None] = lambda nodes: None  # counts again what nodes have
        self._protected: dict[Workload, None] = {}
        self._unread: dict[Workload, None] = {}  # gangs of which some pods were bound before their group was read
        self._unsized: dict[str, None] = {}  # gangs to settle again once the state is complete

    # --- all workloads --------------------------------------------------------------------------------------------

    def settle_all(self, keys: dict[str, None]) -> None:
        """Settle these workloads: first those that hold something, so that it is known what is free.

        The others follow by the age of their oldest pod, which the API server gives in whole seconds, then in order of
        arrival.
        """
        waiting: list[tuple[str, str]] = []
        for key in keys:
            pods = self.members.pods(key)
            if any(pod.spec.node_name for pod in pods) or not pods:
                self.settle(key)
            else:
                waiting.append((min(pod.metadata.creation_timestamp for pod in pods), key))
        if self.core.is_settled:
            self.partially_bound.complete_all()
            self.has_more(())
            overrun, self.existing_pods.overrun = self.existing_pods.overrun, {}
            self.withdraw(overrun)
        for _, key in sorted(waiting, key=itemgetter(0)):
            self.settle(key)
        if not self.core.is_settled:
            self.existing_pods.built()
            for job, why in self.core.settled().items():
                workload = self.by_job.get(job)
                if workload is not None:  # else it is held
                    self.transitions.forget(workload)
                    self.messages.say(workload, why)
            unsized, self._unsized = self._unsized, {}
            for key in unsized:
                self.settle(key)
        for key in self.rule_changes.take():
            self.settle(key)
        self.partially_bound.complete_all()

    def movable(self) -> frozenset[str]:
        """Return the running jobs of which all pods say that they may be moved."""
        pods = self.mirror.pods
        return frozenset(
            job
            for job, workload in self.by_job.items()
            if workload.slots
            and all(slot.bound and slot.pod in pods and _may_be_moved(pods[slot.pod]) for slot in workload.slots)
        )

    def outside(self) -> dict[str, tuple[str, str]]:
        """Return the held jobs, which wait and are unknown to the core, each with its phase and the reason."""
        return {workload.held: ("held", HELD) for workload in self.members.by_key.values() if workload.held}

    def has_more(self, nodes: Iterable[str]) -> None:
        """Let pods that hold less than they ask for take what may have come free on these nodes."""
        existing, by_key = self.existing_pods, self.members.by_key
        existing.freed(nodes)
        again, existing.again = existing.again, {}
        for key in again:
            workload = by_key.get(key)
            if workload is not None and workload.phase is Phase.PLACED and all(slot.bound for slot in workload.slots):
                self.transitions.end(workload)
                self.settle(key)
        existing.again, left = {}, existing.again  # they returned capacity and took it again
        for workload in [by_key[key] for key in left if key in by_key]:
            for slot in workload.slots:
                existing.short.setdefault(slot.node, {})[workload.key] = None

    def withdraw(self, nodes: Iterable[str]) -> None:
        """Give up unbound places on these nodes: other pods have taken them, or the nodes are gone."""
        gone = set(nodes)
        self.recall(gone)
        for workload in list(self.transitions.unbound) if gone else ():
            if workload.phase is not Phase.PLACED or self.transitions.is_in_flight(workload):
                continue
            if any(slot.node in gone and slot.pod and not slot.bound for slot in workload.slots):
                self.refused(workload, "its node was taken by somebody else", blameless=True)
        self.has_more(gone)

    def follow_sets(self) -> dict[str, None]:
        """Handle changed node sets: give up places where pods may not run any more. Returns the keys of workloads to
        re-create."""
        again = self.changing_sets.take()
        self.withdraw(self.changing_sets.take_left())
        return again

    def retry_partially_bound(self) -> None:
        """Try again to place the rest of partial gangs, where capacity has come free."""
        for workload in self.partially_bound.to_retry():
            since, reason = workload.partial, workload.reason
            self.transitions.end(workload)
            self._begin(workload, self._live(workload.key))
            workload.partial, workload.reason = since, reason
            self.partially_bound.complete_all()

    # --- one workload ---------------------------------------------------------------------------------------------

    def settle(self, key: str) -> None:
        """Emit how a workload differs from what the core knows of it, as events."""
        workload = self.members.by_key.get(key)
        if workload is None:
            return
        self.members.drop_deleted(key)
        live = self._live(key)
        if workload.phase is Phase.LEAVING:
            if any(pod.spec.node_name for pod in live):
                return
            self.transitions.end(workload)
        elif workload.phase is Phase.PLACED:
            awaits = workload.unread or self.partially_bound.awaits_group(workload)
            if awaits and self._is_read(workload):
                self.transitions.end(workload)
            else:
                self._follow(workload, live)
                if workload.job:
                    return
        elif workload.phase in (Phase.WAITING, Phase.REJECTED):
            waiting = {pod.metadata.uid: ordered(pod) for pod in live if waits(pod)}
            made = (member.pod for member in workload.members if not stands_in(member.pod))
            same = all(waiting.get(pod.metadata.uid) == ordered(pod) for pod in made)
            if same and not self.members.take_change(key):
                return
            if workload.phase is Phase.WAITING and self.transitions.started_elsewhere(workload):
                return
            self.transitions.end(workload)
        self._begin(workload, live)

    def _live(self, key: str) -> list[Pod]:
        return [pod for pod in self.members.pods(key) if not is_over(pod)]

    # --- a workload without a job ---------------------------------------------------------------------------------

    def _begin(self, workload: Workload, live: list[Pod]) -> None:
        """Make a workload without a job a job, if possible."""
        self.changing_sets.nowhere.pop(workload, None)
        leaving = self.existing_pods.leaving
        bound = [p for p in live if p.spec.node_name and p.metadata.uid not in leaving.get(p.spec.node_name, ())]
        waiting = ranked([pod for pod in live if waits(pod)]) if not workload.foreign else []
        if not any(map(is_held, waiting)):
            workload.held = ""
        if not bound and not waiting:
            self.regrouping.drop(workload)
            return
        try:
            spec = self._spec(workload)
            if spec is None:
                self._await_group(workload, bound, waiting)
                return
            if (spec.parent or spec.gangs) and (moved := self.regrouping.regroup(workload, spec)):
                if isinstance(moved, GroupRef):
                    self.awaited[moved] = None
                    self._await_group(workload, bound, waiting)
                else:
                    for key in moved:
                        self.settle(key)
                return
            least = spec.least
            if spec.later:
                least -= sum(pod.status.phase == "Succeeded" for pod in self.members.pods(workload.key))
                waiting += self.regrouping.expected(workload, spec.later, [*bound, *waiting])
            elif least > 1:
                least -= self._done(workload, waiting, least)
            if least <= 0:
                for pod in [*bound, *waiting]:
                    self._split_off(pod)
            else:
                self._begin_gang(workload, bound, waiting, least, spec)
        except (InputError, StateError) as wrong:
            if bound and workload.phase is Phase.INCOMPLETE:
                self.transitions.adopt(workload, bound)
            self.messages.say(workload, str(wrong), _reason_of(wrong))
            if isinstance(wrong, NoMatchingNodeError):
                self.changing_sets.nowhere[workload] = wrong.node_sets
                if len(waiting) == 1 and not bound:
                    self.transitions.nowhere[workload] = waiting[0].metadata.uid

    def _begin_gang(
        self, workload: Workload, bound: list[Pod], waiting: list[Pod], least: int, spec: GroupSpec
    ) -> None:
        """Make a gang a job if enough pods exist: at least `least` have to run."""
        free = [pod for pod in waiting if self.translation.is_free(pod)]
        lacking = least - len(bound)
        there = [*bound, *(pod for pod in self.members.pods(workload.key) if pod.status.phase == "Succeeded")]
        tasks = spec.tasks
        made = [pod for pod in waiting if not stands_in(pod)]
        if bound and lacking > 0 and has_been_scaled(workload.group, bound, made):
            least, lacking = len(bound), 0
        if bound and (lacking <= 0 or len(free) < lacking):
            floor = least if not lacking_task(tasks, bound) else 0
            self.transitions.adopt(workload, ranked(bound), floor, tasks)
            self._follow(workload, [*bound, *waiting])
        elif len(free) < lacking <= len(waiting) and any(map(is_held, waiting)):
            self._withhold(workload, waiting[:lacking])
        elif len(free) < lacking <= len(waiting):
            self.messages.say(workload, "a scheduling gate of somebody else holds it", QUEUED)
        elif len(free) < lacking:
            self.messages.say_when_still(workload, f"{len(made)} of the {least} pods of its gang exist")
        elif short := lacking_task(tasks, [*there, *free]):
            self.messages.say_when_still(workload, f"{short} of its gang exist")
        else:
            first = starting_pods(tasks, there, free, lacking)
            self._submit(workload, bound, first, free, len(first) > 1 or _grows_from_one(workload, spec))
            if bound:
                self.partially_bound.to_complete.append(workload)

    def _withhold(self, workload: Workload, waiting: list[Pod]) -> None:
        """Register a held gang by its public id, without a job."""
        workload.held = workload.held or self.transitions.withhold(workload, waiting)
        self.messages.say(workload, HELD, QUEUED)

    def _submit(self, workload: Workload, bound: list[Pod], first: list[Pod], free: list[Pod], grows: bool) -> None:
        """Submit a gang with its first pods, and with further ones where it `grows` and they are valid."""
        own = {pod.metadata.uid for pod in first}
        others = (pod for pod in free if pod.metadata.uid not in own and not stands_in(pod))
        more = list(others) if grows and not bound else []
        if more:
            try:
                self.transitions.submit(workload, [], first, more)
                return
            except InputError:
                pass  # an invalid further pod does not affect the first ones
        self.transitions.submit(workload, bound, first)

    def _await_group(self, workload: Workload, bound: list[Pod], waiting: list[Pod]) -> None:
        """Handle a gang whose group has not been read: bound pods count already, and waiting pods stay with it."""
        if bound:
            self.transitions.adopt(workload, bound, known=False)
            if workload.phase is Phase.PLACED:
                workload.unread = True
                self._unread[workload] = None
                workload.lacking, workload.whole = len(waiting), not waiting

    def may_lack_places(self) -> bool:
        """Whether some gang has bound pods while it has not been read yet whether further pods are to come."""
        self._unread = {one: None for one in self._unread if one.unread and one.phase is Phase.PLACED}
        return any(one.lacking or (one.group and one.group.source in ORDERED) for one in self._unread)

    def _is_read(self, workload: Workload) -> bool:
        """Whether the group of a workload has been read, even if it is malformed."""
        try:
            return self._spec(workload) is not None
        except InputError:
            return True

    def _spec(self, workload: Workload) -> GroupSpec | None:
        """Return what the group of a workload says; None while that has not been read. Raises InputError."""
        if workload.wrong:
            raise MalformedError(workload.wrong)
        if workload.group is None or workload.foreign:
            return ALONE
        spec = self.translation.group_spec(workload.group)
        if spec is None:
            self.awaited[workload.group] = None
        return spec

    def _done(self, workload: Workload, waiting: list[Pod], least: int) -> int:
        """Return how many pods of a gang have succeeded already, by which its need is reduced.

        Returns 0 where all that it needs have succeeded: pods that arrive then belong to another run, as do pods of
        another controller.
        """
        pods, makers = self.members.pods(workload.key), {maker(pod) for pod in waiting}
        if makers == {""} and any(pod.status.phase == "Failed" for pod in pods):
            return 0
        done = sum(pod.status.phase == "Succeeded" and maker(pod) in makers for pod in pods)
        return done if done < least else 0

    def _split_off(self, pod: Pod) -> None:
        self.settle(self.members.split_off(pod.metadata.uid))

    # --- a running workload ---------------------------------------------------------------------------------------

    def _follow(self, workload: Workload, live: list[Pod]) -> None:
        """Take in changes to the pods of a placed workload, and give the slots of deleted pods to new ones."""
        if workload.phase is not Phase.PLACED:
            return
        misplaced = bool([slot for slot in workload.slots if self._note_pod(slot)])
        if not all(slot.bound for slot in workload.slots):
            self.transitions.vacated[workload] = None
        if all(not slot.pod for slot in workload.slots):
            finished = any(slot.done for slot in workload.slots)
            self.transitions.end(workload, JobFinished if finished else JobCancelled)
            return
        self.transitions.time_partial(workload)  # the watch may be faster than the answers to our bindings
        filled = {slot.pod for slot in workload.slots}
        coming = [p for p in live if waits(p) and p.metadata.uid not in filled]
        anew = self.regrouping.is_unexpected(workload, coming) and not self.transitions.is_in_flight(workload)
        if not anew and self._resize(workload, live):
            return
        newcomers = ranked([p for p in coming if self.translation.devices.requests.are_made(p)])
        if anew or self._is_to_be_planned(workload, newcomers):
            self.transitions.end(workload)
            self._begin(workload, live)
            return
        misplaced = self._fill(workload, newcomers) or misplaced
        self.transitions.time_partial(workload)
        if misplaced and not self.transitions.is_in_flight(workload):  # else once the last answer has arrived
            self.partially_bound.complete(workload)

    def _resize(self, workload: Workload, live: list[Pod]) -> bool:
        """Take in new and deleted pods of a gang that may have more or fewer. Returns False where it may not."""
        if workload.group is None or workload.foreign or workload.lacking or not workload.whole:
            return False
        try:
            spec = self._spec(workload)
            if spec is None or not (spec.least > 1 or _grows_from_one(workload, spec)):
                return False
            if not self.core.is_settled:
                self._unsized[workload.key] = None
                return True
            if not self.elastic.applies(workload):
                return False
            if not self.transitions.is_in_flight(workload):
                self._look_up_again(workload, live)
                for pod in self.elastic.follow(workload, live, spec.least, spec.tasks, spec.together):
                    self._split_off(pod)
                self.transitions.time_partial(workload)
            else:
                self.affected.unanswered[workload.key] = None
        except InputError:
            return False
        except AnewError:
            self.transitions.end(workload)
            self._begin(workload, live)
        return True

    def _look_up_again(self, workload: Workload, live: list[Pod]) -> None:
        """Have its group read again: whatever makes or deletes its pods may have changed the group as well."""
        pods = frozenset(pod.metadata.uid for pod in live)
        if workload.group is not None and workload.group.paths and workload.asked not in (pods, frozenset()):
            self.awaited[workload.group] = None
        workload.asked = pods

    def _note_pod(self, slot: Slot) -> bool:
        """Update a slot from its pod. Returns True where the pod is, or is to be, on a wrong node."""
        pod = self.mirror.pods.get(slot.pod) if slot.pod else None
        if pod is None or (not pod.spec.node_name and pod.metadata.deletion_timestamp is not None):
            slot.pod, slot.bound = "", False
        elif is_over(pod):
            slot.done = slot.done or pod.status.phase == "Succeeded"
            slot.pod, slot.bound = "", False
        elif pod.spec.node_name:
            slot.bound, slot.was, slot.since, slot.expects = True, identity(pod), -1.0, None
            return pod.spec.node_name != slot.node
        elif not slot.bound:
            return slot.node in self.transitions.closed
        return False

    def _is_to_be_planned(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Whether pods have arrived for all vacant slots of a gang whose job does not state what they demand of nodes.

        Such a gang is submitted again, so that its new pods obey all rules of a first placement.
        """
        vacant = sum(slot.vacant for slot in workload.slots)
        able = sum(self.translation.is_free(pod) for pod in newcomers)
        return workload.adopted and not workload.lacking and 0 < vacant <= able

    def _fill(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Give vacant slots to later pods, or make them workloads of their own. Returns whether a slot is invalid."""
        lost = False
        if workload.lacking or (workload.adopted and any(slot.vacant for slot in workload.slots)):
            return False  # they may be the missing pods
        for pod in newcomers:
            vacant = self._alike(workload, pod)
            slot = next((s for s in vacant if s.was == identity(pod)), vacant[0] if vacant else None)
            if slot is not None:
                slot.pod, slot.was = pod.metadata.uid, identity(pod)
                lost = lost or slot.node in self.transitions.closed
                lost = lost or not self.translation.admits(pod, slot.node)
                lost = lost or bool(self.translation.filters.check([(slot.node, pod)]))
                self.transitions.unbound[workload] = None
                self.transitions.crowded[slot.node] = None
                if workload not in self.transitions.to_bind:
                    self.transitions.to_bind.append(workload)
            elif workload.whole and self._is_read(workload):
                self._split_off(pod)
            elif workload.whole or workload.lacking:
                workload.whole, workload.lacking = False, workload.lacking + 1
        return lost

    def _alike(self, workload: Workload, pod: Pod) -> list[Slot]:
        """Return the vacant slots of pods that had the same requests and rules as this one."""
        try:
            kind = self.translation.demand(pod), self.translation.rules_there(pod, workload.foreign)
        except InputError:
            return []
        kinds = workload.kinds
        vacant = [slot for slot in workload.slots if slot.vacant and slot.demand == kind[0]]
        return [slot for slot in vacant if kinds[slot.group].rules == kind[1]]

    def refused(self, workload: Workload, why: str, blameless: bool = False) -> None:
        """Handle the final refusal of a binding: all of the placed workload waits again, is completed or evicted.

        This waits until every binding of it has been answered, since a sent one may still be carried out. `blameless`:
        it may be placed elsewhere at once.
        """
        if workload.phase is not Phase.PLACED:
            return
        if self.transitions.is_in_flight(workload):
            workload.refused, workload.blameless = why, blameless
            return
        workload.refused = ""
        if workload.floor and any(slot.bound for slot in workload.slots):
            self._refused_in_part(workload)
        elif any(slot.bound for slot in workload.slots):
            nodes = [slot.node for slot in workload.slots]
            self.partially_bound.complete(workload, blameless)
            self.recount(nodes)  # it is not to get lost devices again
            self.partially_bound.complete_all()
        else:
            self.transitions.requeue(workload, why, blameless)

    def _refused_in_part(self, workload: Workload) -> None:
        """Handle refused bindings of an elastic gang: the pods wait to join, or it becomes a partial gang."""
        self.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
        nodes = [slot.node for slot in workload.slots]
        for slot in workload.slots:
            if not slot.bound:
                slot.pod = slot.was = ""
        live = self._live(workload.key)
        if workload.is_bound and workload.whole:
            self._follow(workload, live)
        else:
            self.transitions.end(workload)
            self._begin(workload, live)
        self.recount(nodes)  # it is not to get lost devices again
        self.partially_bound.complete_all()

    # --- a workload that was to be evicted ------------------------------------------------------------------------

    def stays(self, workload: Workload, protect: bool) -> None:
        """Handle a refused eviction: the workload stays. `protect`: it is not preempted again for a while."""
        if workload.phase is Phase.PLACED and workload.job:  # it was to shrink, and still has all of its pods
            self.transitions.end(workload)
            self._protect(workload, protect)
            self._begin(workload, self._live(workload.key))
            return
        if workload.job:  # a partial gang, which is counted until it is gone
            self.partially_bound.keep_refused(workload)
            return
        workload.phase = Phase.INCOMPLETE
        self._protect(workload, protect)

    def _protect(self, workload: Workload, protect: bool) -> None:
        if protect:
            workload.protected_until = self.core.clock() + PROTECTED
            self._protected[workload] = None

    def look_at_protected(self) -> None:
        """Let workloads be preempted again whose eviction was refused long ago."""
        for workload in [one for one in self._protected if one.protected_until <= self.core.clock()]:
            del self._protected[workload]
            self.transitions.unprotected[workload] = None


def _grows_from_one(workload: Workload, spec: GroupSpec) -> bool:
    """Whether one pod has to run, and the object of its group says that others may join it."""
    return spec.least == 1 and bool(spec.tasks) and not (workload.group is not None and workload.group.least)


def _reason_of(wrong: Exception) -> str:
    if isinstance(wrong, NoMatchingNodeError):
        return UNSCHEDULABLE
    return QUEUED if isinstance(wrong, NotYetError) else ERROR


def _may_be_moved(pod: Pod) -> bool:
    meta = pod.metadata
    return "true" in ((meta.labels or {}).get(MOVABLE), (meta.annotations or {}).get(MOVABLE))
