"""Workloads: the pods of the API server as jobs of the core.

A workload is the unit of scheduling: a gang, or a single pod. `settle` compares a workload in the mirror with its state
in the core, and emits the difference as events. It may be called twice, late, or after missed changes, with the same
result. A restart settles all workloads from an empty state. `placed_workloads` handles placed workloads, `lost_places`
handles placements that fail.

A gang starts with the minimum number of pods of its group, the first by name. A later pod takes the slot of a failed
pod, if there is one, or joins an elastic gang; otherwise it is a job of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.names import MOVABLE
from kant.kube.objects.refusals import NoMatchingNodeError, NotYetError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.affected import Affected
from kant.kube.reconcile.changing_sets import ChangingSets
from kant.kube.reconcile.elastic_gangs import ElasticGangs
from kant.kube.reconcile.elastic_jobs import has_been_scaled
from kant.kube.reconcile.existing_pods import ExistingPods
from kant.kube.reconcile.group_reading import GroupReading
from kant.kube.reconcile.lost_places import LostPlaces
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.messages import ERROR, QUEUED, UNSCHEDULABLE
from kant.kube.reconcile.partially_bound import PartiallyBound
from kant.kube.reconcile.placed_workloads import PlacedWorkloads, grows_from_one
from kant.kube.reconcile.rule_changes import RuleChanges
from kant.kube.reconcile.tasks import lacking_task, starting_pods
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase, Workload, waits
from kant.kube.translate.group_spec import GroupSpec, is_stand_in
from kant.kube.translate.groups import GroupRef
from kant.kube.translate.orders import is_held, ordered
from kant.kube.translate.pods import ranked
from kant.live.core import Core
from kant.model.errors import InputError, StateError

if TYPE_CHECKING:
    from kant.kube.reconcile.regrouping import Regrouping

HELD = "it is held until a user releases it"


@dataclass(eq=False)
class Workloads:
    """All workloads of one state."""

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
        self.rule_changes = RuleChanges(self.transitions, self.members)
        self.affected = Affected(self.transitions, self.members)
        self.reading = GroupReading(self.transitions)
        self.placed = PlacedWorkloads(
            self.reading, self.elastic, self.partially_bound, self.affected, self._begin, self._split_off
        )
        self.lost_places = LostPlaces(
            self.transitions, self.members, self.partially_bound, self._begin, self.placed.follow, self.settle
        )

    @cached_property
    def regrouping(self) -> Regrouping:
        """Moves pods that start with other groups, or as several gangs; imported with the first such pod."""
        from kant.kube.reconcile.regrouping import Regrouping

        return Regrouping(self.transitions, self.members)

    # --- all workloads --------------------------------------------------------------------------------------------

    def settle_all(self, keys: dict[str, None]) -> None:
        """Settle these workloads. Those with bound pods come first, so that the free capacity is known.

        The others follow by the age of their oldest pod, in whole seconds, then in order of arrival.
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
            self.lost_places.has_more(())
            overrun, self.existing_pods.overrun = self.existing_pods.overrun, {}
            self.lost_places.withdraw(overrun)
        for _, key in sorted(waiting, key=itemgetter(0)):
            self.settle(key)
        if not self.core.is_settled:
            self.existing_pods.free = None
            for job, why in self.core.settled().items():
                workload = self.by_job.get(job)
                if workload is not None:  # None: the job is held
                    self.transitions.forget(workload)
                    self.messages.say(workload, why)
            unsized, self.placed.unsized = self.placed.unsized, {}
            for key in unsized:
                self.settle(key)
        for key in self.rule_changes.take():
            self.settle(key)
        self.partially_bound.complete_all()

    def movable(self) -> frozenset[str]:
        """Return the running jobs whose pods all have the annotation or label `movable`."""
        pods = self.mirror.pods
        return frozenset(
            job
            for job, workload in self.by_job.items()
            if workload.slots
            and all(slot.bound and slot.pod in pods and _may_be_moved(pods[slot.pod]) for slot in workload.slots)
        )

    def outside(self) -> dict[str, tuple[str, str]]:
        """Return the jobs that users hold, each with its phase and reason. The core does not know them."""
        return {workload.held: ("held", HELD) for workload in self.members.by_key.values() if workload.held}

    def follow_sets(self) -> dict[str, None]:
        """Handle changed node sets: give up placements that they exclude. Returns the keys of workloads to settle."""
        again = self.changing_sets.take()
        self.lost_places.withdraw(self.changing_sets.take_left())
        return again

    def look_at_filters(self) -> dict[str, None]:
        """Check again which nodes fail the filters of waiting pods, so that refused starts can use other nodes.

        Returns the keys of workloads to settle.
        """
        keys = self.affected.renew(self.translation.filters.look_again())
        refused, self.transitions.refused = self.transitions.refused, {}
        for workload in refused:
            if workload in self.partially_bound.tried:
                self.partially_bound.tried[workload] = -1  # so that its missing pods are tried again at once
            elif workload.phase is Phase.PLACED and workload.job:  # the gang could not grow
                self.elastic.name_sets(workload)
            else:
                keys |= self.affected.renew(self.members.pods_of.get(workload.key, ()))
        return keys

    # --- one workload ---------------------------------------------------------------------------------------------

    def settle(self, key: str) -> None:
        """Emit events for the differences between a workload in the mirror and its state in the core."""
        workload = self.members.by_key.get(key)
        if workload is None:
            return
        self.members.drop_deleted(key)
        live = self.members.live(key)
        if workload.phase is Phase.LEAVING:
            if any(pod.spec.node_name for pod in live):
                return
            self.transitions.end(workload)
        elif workload.phase is Phase.PLACED:
            awaits = workload.unread or self.partially_bound.awaits_group(workload)
            if awaits and self.reading.is_read(workload):
                self.transitions.end(workload)
            else:
                self.placed.follow(workload, live)
                if workload.job:
                    return
        elif workload.phase in (Phase.WAITING, Phase.REJECTED):
            waiting = {pod.metadata.uid: ordered(pod) for pod in live if waits(pod)}
            made = (member.pod for member in workload.members if not is_stand_in(member.pod))
            same = all(waiting.get(pod.metadata.uid) == ordered(pod) for pod in made)
            if same and not self.members.take_change(key):
                return
            if workload.phase is Phase.WAITING and self.transitions.started_elsewhere(workload):
                return
            self.transitions.end(workload)
        self._begin(workload, live)

    # --- a workload without a job ---------------------------------------------------------------------------------

    def _begin(self, workload: Workload, live: list[Pod]) -> None:
        """Submit or adopt a workload that has no job, if its pods and group allow this; otherwise report why not."""
        self.changing_sets.nowhere.pop(workload, None)
        leaving = self.existing_pods.leaving
        bound = [p for p in live if p.spec.node_name and p.metadata.uid not in leaving.get(p.spec.node_name, ())]
        waiting = ranked([pod for pod in live if waits(pod)]) if not workload.foreign else []
        if not any(map(is_held, waiting)):
            workload.held = ""
        if not bound and not waiting:
            self.transitions.drop(workload)
            self.members.drop_empty(workload.key)
            return
        try:
            spec = self.reading.spec(workload)
            if spec is None:
                self.reading.wait_for_group(workload, bound, waiting)
                return
            if (spec.parent or spec.gangs) and (moved := self.regrouping.regroup(workload, spec)):
                if isinstance(moved, GroupRef):
                    self.reading.awaited[moved] = None
                    self.reading.wait_for_group(workload, bound, waiting)
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
        """Submit or adopt a gang if `least` of its pods (the number that must run) exist and may start."""
        free = [pod for pod in waiting if self.translation.is_free(pod)]
        lacking = least - len(bound)
        there = [*bound, *(pod for pod in self.members.pods(workload.key) if pod.status.phase == "Succeeded")]
        tasks = spec.tasks
        made = [pod for pod in waiting if not is_stand_in(pod)]
        if bound and lacking > 0 and has_been_scaled(workload.group, bound, made):
            least, lacking = len(bound), 0
        if bound and (lacking <= 0 or len(free) < lacking):
            floor = least if not lacking_task(tasks, bound) else 0
            self.transitions.adopt(workload, ranked(bound), floor, tasks)
            self.placed.follow(workload, [*bound, *waiting])
        elif len(free) < lacking <= len(waiting) and any(map(is_held, waiting)):
            self._withhold(workload, waiting[:lacking])
        elif len(free) < lacking <= len(waiting):
            self.messages.say(workload, "a scheduling gate of another controller holds it", QUEUED)
        elif len(free) < lacking:
            self.messages.say_when_still(workload, f"{len(made)} of the {least} pods of its gang exist")
        elif short := lacking_task(tasks, [*there, *free]):
            self.messages.say_when_still(workload, f"its gang lacks pods: {short}")
        else:
            first = starting_pods(tasks, there, free, lacking)
            self._submit(workload, bound, first, free, len(first) > 1 or grows_from_one(workload, spec))
            if bound:
                self.partially_bound.to_complete.append(workload)

    def _withhold(self, workload: Workload, waiting: list[Pod]) -> None:
        """Give a gang that a user holds a public id. It has no job in the core."""
        workload.held = workload.held or self.transitions.withhold(workload, waiting)
        self.messages.say(workload, HELD, QUEUED)

    def _submit(self, workload: Workload, bound: list[Pod], first: list[Pod], free: list[Pod], grows: bool) -> None:
        """Submit a gang with its pods `first`; if it `grows`, also with its other `free` pods, if these are valid."""
        own = {pod.metadata.uid for pod in first}
        others = (pod for pod in free if pod.metadata.uid not in own and not is_stand_in(pod))
        more = list(others) if grows and not bound else []
        if more:
            try:
                self.transitions.submit(workload, [], first, more)
                return
            except InputError:
                pass  # an invalid further pod does not stop the first ones
        self.transitions.submit(workload, bound, first)

    def _done(self, workload: Workload, waiting: list[Pod], least: int) -> int:
        """Return how many pods of a gang have succeeded, which lowers the number that it still needs.

        Returns 0 if all needed pods have succeeded: then later pods belong to another run. Pods of another controller
        do, too.
        """
        pods, makers = self.members.pods(workload.key), {pod.metadata.controller.uid for pod in waiting}
        if makers == {""} and any(pod.status.phase == "Failed" for pod in pods):
            return 0
        done = sum(pod.status.phase == "Succeeded" and pod.metadata.controller.uid in makers for pod in pods)
        return done if done < least else 0

    def _split_off(self, pod: Pod) -> None:
        self.settle(self.members.split_off(pod.metadata.uid))


def _reason_of(wrong: Exception) -> str:
    if isinstance(wrong, NoMatchingNodeError):
        return UNSCHEDULABLE
    return QUEUED if isinstance(wrong, NotYetError) else ERROR


def _may_be_moved(pod: Pod) -> bool:
    meta = pod.metadata
    return "true" in ((meta.labels or {}).get(MOVABLE), (meta.annotations or {}).get(MOVABLE))
