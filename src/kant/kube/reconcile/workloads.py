"""Workloads: the pods of the API server as jobs of the core.

A workload is what is scheduled as one: a gang, or a pod that belongs to none. `settle` compares what the mirror says
about one with what the core knows, and says the difference as events. It looks at levels, not at edges: to settle
twice, late, or after changes were missed leads to equal states. A restart settles everything, starting from nothing.

A gang is as many pods as its group cannot do without, the first by name; further ones, and those that come for a pod
that ended badly, take the place of that pod where there is one, else they are jobs of one pod.

Long: `settle` and the few questions that it asks of what it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import MOVABLE
from kant.kube.objects.refusals import MalformedError, NoMatchingNodeError, NotYetError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.changing_sets import ChangingSets
from kant.kube.reconcile.composites import chain_of, needed
from kant.kube.reconcile.elastic_gangs import AnewError, ElasticGangs
from kant.kube.reconcile.elastic_jobs import has_been_scaled, identity
from kant.kube.reconcile.existing_pods import ExistingPods
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.messages import ERROR, QUEUED, UNSCHEDULABLE
from kant.kube.reconcile.node_preemption import NodePreemption
from kant.kube.reconcile.partially_bound import PartiallyBound
from kant.kube.reconcile.rule_changes import RuleChanges
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.tasks import Tasks, lacking_task, starting_pods
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase, Workload, maker, waits
from kant.kube.translate.annotations import names_reservation
from kant.kube.translate.group_specs import GroupSpec
from kant.kube.translate.groups import COMPOSITE, ORDERED, GroupRef, composite_of, part_of
from kant.kube.translate.orders import is_held, ordered
from kant.kube.translate.parts import Part, stand_ins, stands_in
from kant.kube.translate.pods import ranked
from kant.kube.translate.provisioning import consumed_by
from kant.live.core import Core
from kant.model.errors import InputError, StateError
from kant.model.event import JobCancelled, JobFinished

HELD = "it is held until somebody releases it"
PROTECTED = 30.0  # seconds for which nobody tries again to stop what a budget of disruptions protects


@dataclass(eq=False)
class Workloads:
    """All workloads of one state.

    `out_of_service` are nodes that take no pod now. `awaited` are objects of groups that somebody has to read.
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
        self.out_of_service: set[str] = set()
        self.awaited: dict[GroupRef, None] = {}
        self.recall: Callable[[set[str]], None] = lambda nodes: None  # bindings that have not been sent
        self.recount: Callable[[Iterable[str]], None] = lambda nodes: None  # what these nodes have
        self._protected: dict[Workload, None] = {}
        self._unread: dict[Workload, None] = {}  # gangs of which some pods were bound before their group was read
        self._unsized: dict[str, None] = {}  # gangs to be looked at again once the state is complete,
        self.unanswered: dict[str, None] = {}  # and those once their last binding has been answered

    # --- all of them ----------------------------------------------------------------------------------------------

    def settle_all(self, keys: dict[str, None]) -> None:
        """Settle these workloads: first those that hold something, so that it is known what is free.

        The others go by the age of their oldest pod, which the API server gives in whole seconds, then as they came.
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
                if workload is not None:  # else somebody holds it
                    self.transitions.forget(workload)
                    self.messages.say(workload, why)
            unsized, self._unsized = self._unsized, {}
            for key in unsized:
                self.settle(key)
        for key in self.rule_changes.take():
            self.settle(key)
        self.partially_bound.complete_all()

    def movable(self) -> frozenset[str]:
        """The jobs that run and all of whose pods say that they may be moved."""
        pods = self.mirror.pods
        return frozenset(
            job
            for job, workload in self.by_job.items()
            if workload.slots
            and all(slot.bound and slot.pod in pods and _may_be_moved(pods[slot.pod]) for slot in workload.slots)
        )

    def outside(self) -> dict[str, tuple[str, str]]:
        """The jobs that wait and are none of the core's, each with its phase and why: somebody holds it."""
        return {workload.held: ("held", HELD) for workload in self.members.by_key.values() if workload.held}

    def has_more(self, nodes: Iterable[str]) -> None:
        """These nodes may have more to give to the pods that are there."""
        existing, by_key = self.existing_pods, self.members.by_key
        existing.freed(nodes)
        again, existing.again = existing.again, {}
        for key in again:
            workload = by_key.get(key)
            if workload is not None and workload.phase is Phase.PLACED and all(slot.bound for slot in workload.slots):
                self.transitions.end(workload)
                self.settle(key)
        existing.again, left = {}, existing.again  # they had given back what they took again
        for workload in [by_key[key] for key in left if key in by_key]:
            for slot in workload.slots:
                existing.short.setdefault(slot.node, {})[workload.key] = None

    def withdraw(self, nodes: Iterable[str]) -> None:
        """Places on these nodes where nobody is bound yet are given up: somebody else has them, or they are gone."""
        gone = set(nodes)
        self.recall(gone)
        for workload in list(self.transitions.unbound) if gone else ():
            if workload.phase is not Phase.PLACED or self.transitions.is_in_flight(workload):
                continue
            if any(slot.node in gone and slot.pod and not slot.bound for slot in workload.slots):
                self.refused(workload, "its node was taken by somebody else", blameless=True)
        self.has_more(gone)

    def try_rejected(self) -> None:
        """Those that could never run may be able to, as things are now."""
        for workload in self.transitions.unplaced(Phase.REJECTED):
            self.transitions.end(workload)
            self.settle(workload.key)

    def follow_sets(self) -> dict[str, None]:
        """Node sets have other nodes: places are given up where pods may not stand any more. Returns the keys of
        workloads that come anew."""
        again = self.changing_sets.take()
        self.withdraw(self.changing_sets.take_left())
        return again

    def come_to(self, nodes: Collection[str]) -> dict[str, None]:
        """These nodes have joined, or are other ones. Returns the keys of workloads that are there already, or that no
        node would do for until now."""
        if not nodes:
            return {}
        on_node = self.mirror.on_node
        keys = self.renew(uid for node in nodes for uid in on_node.get(node, ()))
        for workload in self.transitions.unplaced(Phase.REJECTED):
            self.transitions.end(workload)
            keys[workload.key] = None
        return keys

    def renew(self, pods: Iterable[str]) -> dict[str, None]:
        """The keys of the workloads of these pods: those that wait come anew, as they may ask for other nodes now."""
        keys = dict.fromkeys(key for uid in pods if (key := self.members.key_of.get(uid)) is not None)
        for key in keys:
            workload = self.members.by_key.get(key)
            if workload is not None and workload.phase in (Phase.WAITING, Phase.REJECTED):
                self.transitions.end(workload)
        return keys

    def waiting_in(self, namespaces: Collection[str] | None) -> dict[str, None]:
        """The keys of the workloads that wait in these namespaces (None: in all), which come anew."""
        waiting = ((uid, pod.metadata.namespace) for uid, pod in self.mirror.pods.items() if not pod.spec.node_name)
        return self.renew(uid for uid, space in waiting if namespaces is None or space in namespaces)

    def resized(self, pods: Collection[str]) -> bool:
        """These pods ask for other amounts than before: what waits comes anew, and what runs is counted anew.

        True where jobs of ours were, which have lost their beginning until the state is built again.
        """
        ours = False
        for key in self.renew(pods):
            workload = self.members.by_key.get(key)
            if workload is None or workload.phase is not Phase.PLACED:
                continue
            if any(slot.pod and not slot.bound for slot in workload.slots):
                self.translation.stale = True  # as soon as all bindings have been answered
                continue
            ours = ours or not workload.foreign
            self.transitions.end(workload)
        return ours

    def answered(self) -> dict[str, None]:
        """The keys of the gangs that changed while bindings of them were under way, and of which none is any more."""
        in_flight, workloads = self.transitions.is_in_flight, self.members.by_key
        keys = {key: None for key in self.unanswered if key not in workloads or not in_flight(workloads[key])}
        for key in keys:
            del self.unanswered[key]
        return keys

    def naming_reservations(self) -> dict[str, None]:
        """The keys of the workloads that name a reservation."""
        named = (uid for uid, pod in self.mirror.pods.items() if names_reservation(pod))
        return dict.fromkeys(key for uid in named if (key := self.members.key_of.get(uid)) is not None)

    def consuming(self, requests: Collection[tuple[str, str]]) -> dict[str, None]:
        """The keys of the workloads that consume one of these ProvisioningRequests (namespace, name)."""
        pods = self.mirror.pods.items()
        named = (uid for uid, pod in pods if (pod.metadata.namespace, consumed_by(pod)) in requests)
        return self.renew(named) if requests else {}

    def retry_partially_bound(self) -> None:
        """Look again for the rest of gangs in part, where capacity has come free."""
        for workload in self.partially_bound.to_retry():
            since, reason = workload.partial, workload.reason
            self.transitions.end(workload)
            self._begin(workload, self._live(workload.key))
            workload.partial, workload.reason = since, reason
            self.partially_bound.complete_all()

    def vacant_on(self, node: str) -> dict[str, None]:
        """The keys of placed workloads that have a place on this node where no pod is bound."""
        return {
            workload.key: None
            for workload in self.transitions.with_vacancies()
            if any(slot.node == node and not slot.bound for slot in workload.slots)
        }

    # --- one of them ----------------------------------------------------------------------------------------------

    def settle(self, key: str) -> None:
        """Say as events how a workload differs from what the core knows of it."""
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

    # --- one that is no job ---------------------------------------------------------------------------------------

    def _begin(self, workload: Workload, live: list[Pod]) -> None:
        """A workload that is no job becomes one, if it can."""
        self.changing_sets.nowhere.pop(workload, None)
        leaving = self.existing_pods.leaving
        bound = [p for p in live if p.spec.node_name and p.metadata.uid not in leaving.get(p.spec.node_name, ())]
        waiting = ranked([pod for pod in live if waits(pod)]) if not workload.foreign else []
        if not any(map(is_held, waiting)):
            workload.held = ""
        if not bound and not waiting:
            self.messages.forget(workload)
            self.members.drop_empty(workload.key)
            return
        try:
            least = self._least(workload)
            if least is None:
                self._await_group(workload, bound, waiting)
                return
            spec = self.translation.group_spec(workload.group) if workload.group is not None else None
            if spec is not None and spec.parent and self._join_outer(workload, spec, bound, waiting):
                return
            if spec is not None and spec.gangs:
                self._split_into(workload, spec.gangs)
                return
            if spec is not None and spec.later:
                least -= sum(pod.status.phase == "Succeeded" for pod in self.members.pods(workload.key))
                waiting += self._expected(workload, spec.later, [*bound, *waiting])
            elif least > 1:
                least -= self._done(workload, waiting, least)
            if least <= 0:
                for pod in [*bound, *waiting]:
                    self._split_off(pod)
            else:
                self._begin_gang(workload, bound, waiting, least)
        except (InputError, StateError) as wrong:
            if bound and workload.phase is Phase.INCOMPLETE:
                self.transitions.adopt(workload, bound)
            self.messages.say(workload, str(wrong), _reason_of(wrong))
            if isinstance(wrong, NoMatchingNodeError):
                self.changing_sets.nowhere[workload] = wrong.node_sets
                if len(waiting) == 1 and not bound:
                    self.transitions.nowhere[workload] = waiting[0].metadata.uid

    def _begin_gang(self, workload: Workload, bound: list[Pod], waiting: list[Pod], least: int) -> None:
        """A gang of which at least so many pods have to run becomes a job, if there are as many."""
        free = [pod for pod in waiting if self.translation.is_free(pod)]
        lacking = least - len(bound)
        there = [*bound, *(pod for pod in self.members.pods(workload.key) if pod.status.phase == "Succeeded")]
        tasks = self._tasks(workload)
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
            self._submit(workload, bound, starting_pods(tasks, there, free, lacking), free)
            if bound:
                self.partially_bound.to_complete.append(workload)

    def _withhold(self, workload: Workload, waiting: list[Pod]) -> None:
        """A gang that somebody holds is known by its name, and is no job."""
        workload.held = workload.held or self.transitions.withhold(workload, waiting)
        self.messages.say(workload, HELD, QUEUED)

    def _submit(self, workload: Workload, bound: list[Pod], first: list[Pod], free: list[Pod]) -> None:
        """A gang comes to the queue for its first pods, and with further ones of the same kinds if it can be so."""
        own = {pod.metadata.uid for pod in first}
        grows = len(first) > 1 or self._grows_from_one(workload)
        others = (pod for pod in free if pod.metadata.uid not in own and not stands_in(pod))
        more = list(others) if grows and not bound else []
        if more:
            try:
                self.transitions.submit(workload, [], first, more)
                return
            except InputError:
                pass  # what is wrong with one of the others harms none of the first
        self.transitions.submit(workload, bound, first)

    def _await_group(self, workload: Workload, bound: list[Pod], waiting: list[Pod]) -> None:
        """Its group has not been read: its bound pods count nevertheless, and the pods that wait stay with it."""
        if bound:
            self.transitions.adopt(workload, bound, known=False)
            if workload.phase is Phase.PLACED:
                workload.unread = True
                self._unread[workload] = None
                workload.lacking, workload.whole = len(waiting), not waiting

    def may_lack_places(self) -> bool:
        """Whether there are gangs of which some pods are bound, and nobody has read yet whether others are to come."""
        self._unread = {one: None for one in self._unread if one.unread and one.phase is Phase.PLACED}
        return any(one.lacking or (one.group and one.group.source in ORDERED) for one in self._unread)

    def _is_read(self, workload: Workload) -> bool:
        """Whether what there is to know of its group is known, be it that it makes no sense."""
        try:
            return self._least(workload) is not None
        except InputError:
            return True

    def _least(self, workload: Workload) -> int | None:
        """Pods without which the workload does not start, 0: each starts alone; None while its group is not known."""
        if workload.wrong:
            raise MalformedError(workload.wrong)
        if workload.group is None or workload.foreign:
            return 1
        spec = self.translation.group_spec(workload.group)
        if spec is None:
            self.awaited[workload.group] = None
        return None if spec is None else spec.least

    def _grows_from_one(self, workload: Workload) -> bool:
        """Whether one pod has to run, and its object says that others may join it: not that each pod is alone."""
        if workload.group is None or workload.group.least:
            return False
        spec = self.translation.group_spec(workload.group)
        return spec is not None and spec.least == 1 and bool(spec.tasks)

    def _tasks(self, workload: Workload) -> Tasks:
        """So many pods of each task are among those without which it does not start."""
        spec = self.translation.group_spec(workload.group) if workload.group is not None else None
        return () if spec is None else spec.tasks

    def _done(self, workload: Workload, waiting: list[Pod], least: int) -> int:
        """How many pods of a gang have ended well already, so that it needs so many fewer.

        0 where all that it needs have: pods that come then belong to another run of it, as do pods that another
        controller has made.
        """
        pods, makers = self.members.pods(workload.key), {maker(pod) for pod in waiting}
        if makers == {""} and any(pod.status.phase == "Failed" for pod in pods):
            return 0
        done = sum(pod.status.phase == "Succeeded" and maker(pod) in makers for pod in pods)
        return done if done < least else 0

    def _split_off(self, pod: Pod) -> None:
        self.settle(self.members.split_off(pod.metadata.uid))

    # --- groups in groups -------------------------------------------------------------------------------------------

    def _join_outer(self, workload: Workload, spec: GroupSpec, bound: list[Pod], waiting: list[Pod]) -> bool:
        """Its pods start with those of other groups, as one gang; False: they do not. Raises InputError."""
        assert workload.group is not None
        if workload.group.source == COMPOSITE:
            return False
        chain = chain_of(self.translation, workload.group, spec)
        if not isinstance(chain, list):
            self.awaited[workload.group._replace(paths=chain.paths)] = None  # this one has to be settled then
            self._await_group(workload, bound, waiting)
            return True
        if not chain:
            return False
        outer = composite_of(workload.group.namespace, chain[-1][0])
        key = "/".join(outer.key)
        for pod in self.members.pods(workload.key):
            self.members.move(pod.metadata.uid, key, outer)
        self.messages.forget(workload)
        self.members.drop_empty(workload.key)
        least, tasks = needed(self.translation, outer.namespace, self.members.pods(key))
        whole = self.members.by_key[key]
        before, whole.group = whole.group, outer._replace(least=least, tasks=tuple(tasks))
        if before != whole.group and not self.transitions.is_in_flight(whole):
            self.transitions.end(whole)
        self.settle(key)
        return True

    # --- parts that start one after the other -----------------------------------------------------------------------

    def _split_into(self, workload: Workload, gangs: Sequence[Sequence[str]]) -> None:
        """The pods of one object are several gangs, each named by its first part; whoever is of none is one too."""
        assert workload.group is not None
        first = {name: gang[0] for gang in gangs for name in gang}
        keys: dict[str, None] = {}
        for pod in self.members.pods(workload.key):
            part = part_of(pod)
            part = first.get(part, part)
            own = workload.group._replace(name=f"{workload.group.name}/{part}", part=part)
            key = "/".join(own.key)
            self.members.move(pod.metadata.uid, key, own)
            keys[key] = None
        self.messages.forget(workload)
        self.members.drop_empty(workload.key)
        for key in keys:
            self.settle(key)

    def _expected(self, workload: Workload, later: Sequence[Part], there: Sequence[Pod]) -> list[Pod]:
        """Who stands in for the pods that its controller makes once others of it are ready. Raises InputError."""
        assert workload.group is not None
        counted = [
            pod for pod in self.members.pods(workload.key) if not is_over(pod) or pod.status.phase == "Succeeded"
        ]
        found: list[Pod] = []
        for part in later:
            own = [pod for pod in counted if part_of(pod) == part.name]
            same = next((pod for pod in there if part_of(pod) == part.name), None)
            found += stand_ins(part, part.pods - len(own), workload.group.name, there[0], same)
        return found

    def _expected_otherwise(self, workload: Workload, newcomers: Sequence[Pod]) -> bool:
        """Whether a pod has come whose place was kept for one that asks for something else: its template said so."""
        expecting = [slot for slot in workload.slots if slot.expects is not None and slot.vacant]
        try:
            return bool(expecting) and any(
                all(slot.demand != self.translation.demand(pod) for slot in expecting) for pod in newcomers
            )
        except InputError:
            return False

    # --- one that runs --------------------------------------------------------------------------------------------

    def _follow(self, workload: Workload, live: list[Pod]) -> None:
        """What has become of the pods of a placed workload, and which take the places of those that are gone."""
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
        anew = self._expected_otherwise(workload, coming) and not self.transitions.is_in_flight(workload)
        if not anew and self._resize(workload, live):
            return
        newcomers = ranked([p for p in coming if self.translation.devices.requests.are_made(p)])
        if anew or self._is_to_be_planned(workload, newcomers):
            self.transitions.end(workload)
            self._begin(workload, live)
            return
        misplaced = self._fill(workload, newcomers) or misplaced
        self.transitions.time_partial(workload)
        if misplaced and not self.transitions.is_in_flight(workload):  # else when the last answer has come
            self.partially_bound.complete(workload)

    def _resize(self, workload: Workload, live: list[Pod]) -> bool:
        """Take in who has come to a gang and who is gone, where it may have more pods or fewer. False: it may not."""
        if workload.group is None or workload.foreign or workload.lacking or not workload.whole:
            return False
        try:
            least = self._least(workload) if self._is_read(workload) else None
            if least is None or not (least > 1 or (least == 1 and self._grows_from_one(workload))):
                return False
            if not self.core.is_settled:
                self._unsized[workload.key] = None
                return True
            if not self.elastic.applies(workload):
                return False
            if not self.transitions.is_in_flight(workload):
                self._look_up_again(workload, live)
                spec = self.translation.group_spec(workload.group)
                together = spec is not None and spec.together
                for pod in self.elastic.follow(workload, live, least, self._tasks(workload), together):
                    self._split_off(pod)
                self.transitions.time_partial(workload)
            else:
                self.unanswered[workload.key] = None
        except InputError:
            return False
        except AnewError:
            self.transitions.end(workload)
            self._begin(workload, live)
        return True

    def _look_up_again(self, workload: Workload, live: list[Pod]) -> None:
        """Ask what its group says now: whoever makes or deletes pods of it may have changed that as well."""
        pods = frozenset(pod.metadata.uid for pod in live)
        if workload.group is not None and workload.group.paths and workload.asked not in (pods, frozenset()):
            self.awaited[workload.group] = None
        workload.asked = pods

    def _note_pod(self, slot: Slot) -> bool:
        """Note what has become of the pod of a place. True: it is, or is to be, where it should not."""
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
            return slot.node in self.out_of_service
        return False

    def _is_to_be_planned(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Whether pods have come for all vacant places of a gang whose job does not say what they ask of their nodes.

        Such a gang comes to the queue anew, so that its new pods obey all that a first placement obeys.
        """
        vacant = sum(slot.vacant for slot in workload.slots)
        able = sum(self.translation.is_free(pod) for pod in newcomers)
        return workload.adopted and not workload.lacking and 0 < vacant <= able

    def _fill(self, workload: Workload, newcomers: list[Pod]) -> bool:
        """Pods that come later take vacant places, or go their own way; True where a place is on a lost node."""
        lost = False
        if workload.lacking or (workload.adopted and any(slot.vacant for slot in workload.slots)):
            return False  # they may be those that are waited for
        for pod in newcomers:
            vacant = self._alike(workload, pod)
            slot = next((s for s in vacant if s.was == identity(pod)), vacant[0] if vacant else None)
            if slot is not None:
                slot.pod, slot.was = pod.metadata.uid, identity(pod)
                lost = lost or slot.node in self.out_of_service
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
        """The vacant places of pods that asked for the same as this one, and had the same rules."""
        try:
            kind = self.translation.demand(pod), self.translation.rules_there(pod, workload.foreign)
        except InputError:
            return []
        kinds = workload.kinds
        vacant = [slot for slot in workload.slots if slot.vacant and slot.demand == kind[0]]
        return [slot for slot in vacant if kinds[slot.group].rules == kind[1]]

    def refused(self, workload: Workload, why: str, blameless: bool = False) -> None:
        """A pod of a placed workload could not be bound, for good: all of it waits again, or goes.

        Not before every binding of it has been answered, since one that was sent may still be carried out. `blameless`:
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
            self.recount(nodes)  # what it had may be what is lost: it is not to get that again
            self.partially_bound.complete_all()
        else:
            self.transitions.requeue(workload, why, blameless)

    def _refused_in_part(self, workload: Workload) -> None:
        """Pods of an elastic gang could not be bound: they wait to join it, or it is told anew as a gang in part."""
        self.mirror.hear(slot.pod for slot in workload.slots if slot.bound)
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
        self.recount(nodes)  # what it had may be what is lost: it is not to get that again
        self.partially_bound.complete_all()

    # --- one that was to be evicted -------------------------------------------------------------------------------

    def stays(self, workload: Workload, protect: bool) -> None:
        """A workload whose eviction was refused is what it was; `protect`: nobody tries to stop it again so soon."""
        if workload.phase is Phase.PLACED and workload.job:  # it was to be smaller, and has all of its pods
            self.transitions.end(workload)
            self._protect(workload, protect)
            self._begin(workload, self._live(workload.key))
            return
        if workload.job:  # a gang in part, which is counted until it is gone
            self.partially_bound.keep_refused(workload)
            return
        workload.phase = Phase.INCOMPLETE
        self._protect(workload, protect)

    def _protect(self, workload: Workload, protect: bool) -> None:
        if protect:
            workload.protected_until = self.core.clock() + PROTECTED
            self._protected[workload] = None

    def look_at_protected(self) -> None:
        """Those whose eviction was refused long ago may be stopped again."""
        for workload in [one for one in self._protected if one.protected_until <= self.core.clock()]:
            del self._protected[workload]
            self.transitions.unprotected[workload] = None


def _reason_of(wrong: Exception) -> str:
    if isinstance(wrong, NoMatchingNodeError):
        return UNSCHEDULABLE
    return QUEUED if isinstance(wrong, NotYetError) else ERROR


def _may_be_moved(pod: Pod) -> bool:
    meta = pod.metadata
    return "true" in ((meta.labels or {}).get(MOVABLE), (meta.annotations or {}).get(MOVABLE))
