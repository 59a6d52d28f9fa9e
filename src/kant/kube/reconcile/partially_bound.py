"""Partially bound gangs: completed, or evicted, but never left so.

What is left of a gang after a crash, a refused binding or a lost node is reported to the core (`JobFound`), which makes
a separate plan for such gangs. If it finds no place for the rest, the bound pods stay for a limited time, and are then
evicted.
"""

from __future__ import annotations

from collections.abc import Iterator

from kant.kube.objects.views import Pod
from kant.kube.reconcile.messages import UNSCHEDULABLE
from kant.kube.reconcile.slots import FreeCapacity, Member
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload, give_up
from kant.model.decision import Start
from kant.model.event import JobEvicted, JobFound, JobRefused


class PartiallyBound:
    """The workloads that are partially bound.

    `to_complete` are to get their missing pods placed now. `tried` had no place for some pods at this version of the
    free capacity (`ClusterState.capacity_version`).
    """

    def __init__(self, transitions: Transitions) -> None:
        self.transitions = transitions
        self.core = transitions.core
        self.mirror = transitions.mirror
        self.to_complete: list[Workload] = []
        self.tried: dict[Workload, int] = {}

    def awaits_group(self, workload: Workload) -> bool:
        """Whether it has pods that wait until its group is read."""
        return workload.lacking > 0 and workload not in self.tried

    def complete(self, workload: Workload, blameless: bool = False) -> None:
        """Handle a placed gang that is not bound as planned: report what is bound, and let the core place the rest."""
        core = self.core
        self.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
        members = []
        for slot in workload.slots:
            pod = self.mirror.pods.get(slot.pod) or slot.expects
            if pod is not None:
                members.append(Member(pod, slot.demand, slot.group))
                slot.node = pod.spec.node_name or slot.node
        if not any(slot.bound for slot in workload.slots):
            self.transitions.end(workload)
            return
        if len(members) < len(workload.slots):
            return  # it lacks pods, and may lack them for a while
        if workload.whole:
            core.happen(JobEvicted(core.now, workload.job, "a pod of it lost its place"))
        else:
            core.happen(JobRefused(core.now, workload.job, "a pod of it could not be bound", blameless))
        workload.members, workload.whole = members, False
        self.transitions.waits(workload)
        bound = [slot for slot in workload.slots if slot.bound]
        give_up(workload.slots)
        workload.slots = bound
        self.to_complete.append(workload)

    def complete_all(self) -> None:
        """Place the rest of partially bound gangs in a plan of their own, or keep them in part.

        All of them are reported before anything is planned, so that none gets what another one holds.
        """
        core, found = self.core, self.to_complete
        self.to_complete = []
        if not found:
            return
        existing, free = self.transitions.existing_pods, FreeCapacity(core.state.table)
        held = {gang: pieces for gang in found if (pieces := existing.held(gang, free)) is not None}
        for gang, pieces in held.items():
            core.happen(JobFound(core.now, gang.job, pieces))
        starts = {d.job: d for d in core.complete_partial_gangs().decisions if isinstance(d, Start)} if held else {}
        for gang in found:
            if gang.job in starts:
                self.transitions.start(gang, starts[gang.job].allocation, held[gang])
        for gang in found:
            if gang.phase is Phase.WAITING:  # there is no place for the rest, or it may not have it
                self._keep_in_part(gang)

    def _keep_in_part(self, workload: Workload) -> None:
        """Keep the bound pods of a gang whose rest has no place now, up to the time limit."""
        since = workload.partial if workload.partial >= 0 else self.core.clock()
        bound = self._bound(workload)
        lacking = len(workload.members) - len(bound)
        self.transitions.end(workload)
        self.transitions.adopt(workload, bound)
        if workload.phase is Phase.PLACED:
            self._note_lacking(workload, lacking, since)
            self.transitions.messages.say(workload, "the rest of its gang finds no place", UNSCHEDULABLE)

    def keep_refused(self, workload: Workload) -> None:
        """Keep a gang whose eviction was refused; it is tried again after the limit for partial gangs."""
        workload.phase = Phase.PLACED
        self._note_lacking(workload, 1, self.core.clock())

    def _note_lacking(self, workload: Workload, lacking: int, since: float) -> None:
        workload.whole, workload.lacking, workload.partial = False, lacking, since
        self.transitions.partial[workload] = None
        self.tried[workload] = self.core.state.capacity_version

    def to_retry(self) -> Iterator[Workload]:
        """Yield partial gangs whose rest may have a place, since capacity has been freed."""
        for workload, version in list(self.tried.items()):
            if not workload.lacking:
                del self.tried[workload]
            elif version != self.core.state.capacity_version:
                self.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
                yield workload
                if workload in self.tried:
                    self.tried[workload] = self.core.state.capacity_version

    def release(self, workload: Workload, why: str) -> None:
        """Give up a partial gang: its bound pods are evicted, and counted until they are gone."""
        self.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
        bound = self._bound(workload)
        self.transitions.end(workload)
        self.transitions.adopt(workload, bound)
        workload.phase = Phase.LEAVING
        self.transitions.to_evict.append((workload, f"its gang was bound in part, and {why}"))

    def overdue(self, recovery: float, staleness: float) -> list[tuple[Workload, float]]:
        """Return gangs that have been partial for too long, each with its limit in seconds.

        The limit is `recovery` where they have never been whole, `staleness` where they were (0: no limit).
        """
        now, found = self.core.clock(), []
        for workload in self.in_part():
            limit = staleness if workload.whole else recovery
            if self.transitions.is_in_flight(workload) or self.awaits_group(workload):
                continue
            if 0 < limit < now - workload.partial:
                found.append((workload, limit))
        return found

    def in_part(self) -> list[Workload]:
        """Return the workloads of which some pods are bound and others are not."""
        partial = self.transitions.partial
        for workload in [one for one in partial if one.partial < 0 or one.phase is not Phase.PLACED]:
            del partial[workload]
        return list(partial)

    def _bound(self, workload: Workload) -> list[Pod]:
        pods = self.mirror.pods
        return [pods[slot.pod] for slot in workload.slots if slot.bound and slot.pod in pods]
