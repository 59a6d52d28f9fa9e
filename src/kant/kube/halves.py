"""Gangs that are bound in part: made whole, or given back, but never left so.

Whatever a crash, a refused binding or a lost node has left of a gang is said to the core (`JobFound`), which plans for
such gangs alone. Where it finds no place for the rest, what is bound stays for as long as it may, and is then evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.kube.mirror import is_over
from kant.kube.objects import Pod
from kant.kube.slots import Member, Room
from kant.kube.workload import Phase, Workload, give_up
from kant.model.decision import Start
from kant.model.event import JobCancelled, JobEvicted, JobFound, JobRefused

if TYPE_CHECKING:
    from kant.kube.workloads import Workloads


class Halves:
    """Of all workloads those that are, or may be, bound in part.

    `found` are to be mended now. `partial` have some pods bound and others not. `tried` lack a place for some, and had
    none when so much had come free (`ClusterState.openings`).
    """

    def __init__(self, workloads: Workloads) -> None:
        self.all = workloads
        self.found: list[Workload] = []
        self.partial: dict[Workload, None] = {}
        self.tried: dict[Workload, int] = {}

    def is_unread(self, known: Workload) -> bool:
        """Whether it has pods that wait until its group is read."""
        return known.lacking > 0 and known not in self.tried

    def stays(self, known: Workload) -> None:
        """It could not be given back: after as long as it may be in part that is tried again."""
        known.phase, known.whole, known.lacking, known.partial = Phase.PLACED, False, 1, self.all.core.clock()
        self.partial[known] = None
        self.tried[known] = self.all.core.state.openings

    def mend(self, known: Workload, blameless: bool = False) -> None:
        """A placed gang is not where it was to be: say what is bound, and let the core find the rest a place."""
        core = self.all.core
        self.all.mirror.hear(slot.pod for slot in known.slots if slot.bound)
        members = []
        for slot in known.slots:
            pod = self.all.mirror.pods.get(slot.pod)
            if pod is not None:
                members.append(Member(pod, slot.demand))
                slot.node = pod.spec.node_name or slot.node
        if len(members) < len(known.slots) or not any(slot.bound for slot in known.slots):
            if not any(slot.bound for slot in known.slots):
                self.all.leaves(known, JobCancelled)
            return  # it lacks pods: `partial` runs
        if known.whole:
            core.happen(JobEvicted(core.now, known.job, "a pod of it lost its place"))
        else:
            core.happen(JobRefused(core.now, known.job, "a pod of it could not be bound", blameless))
        known.members, known.phase, known.whole = members, Phase.WAITING, False
        kept = [slot for slot in known.slots if slot.bound]
        give_up(known.slots)
        known.slots = kept
        self.found.append(known)

    def mend_found(self) -> None:
        """Gangs that are bound in part get what they lack, in a plan of their own; or what they have is taken back.

        All of them are said to be there before anything is planned: none is to get what another one holds.
        """
        core, found = self.all.core, self.found
        self.found = []
        if not found:
            return
        room = Room(core.state.table)
        held = {known: pieces for known in found if (pieces := self.all.residents.held(known, room)) is not None}
        for known, pieces in held.items():
            core.happen(JobFound(core.now, known.job, pieces))
        starts = {d.job: d for d in core.mend().decisions if isinstance(d, Start)} if held else {}
        for known in found:
            if known.job in starts:
                self.all.placed(known, starts[known.job].allocation, held[known])
        for known in found:
            if known.phase is Phase.WAITING and known.job not in starts:
                self._stays_in_part(known)

    def _stays_in_part(self, known: Workload) -> None:
        """There is no place for the rest of a gang now: what is bound of it stays, for as long as it may be in part."""
        since = known.partial if known.partial >= 0 else self.all.core.clock()
        bound = self._bound(known)
        lacking = len(known.members) - len(bound)
        self.all.leaves(known, JobCancelled)
        self.all.resides(known, bound)
        if known.phase is Phase.PLACED:
            known.whole, known.partial, known.lacking = False, since, lacking
            self.partial[known] = None
            self.tried[known] = self.all.core.state.openings
            self.all.say(known, "the rest of its gang finds no place", True)

    def try_again(self) -> None:
        """Look again for the rest of gangs in part, where something has come free."""
        for known, openings in list(self.tried.items()):
            if not known.lacking:
                del self.tried[known]
            elif openings != self.all.core.state.openings:
                since, reason = known.partial, known.reason
                self.all.mirror.hear(slot.pod for slot in known.slots if slot.bound)
                self.all.leaves(known, JobCancelled)
                self.all.appears(known, [pod for pod in self.all.pods(known.key) if not is_over(pod)])
                known.partial, known.reason = since, reason
                self.mend_found()
                if known in self.tried:
                    self.tried[known] = self.all.core.state.openings

    def release(self, known: Workload, why: str) -> None:
        """A gang in part is given back: what is bound of it is evicted, and counted until it is gone."""
        self.all.mirror.hear(slot.pod for slot in known.slots if slot.bound)
        bound = self._bound(known)
        self.all.leaves(known, JobCancelled)
        self.all.resides(known, bound)
        known.phase = Phase.LEAVING
        self.all.to_evict.append((known, f"its gang was bound in part, and {why}"))

    def overdue(self, recovery: float, staleness: float) -> list[tuple[Workload, float]]:
        """Gangs that have been in part for too long, and how long they may be.

        `recovery` seconds where they have never been whole, `staleness` where they were (0: for ever).
        """
        now, found = self.all.core.clock(), []
        for known in self.in_part():
            limit = staleness if known.whole else recovery
            if self.all.is_flying(known) or self.is_unread(known):
                continue
            if 0 < limit < now - known.partial:
                found.append((known, limit))
        return found

    def in_part(self) -> list[Workload]:
        """The workloads of which some pods are bound and others are not."""
        over = [known for known in self.partial if known.partial < 0 or known.phase is not Phase.PLACED]
        for known in over:
            del self.partial[known]
        return list(self.partial)

    def _bound(self, known: Workload) -> list[Pod]:
        pods = self.all.mirror.pods
        return [pods[slot.pod] for slot in known.slots if slot.bound and slot.pod in pods]
