"""Workloads: the pods of the API server as jobs of the core.

A workload is what is scheduled as one: a gang, or a pod that belongs to none. `settle` compares what the mirror says
about one with what the state knows, and says the difference as events. It looks at levels, not at edges: to settle
twice, late, or after changes were missed leads to the same. A restart is to settle everything, starting from nothing.

A gang is as many pods as its group cannot do without, the first by name; further ones, and those that come for a pod
that ended badly, take the place of that pod where there is one, else they are jobs of one pod.

Long: what a workload may become follows from where it stands, so all its steps stand here, in the order of its life;
what can be said apart from them is in `halves`, `residents`, `slots` and `seats`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable

from kant.kube.groups import GroupRef
from kant.kube.halves import Halves
from kant.kube.mirror import Mirror, is_over
from kant.kube.objects import Pod
from kant.kube.residents import Residents
from kant.kube.seats import Seats
from kant.kube.slots import Member, Slot, slots_of, table_of
from kant.kube.translation import Malformed, Nowhere, Stale, Translation
from kant.kube.workload import Phase, Workload, give_up, maker
from kant.live.core import Core
from kant.model.errors import Violation
from kant.model.event import (
    JobCancelled,
    JobFinished,
    JobRefused,
    JobStarted,
    JobSubmitted,
)
from kant.model.placement import Allocation

STILL = 1.0  # seconds without another pod after which a gang is said to lack some
SPARED = 30.0  # seconds for which nobody tries again to stop what a budget of disruptions protects


class Workloads:
    """All workloads, by key and by job. `to_bind` and `to_evict` are what the driver has to do about them.

    `told` collects (workload, sentence, whether it is for capacity) for people who wait; `completed` gangs that are
    whole now, and for how many seconds they were in part.
    """

    def __init__(
        self,
        core: Core,
        mirror: Mirror,
        words: Translation,
        leaving: dict[str, dict[str, None]] | None = None,
        seats: Seats | None = None,
        in_flight: set[str] | None = None,
    ) -> None:
        self.in_flight = in_flight if in_flight is not None else set()  # pods whose binding has not been answered
        self.seats = seats or Seats(mirror)
        self.core = core
        self.mirror = mirror
        self.words = words
        self.residents = Residents(core, words, leaving if leaving is not None else {})
        self.known: dict[str, Workload] = {}
        self.by_job: dict[str, Workload] = {}
        self.key_of: dict[str, str] = {}  # of each pod
        self.pods_of: dict[str, dict[str, None]] = {}
        self.out_of_service: set[str] = set()  # nodes that take no pod now
        self.to_bind: deque[Workload] = deque()
        self.to_evict: deque[tuple[Workload, str]] = deque()
        self.completed: deque[tuple[Workload, float]] = deque()
        self.told: deque[tuple[Workload, str, bool]] = deque()
        self.awaited: dict[GroupRef, None] = {}  # group objects that somebody has to read
        self.recall: Callable[[set[str]], None] = lambda nodes: None  # bindings that have not been sent
        self.recount: Callable[[Iterable[str]], None] = lambda nodes: None  # what these nodes have
        self._names = [node.name for node in core.state.spec.nodes]
        self.halves = Halves(self)
        self._unbound: dict[Workload, None] = {}
        self.crowded: dict[str, None] = {}  # nodes whose pods are to be counted
        self._spared: dict[Workload, None] = {}
        self._growing: dict[Workload, tuple[str, float]] = {}  # gangs that lack pods: what to say of it, and when
        self.anew: dict[Workload, None] = {}  # of whom the state does not know yet whether they may be stopped

    # --- which pods belong together ---------------------------------------------------------------

    def note(self, uid: str, pod: Pod) -> str | None:
        """The key of the workload that a pod belongs to; None for a pod that is none of our business."""
        key = self.key_of.get(uid)
        if key is None:
            ours = self.words.is_ours(pod)
            if uid not in self.mirror.pods or (not ours and not pod.spec.node_name):
                return None
            group, wrong = None, ""
            try:
                group = self.words.group_of(pod) if ours else None
            except Malformed as malformed:
                wrong = str(malformed)
            key = "/".join(group.key) if group is not None else uid
            self._join(uid, key)
            if key not in self.known:
                self.known[key] = Workload(key, group, foreign=not ours, wrong=wrong)
        return key

    def _join(self, uid: str, key: str) -> None:
        self.key_of[uid] = key
        self.pods_of.setdefault(key, {})[uid] = None

    def settle_all(self, keys: dict[str, None]) -> None:
        """Settle these workloads: first those that hold something, so that it is known what is free."""
        waiting: list[tuple[str, str]] = []
        for key in keys:
            pods = self.pods(key)
            if any(pod.spec.node_name for pod in pods) or not pods:
                self.settle(key)
            else:
                waiting.append((min(pod.metadata.creation_timestamp for pod in pods), key))
        if self.core.is_settled:
            self.halves.mend_found()
            self.has_more(())
            overrun, self.residents.overrun = self.residents.overrun, {}
            self.withdraw(overrun)
        for _, key in sorted(waiting):
            self.settle(key)
        if not self.core.is_settled:
            self.residents.built()
            for job, why in self.core.settled().items():
                known = self.by_job.pop(job)
                known.job, known.phase, known.members, known.slots = "", Phase.INCOMPLETE, [], []
                self.say(known, why)
        self.halves.mend_found()

    def has_more(self, nodes: Iterable[str]) -> None:
        """These nodes may have more to give to those who are there."""
        residents = self.residents
        residents.freed(nodes)
        again, residents.again = residents.again, {}
        for key in again:
            known = self.known.get(key)
            if known is not None and known.phase is Phase.PLACED and all(slot.bound for slot in known.slots):
                self.leaves(known, JobCancelled)
                self.settle(key)
        residents.again, left = {}, residents.again  # they had given back what they took again
        for known in [self.known[key] for key in left if key in self.known]:
            for slot in known.slots:
                residents.short.setdefault(slot.node, {})[known.key] = None

    def withdraw(self, nodes: Iterable[str]) -> None:
        """Places on these nodes where nobody is bound yet are given up: somebody else has the room, or it is gone."""
        gone = set(nodes)
        self.recall(gone)
        for known in list(self._unbound) if gone else ():
            if known.phase is not Phase.PLACED or self.is_flying(known):
                continue
            if any(slot.node in gone and slot.pod and not slot.bound for slot in known.slots):
                self.refused(known, "its node was taken by somebody else", blameless=True)
        self.has_more(gone)

    def pods(self, key: str) -> list[Pod]:
        pods = self.mirror.pods
        return [pods[uid] for uid in self.pods_of.get(key, ()) if uid in pods]

    # --- one workload ---------------------------------------------------------------

    def settle(self, key: str) -> None:
        """Say as events how a workload differs from what the state knows of it."""
        known = self.known.get(key)
        if known is None:
            return
        for uid in [uid for uid in self.pods_of.get(key, ()) if uid not in self.mirror.pods]:
            del self.pods_of[key][uid], self.key_of[uid]
        live = [pod for pod in self.pods(key) if not is_over(pod)]
        if known.phase is Phase.LEAVING:
            if any(pod.spec.node_name for pod in live):
                return
            self.leaves(known, JobCancelled)
        elif known.phase is Phase.PLACED:
            if self.halves.is_unread(known) and self._is_read(known):
                self.leaves(known, JobCancelled)
            else:
                self._runs(known, live)
                if known.job:
                    return
        elif known.phase in (Phase.WAITING, Phase.REJECTED):
            waits = {pod.metadata.uid for pod in live if self._waits(pod)}
            if all(member.pod.metadata.uid in waits for member in known.members):
                return
            if known.phase is Phase.WAITING and self._was_started(known):
                return
            self.leaves(known, JobCancelled)
        self.appears(known, live)

    def _was_started(self, known: Workload) -> bool:
        """Whether somebody else has bound all of it, as it was to be: then that is how it started."""
        pods = [self.mirror.pods.get(member.pod.metadata.uid) for member in known.members]
        known.slots = [
            Slot(pod.spec.node_name, member.demand, pod.metadata.uid, True)
            for pod, member in zip(pods, known.members, strict=True)
            if pod is not None and pod.spec.node_name
        ]
        held = self.residents.held(known) if len(known.slots) == len(pods) else None
        if held is None:
            known.slots = []
            return False
        self.core.happen(JobStarted(self.core.now, known.job, held))
        known.members, known.phase, known.whole = [], Phase.PLACED, True
        self.anew[known] = None
        return True

    def _waits(self, pod: Pod) -> bool:
        return not pod.spec.node_name and pod.metadata.deletion_timestamp is None

    def leaves(self, known: Workload, kind: type[JobCancelled] | type[JobFinished]) -> None:
        """It is no job any more."""
        self.residents.freed(slot.node for slot in known.slots)
        if known.job:
            if known.phase is not Phase.REJECTED:
                self.core.happen(kind(self.core.now, known.job))
            self.by_job.pop(known.job, None)
        known.job, known.phase, known.members, known.slots = "", Phase.INCOMPLETE, [], []
        known.partial, known.whole, known.lacking, known.refused = -1.0, False, 0, ""

    def appears(self, known: Workload, live: list[Pod]) -> None:
        """A workload that is no job becomes one, if it can."""
        bound = [pod for pod in live if pod.spec.node_name]
        waiting = self.words.ranked([pod for pod in live if self._waits(pod)]) if not known.foreign else []
        if not bound and not waiting:
            if not self.pods_of.get(known.key):
                self.known.pop(known.key, None)
                self.pods_of.pop(known.key, None)
            return
        try:
            least = self._least(known)
            if least is None:
                self._awaits(known, bound, waiting)
                return
            if least > 1:
                least -= self._done(known, waiting, least)
            if least == 0:
                for pod in [*bound, *waiting]:
                    self._goes_alone(pod)
                return
            free = [pod for pod in waiting if not self.words.is_gated(pod)]
            lacking = least - len(bound)
            if bound and (lacking <= 0 or len(free) < lacking):
                self.resides(known, bound)
                self._runs(known, live)
            elif len(free) < lacking <= len(waiting):
                self.say(known, "a scheduling gate of somebody else holds it")
            elif len(free) < lacking:
                self._grows(known, f"{len(waiting)} of the {least} pods of its gang exist")
            else:
                self._submit(known, bound, free[:lacking])
        except Stale:
            return
        except (Malformed, Violation) as wrong:
            if bound and known.phase is Phase.INCOMPLETE:
                self.resides(known, bound)
            self.say(known, str(wrong), isinstance(wrong, Nowhere))

    def _is_read(self, known: Workload) -> bool:
        """Whether what there is to know of its group is known, be it that it makes no sense."""
        try:
            return self._least(known) is not None
        except Malformed:
            return True

    def _awaits(self, known: Workload, bound: list[Pod], waiting: list[Pod]) -> None:
        """Its group has not been read: what is bound of it counts all the same, and those who wait stay with it."""
        if bound:
            self.resides(known, bound)
            if known.phase is Phase.PLACED:
                known.lacking, known.whole = len(waiting), not waiting

    def _least(self, known: Workload) -> int | None:
        """Pods without which the workload does not start, 0: each starts alone; None while its group is not known."""
        if known.wrong:
            raise Malformed(known.wrong)
        if known.group is None or known.foreign:
            return 1
        spec = self.words.group_spec(known.group)
        if spec is None:
            self.awaited[known.group] = None
        return None if spec is None else spec.least

    def _done(self, known: Workload, waiting: list[Pod], least: int) -> int:
        """How many pods of a gang have ended well already, so that it needs so many fewer; 0 where all that it needs
        have: who comes then belongs to another run of it, as do pods that somebody else has made.
        """
        pods, makers = self.pods(known.key), {maker(pod) for pod in waiting}
        if makers == {""} and any(pod.status.phase == "Failed" for pod in pods):
            return 0
        done = sum(pod.status.phase == "Succeeded" and maker(pod) in makers for pod in pods)
        return done if done < least else 0

    def _submit(self, known: Workload, bound: list[Pod], waiting: list[Pod]) -> None:
        """A gang comes to the queue; what is bound of it already is to be mended first."""
        core = self.core
        members = [Member(pod, self.words.demand(pod)) for pod in (*bound, *waiting)]
        job = self.words.job(core, known.group, [member.pod for member in members])
        core.happen(JobSubmitted(self.residents.came(job), job))
        known.job, known.members, known.phase, known.reason = job.id, members, Phase.WAITING, ""
        self.by_job[job.id] = known
        if bound:
            known.slots = [Slot(p.spec.node_name, self.words.demand(p), p.metadata.uid, True) for p in bound]
            self.halves.found.append(known)

    def resides(self, known: Workload, bound: list[Pod]) -> None:
        if self.residents.settle(known, bound):
            self.by_job[known.job] = known
            self.anew[known] = None

    # --- one that runs ---------------------------------------------------------------

    def _runs(self, known: Workload, live: list[Pod]) -> None:
        """What has become of the pods of a placed workload, and who takes the places of those that are gone."""
        if known.phase is not Phase.PLACED:
            return
        pods, astray = self.mirror.pods, False
        for slot in known.slots:
            pod = pods.get(slot.pod) if slot.pod else None
            if pod is None or (not pod.spec.node_name and pod.metadata.deletion_timestamp is not None):
                slot.pod, slot.bound = "", False
            elif is_over(pod):
                slot.done = slot.done or pod.status.phase == "Succeeded"
                slot.pod, slot.bound = "", False
            elif pod.spec.node_name:
                slot.bound = True
                astray = astray or pod.spec.node_name != slot.node
            elif not slot.bound:
                astray = astray or slot.node in self.out_of_service
        filled = {slot.pod for slot in known.slots}
        newcomers = self.words.ranked([p for p in live if self._waits(p) and p.metadata.uid not in filled])
        if all(not slot.pod for slot in known.slots):
            kind = JobFinished if any(slot.done for slot in known.slots) else JobCancelled
            self.leaves(known, kind)
            return
        astray = self._fill(known, newcomers) or astray
        self.time_partial(known)
        if astray and not self.is_flying(known):  # else when the last answer has come
            self.halves.mend(known)

    def _fill(self, known: Workload, newcomers: list[Pod]) -> bool:
        """Pods that come later take vacant places, or go their own way; True where a place is on a lost node."""
        lost = False
        if known.lacking:  # they may be those who are waited for
            return False
        for pod in newcomers:
            try:
                demand = self.words.demand(pod)
            except Malformed:
                demand = None
            slot = next((s for s in known.slots if s.vacant and s.demand == demand), None)
            if slot is not None:
                slot.pod = pod.metadata.uid
                lost = lost or slot.node in self.out_of_service
                if known not in self.to_bind:
                    self.to_bind.append(known)
            elif known.whole and self._is_read(known):
                self._goes_alone(pod)
            elif known.whole or known.lacking:
                known.whole, known.lacking = False, known.lacking + 1
        return lost

    def _goes_alone(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        key = self.key_of.pop(uid)
        self.pods_of[key].pop(uid)
        self._join(uid, uid)
        self.known[uid] = Workload(uid)
        self.settle(uid)

    def time_partial(self, known: Workload) -> None:
        states = [slot.bound or slot.done for slot in known.slots]
        if known.is_bound:
            if not known.whole:
                self.completed.append((known, self.core.clock() - known.partial if known.partial >= 0 else 0.0))
            known.partial, known.whole = -1.0, True
        elif any(states) and known.partial < 0:
            known.partial = self.core.clock()
            self.halves.partial[known] = None

    def placed(self, known: Workload, allocation: Allocation, held: Allocation | None = None) -> None:
        """The core has started a workload: its pods get their places. `held` is what it had before."""
        core = self.core
        core.happen(JobStarted(core.now, known.job, allocation))
        kept = known.slots if held is not None else []
        rest = allocation
        if held is not None:
            left = allocation.tolist()
            for piece in held.tolist():
                left.remove(piece)
            rest = table_of(left)
        filled = {slot.pod for slot in kept}
        known.slots = [
            *kept,
            *slots_of(rest, [m for m in known.members if m.pod.metadata.uid not in filled], self._names),
        ]
        members, known.members, known.phase, known.reason = known.members, [], Phase.PLACED, ""
        wanted = Counter(slot.node for slot in known.slots if not slot.bound)
        short = self.seats.short(wanted)
        if short and held is None:
            core.happen(JobRefused(core.now, known.job, f"node {short} has no seats for so many pods"))
            known.members, known.phase, known.slots = members, Phase.WAITING, []
            self.seats.spare(short, core.clock())
            self.crowded[short] = None
            return
        self.seats.promised.update(wanted)
        self.crowded.update(dict.fromkeys(wanted))
        self._unbound[known] = None
        self.anew[known] = None
        self.time_partial(known)
        self.to_bind.append(known)

    def count_promised(self) -> None:
        """Count the places anew that are given, and of which the watch has not said that they are taken."""
        self.seats.promised.clear()
        unheard = self.mirror.bound_here
        for known in list(self._unbound):
            nodes = [s.node for s in known.slots if not s.done and (not s.bound or s.pod in unheard)]
            if known.phase is not Phase.PLACED or not nodes:
                del self._unbound[known]
            self.seats.promised.update(nodes)

    def vacant_on(self, node: str) -> dict[str, None]:
        """The keys of placed workloads that have a place on this node where no pod is bound."""
        return {
            known.key: None
            for known in self.by_job.values()
            if any(slot.node == node and not slot.bound for slot in known.slots)
        }

    def try_rejected(self) -> None:
        """Those that could never run may be able to, as things are now."""
        for known in [known for known in self.by_job.values() if known.phase is Phase.REJECTED]:
            self.leaves(known, JobCancelled)
            self.settle(known.key)

    def is_flying(self, known: Workload) -> bool:
        """Whether a binding of it has not been answered: until then nobody may have the places that it was given."""
        return any(slot.pod in self.in_flight for slot in known.slots)

    def refused(self, known: Workload, why: str, blameless: bool = False) -> None:
        """A pod of a placed workload could not be bound, for good: all of it waits again, or goes; where it is not to
        blame it may be placed elsewhere at once.

        Not before every binding of it has been answered, since one that was sent may still be carried out.
        """
        if known.phase is not Phase.PLACED:
            return
        if self.is_flying(known):
            known.refused, known.blameless = why, blameless
            return
        known.refused = ""
        if any(slot.bound for slot in known.slots):
            nodes = [slot.node for slot in known.slots]
            self.halves.mend(known, blameless)
            self.recount(nodes)  # what it had may be what is lost: it is not to get that again
            self.halves.mend_found()
            return
        pods = self.mirror.pods
        self.core.happen(JobRefused(self.core.now, known.job, why, blameless))
        known.members = [Member(pods[slot.pod], slot.demand) for slot in known.slots if slot.pod in pods]
        give_up(known.slots)
        known.phase, known.slots = Phase.WAITING, []

    def stays(self, known: Workload, spare: bool) -> None:
        """A workload whose eviction was refused is what it was; with `spare` nobody tries to stop it again so soon."""
        if known.job:  # a gang in part, which is counted until it is gone
            self.halves.stays(known)
            return
        known.phase = Phase.INCOMPLETE
        if spare:
            known.spared = self.core.clock() + SPARED
            self._spared[known] = None

    def look_at_spared(self) -> None:
        """Those who have been spared for long enough may be stopped again."""
        for known in [known for known in self._spared if known.spared <= self.core.clock()]:
            del self._spared[known]
            self.anew[known] = None

    # --- words ---------------------------------------------------------------

    def _grows(self, known: Workload, sentence: str) -> None:
        if self._growing.get(known, ("",))[0] != sentence:  # one by one its pods come, and each would change it
            self._growing[known] = sentence, self.core.clock() + STILL

    def look_at_growing(self) -> None:
        """Say what gangs lack of which no pod has come for a while."""
        for known, (sentence, due) in list(self._growing.items()):
            if due <= self.core.clock():
                del self._growing[known]
                if known.phase is Phase.INCOMPLETE and self.known.get(known.key) is known:
                    self.say(known, sentence)

    def say(self, known: Workload, sentence: str, for_capacity: bool = False) -> None:
        """Why a workload waits, once for each reason; whether more nodes may help it."""
        self._growing.pop(known, None)
        if known.reason != sentence and not known.foreign:
            known.reason = sentence
            self.told.append((known, sentence, for_capacity))
