"""Elastic gangs: pods that arrive join a running gang, and the gang shrinks when some of its pods are deleted.

The core knows a gang's floor, the number of pods that must run, and its ceiling, the number of pods that exist
(`JobScaled`). A gang grows into capacity that no waiting job can use, and gives up pods above its floor before any gang
is preempted. A controller, an autoscaler or a person may create or delete pods. A slot above the floor is free once its
pod is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from kant.cluster.elastic import pod_by_pod
from kant.kube.objects.views import Pod
from kant.kube.reconcile.elastic_jobs import identity, kinds_of, sized
from kant.kube.reconcile.messages import QUEUED, UNSCHEDULABLE
from kant.kube.reconcile.slots import Member, Slot
from kant.kube.reconcile.tasks import Tasks, starting_pods
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload, waits
from kant.kube.translate.pods import ranked
from kant.live.sentences import size_sentence
from kant.model.errors import InputError
from kant.model.event import JobGrown, JobScaled, JobShrunk
from kant.model.job import Job, Role
from kant.model.placement import GROUP, MASK, NODE, Allocation

HELD = 3.0  # seconds for which a lost pod's slot is kept for its replacement while other pods of the gang wait
AGAIN = 10.0  # seconds after which a gang whose growth could not be carried out may grow again


class AnewError(Exception):
    """A gang no longer matches its job in the core. The job must be ended, and created again."""


class ElasticGangs:
    """The running gangs that may have more or fewer pods.

    `joining` has the gangs that waiting pods may join, `held` those that keep the slot of a lost pod for HELD seconds.
    """

    def __init__(self, transitions: Transitions) -> None:
        self.transitions = transitions
        self.core = transitions.core
        self.mirror = transitions.mirror
        self.translation = transitions.translation
        self.joining: dict[Workload, None] = {}
        self.held: dict[Workload, None] = {}
        self._again: dict[Workload, float] = {}

    def job(self, workload: Workload) -> Job:
        """Return the job of the workload as the core knows it."""
        return self.core.state.live[self.core.state.rows[workload.job]]

    # --- arriving and deleted pods --------------------------------------------------------------------------------

    def follow(
        self, workload: Workload, live: Sequence[Pod], least: int, tasks: Tasks = (), together: bool = False
    ) -> list[Pod]:
        """Update a running gang after pods were created or deleted.

        `together`: the pods of the gang stop together, so that it cannot give up single pods. Returns the pods that
        cannot join the gang. Raises AnewError.
        """
        job = self.job(workload)
        self._check(workload, live)
        gone = sum(slot.done for slot in workload.slots if not slot.pod)
        workload.least = min(least, workload.least)  # a larger minimum takes effect at the next start
        floor = max(workload.least - workload.ended - gone, 1)
        joining, alone = self._joiners(workload, job, live)
        waiting = self._refill(workload, joining, floor)
        kept = self._kept(workload, bool(waiting), floor)
        floors = self._floors(kept, tasks, len(kept) if together else min(floor, len(kept)))
        self._tell(workload, job, kept, waiting, floors)
        if waiting and workload not in self.joining:
            self._scale(workload, self.job(workload), always=True)
        if len(waiting) > len(workload.members):
            workload.reason = ""
        workload.floor, workload.ended, workload.members = floor, workload.ended + gone, waiting
        self.joining.pop(workload, None)
        if waiting:
            self.joining[workload] = None
        return alone

    def _check(self, workload: Workload, live: Sequence[Pod]) -> None:
        """Raise AnewError if a bound pod of the gang has no slot, or a slot on another node.

        Unbound pods whose slot is on a closed node lose the slot, and wait again.
        """
        for slot in workload.slots:
            if slot.pod and not slot.bound and slot.node in self.transitions.closed:
                slot.pod = slot.was = ""
        places = {slot.pod: slot.node for slot in workload.slots if slot.pod}
        leaving = self.transitions.existing_pods.leaving
        for pod in live:
            node, meta = pod.spec.node_name, pod.metadata
            if (
                node not in self.core.state.node_index
                or meta.deletion_timestamp is not None
                or meta.uid in leaving.get(node, ())
            ):
                continue
            if places.get(meta.uid) != node:
                raise AnewError

    def _joiners(self, workload: Workload, job: Job, live: Sequence[Pod]) -> tuple[list[Member], list[Pod]]:
        """Return the waiting pods that may join the gang, in order of rank, and the pods that cannot join it."""
        filled = {slot.pod for slot in workload.slots}
        newcomers = ranked([p for p in live if waits(p) and p.metadata.uid not in filled])
        known = {member.pod.metadata.uid: member for member in workload.members}
        joining, alone = list[Member](), list[Pod]()
        for pod in newcomers:
            member = known.get(pod.metadata.uid)
            if not (self.translation.is_free(pod) and self.translation.devices.are_made(pod)):
                continue
            if member is None:
                member = self._joiner(workload, job, pod)
            if member is None:
                alone.append(pod)
            else:
                joining.append(member)
        return joining, alone

    def _joiner(self, workload: Workload, job: Job, pod: Pod) -> Member | None:
        try:
            own = self.translation.joining_job(self.core, workload.group, pod)
        except InputError:
            return None  # it becomes a workload of its own, which reports the error
        if own.queue != job.queue or own.reservation != job.reservation:
            return None
        (kind,) = kinds_of(own)
        for at, known in enumerate(workload.kinds):
            if known in (kind, kind._replace(role=None)):
                workload.kinds[at] = kind
                return Member(pod, kind.demand, at)
        return None

    def name_sets(self, workload: Workload) -> None:
        """Tell the core which nodes are suitable now for pods that join the gang."""
        state, there = self.core.state, self.mirror.pods
        if state.rows[workload.job] not in state.elastic or not workload.kinds:
            return
        pods = [(slot.group, there[slot.pod]) for slot in workload.slots if slot.pod in there]
        pods += [(member.group, member.pod) for member in workload.members]  # last, so that their roles count
        for group, pod in pods:
            with suppress(InputError):
                role = self.translation.role(self.core, workload.group, pod)
                workload.kinds[group] = workload.kinds[group]._replace(role=role)
        self._scale(workload, self.job(workload), always=True)

    def _refill(self, workload: Workload, waiting: list[Member], floor: int) -> list[Member]:
        """Give vacant slots to re-created pods, and up to the floor to any pod. Return the pods that still wait.

        Raises AnewError if the waiting pods could complete the floor, but not in the vacant slots.
        """
        lacking = floor - sum(bool(slot.pod) for slot in workload.slots)
        vacant = [slot for slot in workload.slots if slot.vacant]
        left, filled = list(waiting), 0
        for slot in vacant if left else ():
            alike = [member for member in left if member.group == slot.group]
            same = [member for member in alike if identity(member.pod) == slot.was]
            for member in same[:1] or (alike[:1] if filled < lacking else []):
                if self.transitions.may_run_on(slot.node, member.pod):
                    slot.pod = member.pod.metadata.uid
                    left.remove(member)
                    self.transitions.placed(workload, [slot])
                    filled += 1
        if 0 <= filled < lacking <= len(waiting):
            raise AnewError
        return left

    def _kept(self, workload: Workload, others_wait: bool, floor: int) -> list[Slot]:
        """Return the slots to keep: those with pods, those that the floor needs, and those with a pod lost just now."""
        now, filled = self.core.clock(), sum(bool(slot.pod) for slot in workload.slots)
        lacking, kept, held = floor - filled, list[Slot](), False
        for slot in workload.slots:
            if slot.vacant and slot.since < 0:
                slot.since = now
            on_hold = slot.vacant and bool(slot.was) and others_wait and now < slot.since + HELD
            if slot.pod or on_hold or (slot.vacant and lacking > 0):
                kept.append(slot)
                lacking -= not slot.pod
                held = held or (not slot.pod and on_hold)
        self.held.pop(workload, None)
        if held:
            self.held[workload] = None
        return kept

    def _floors(self, kept: Sequence[Slot], tasks: Tasks, floor: int) -> Counter[int]:
        """Return how many pods of each group belong to the floor: at least one of each."""
        pods, group_of = self.mirror.pods, {slot.pod: slot.group for slot in kept if slot.pod}
        there = [pods[slot.pod] for slot in kept if slot.pod in pods]
        chosen = starting_pods(tasks, (), there, min(floor, len(there)))
        floors = Counter(group_of[pod.metadata.uid] for pod in chosen)
        floors.update(slot.group for slot in kept if not slot.pod)
        for slot in kept:
            floors[slot.group] = max(floors[slot.group], 1)
        return floors

    def _tell(
        self, workload: Workload, job: Job, kept: list[Slot], waiting: list[Member], floors: Counter[int]
    ) -> None:
        """Tell the core the new size of the gang. Raises AnewError if a group of its job keeps no slot."""
        holds, waits = Counter(slot.group for slot in kept), Counter(member.group for member in waiting)
        groups = range(len(job.groups))
        if any(not holds[group] for group in groups):
            raise AnewError
        now = sized(job, [holds[group] + waits[group] for group in groups], floors)
        given = [slot for slot in workload.slots if slot not in kept]
        if given:
            had = Counter(slot.group for slot in workload.slots)
            self._scale(workload, sized(job, [had[group] for group in groups], floors))
            self._give_back(workload, given)
        self._scale(workload, now)

    def _scale(self, workload: Workload, job: Job, always: bool = False) -> None:
        if not always and job.groups == self.job(workload).groups:
            return
        roles = tuple(kind.role or Role() for kind in workload.kinds)
        alike = roles[0] if len(set(roles)) == 1 else Role()
        unlike = roles if len(set(roles)) > 1 else ()
        self.core.happen(
            JobScaled(self.core.now, workload.job, job.groups, alike.models, roles=unlike, node_set=alike.node_set)
        )

    def _give_back(self, workload: Workload, given: list[Slot]) -> None:
        self.core.happen(JobShrunk(self.core.now, workload.job, self._pieces(workload, given)))
        workload.slots = [slot for slot in workload.slots if slot not in given]
        self.transitions.existing_pods.freed(slot.node for slot in given)

    def _pieces(self, workload: Workload, slots: Sequence[Slot]) -> Allocation:
        """Return the rows of the job's allocation that belong to these slots. Raises AnewError if a slot has none."""
        state, found = self.core.state, list[Allocation]()
        rows = list(pod_by_pod(state.running[state.rows[workload.job]]))
        for slot in reversed(slots):
            node = state.node_index.get(slot.node, -1)
            fitting = [at for at, row in enumerate(rows) if row[NODE] == node and row[GROUP] == slot.group]
            if not fitting:
                raise AnewError
            found.append(rows.pop(max(fitting, key=lambda at: (rows[at][MASK] == slot.devices, at))))
        return np.array(found, dtype=np.int64)

    # --- decisions of the core ------------------------------------------------------------------------------------

    def grow(self, workload: Workload, allocation: Allocation) -> None:
        """Grow by `allocation`, for waiting pods. If a pod may not run on its node, give all of `allocation` back."""
        core, transitions = self.core, self.transitions
        core.happen(JobGrown(core.now, workload.job, allocation))
        try:
            slots = transitions.slots_of(workload, allocation)
        except ValueError:
            slots = []
        if not slots or transitions.check(workload, slots):
            core.happen(JobShrunk(core.now, workload.job, allocation))
            self._again[workload] = core.clock() + AGAIN
            return
        placed = {slot.pod for slot in slots}
        workload.members = [member for member in workload.members if member.pod.metadata.uid not in placed]
        workload.slots = [*workload.slots, *slots]
        transitions.placed(workload, slots)

    def going(self, workload: Workload, allocation: Allocation) -> list[Slot]:
        """Return the slots to give up with `allocation`: of a node's slots the unbound ones first, then the latest."""
        left, found, names = list(workload.slots), list[Slot](), self.transitions.node_names
        for row in pod_by_pod(allocation):
            there = [slot for slot in left if slot.node == names[row[NODE]] and slot.group == row[GROUP]]
            slot = max(reversed(there), key=lambda one: (one.devices == row[MASK] != 0, not one.bound))
            left.remove(slot)
            found.append(slot)
        return found

    def shrink(self, workload: Workload, allocation: Allocation, by: str) -> list[Pod]:
        """Give up `allocation` for the job `by`. Returns the pods to evict."""
        slots, pods = self.going(workload, allocation), self.mirror.pods
        self.transitions.count_again(slots)
        self.core.happen(JobShrunk(self.core.now, workload.job, allocation, by=by))
        evicted = list[Pod]()
        for slot in slots:
            pod = pods.get(slot.pod)
            if pod is not None and (slot.bound or slot.pod in self.transitions.in_flight):
                self.transitions.existing_pods.leaving.setdefault(slot.node, {})[slot.pod] = None
                evicted.append(pod)
            elif pod is not None:
                workload.members.append(Member(pod, slot.demand, slot.group))
                self.joining[workload] = None
            slot.pod = ""
        workload.slots = [slot for slot in workload.slots if slot not in slots]
        self._again[workload] = self.core.clock() + AGAIN
        return evicted

    # --- timers and messages --------------------------------------------------------------------------------------

    def due(self) -> dict[str, None]:
        """Return the keys of gangs that have kept a slot for HELD seconds. Gangs whose growth failed may grow again."""
        now = self.core.clock()
        for workload, then in list(self._again.items()):
            if then <= now:
                del self._again[workload]
                if workload in self.joining and workload.phase is Phase.PLACED and workload.job:
                    self._scale(workload, self.job(workload), always=True)
        return {w.key: None for w in self.held if any(s.vacant and 0 <= s.since <= now - HELD for s in w.slots)}

    def report_waiting(self) -> None:
        """Report to the pods that wait to join a gang how many pods the gang runs, and what it lacks to run more."""
        growth, state = self.core.scheduler.growth, self.core.state
        for workload in list(self.joining):
            if workload.phase is not Phase.PLACED or not workload.members or workload.job not in state.rows:
                del self.joining[workload]
                continue
            lacks_quota = state.rows[workload.job] in growth.over_quota
            what = (
                "its queue has no quota for more"
                if lacks_quota
                else "there is no capacity for more: none of the others fit now"
            )
            sentence = f"its gang {self.size(workload)}, and {what}"
            self.transitions.messages.say(workload, sentence, QUEUED if lacks_quota else UNSCHEDULABLE)

    def size(self, workload: Workload) -> str:
        """Return the number of pods with which a gang runs, as text such as `runs with 3 of 2 to 6 pods`."""
        return size_sentence(self.job(workload), len(workload.slots))
