"""Partially bound gangs: each gang is completed, or evicted after a time limit.

After a crash, a refused binding or the loss of a node, only some pods of a gang may be bound. These are reported to the
core (`JobFound`), which places the missing pods in a plan of their own. If that is not possible, the bound pods stay
for a limited time, and are then evicted.
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

    `to_complete` has the workloads whose missing pods are to be placed now. `tried` has, by workload whose missing pods
    could not be placed, the `ClusterState.capacity_version` at that time.
    """

    def __init__(self, transitions: Transitions) -> None:
        self.transitions = transitions
        self.core = transitions.core
        self.mirror = transitions.mirror
        self.to_complete: list[Workload] = []
        self.tried: dict[Workload, int] = {}

    def awaits_group(self, workload: Workload) -> bool:
        """Whether the workload has pods that wait until the object of its group is read."""
        return workload.lacking > 0 and workload not in self.tried

    def complete(self, workload: Workload, blameless: bool = False) -> None:
        """Handle a gang that was not bound as planned: report its bound pods, and let the core place the others."""
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
            return  # the gang lacks pods, which is allowed for a while
        if workload.whole:
            core.happen(JobEvicted(core.now, workload.job, "one of its pods lost its place"))
        else:
            core.happen(JobRefused(core.now, workload.job, "one of its pods could not be bound", blameless))
        workload.members, workload.whole = members, False
        self.transitions.waits(workload)
        bound = [slot for slot in workload.slots if slot.bound]
        give_up(workload.slots)
        workload.slots = bound
        self.to_complete.append(workload)

    def complete_all(self) -> None:
        """Place the missing pods of the gangs in `to_complete`, or keep these gangs partially bound for a while.

        All gangs are reported before anything is planned, so that no gang gets capacity that another gang holds.
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
            if gang.phase is Phase.WAITING:  # no nodes for the missing pods, or filters exclude the nodes
                self._keep_in_part(gang)

    def _keep_in_part(self, workload: Workload) -> None:
        """Keep the bound pods of a gang whose other pods cannot be placed now, up to the time limit."""
        since = workload.partial if workload.partial >= 0 else self.core.clock()
        bound = self._bound(workload)
        lacking = len(workload.members) - len(bound)
        self.transitions.end(workload)
        self.transitions.adopt(workload, bound)
        if workload.phase is Phase.PLACED:
            self._note_lacking(workload, lacking, since)
            self.transitions.messages.say(workload, "no place was found for its other pods", UNSCHEDULABLE)

    def keep_refused(self, workload: Workload) -> None:
        """Keep a gang whose eviction was refused. After the limit for partially bound gangs it is evicted again."""
        workload.phase = Phase.PLACED
        self._note_lacking(workload, 1, self.core.clock())

    def _note_lacking(self, workload: Workload, lacking: int, since: float) -> None:
        workload.whole, workload.lacking, workload.partial = False, lacking, since
        self.transitions.partial[workload] = None
        self.tried[workload] = self.core.state.capacity_version

    def to_retry(self) -> Iterator[Workload]:
        """Yield partially bound gangs whose missing pods should be tried again, since capacity has been freed."""
        for workload, version in list(self.tried.items()):
            if not workload.lacking:
                del self.tried[workload]
            elif version != self.core.state.capacity_version:
                self.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
                yield workload
                if workload in self.tried:
                    self.tried[workload] = self.core.state.capacity_version

    def release(self, workload: Workload, why: str) -> None:
        """Give up a partially bound gang: its bound pods are evicted, and hold their resources until they are gone."""
        self.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
        bound = self._bound(workload)
        self.transitions.end(workload)
        self.transitions.adopt(workload, bound)
        workload.phase = Phase.LEAVING
        self.transitions.to_evict.append((workload, f"its gang was partially bound, and {why}"))

    def overdue(self, recovery: float, staleness: float) -> list[tuple[Workload, float]]:
        """Return gangs that have been partially bound for too long, each with its limit in seconds.

        The limit is `recovery` for gangs that were never complete, `staleness` for the others (0: no limit).
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
        """Return the workloads that are partially bound: some of their pods are bound and others are not."""
        partial = self.transitions.partial
        for workload in [one for one in partial if one.partial < 0 or one.phase is not Phase.PLACED]:
            del partial[workload]
        return list(partial)

    def _bound(self, workload: Workload) -> list[Pod]:
        pods = self.mirror.pods
        return [pods[slot.pod] for slot in workload.slots if slot.bound and slot.pod in pods]
