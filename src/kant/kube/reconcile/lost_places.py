"""Placements that cannot be carried out: refused bindings and evictions, and nodes that other pods have taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kant.kube.objects.views import Pod
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.partially_bound import PartiallyBound
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload

PROTECTED = 30.0  # seconds for which pods are not evicted again after a refused eviction

Act = Callable[[Workload, list[Pod]], None]
"""A function of a workload and its pods that have not ended."""


class LostPlaces:
    """`begin` submits a workload that has no job; `follow` and `settle` process changes of workloads.

    `recall` withdraws unsent bindings to nodes; `recount` reads the capacity of nodes again.
    """

    def __init__(
        self, transitions: Transitions, members: Membership, partially_bound: PartiallyBound, begin: Act, follow: Act,
        settle: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.transitions = transitions
        self.existing_pods = transitions.existing_pods
        self.members = members
        self.partially_bound = partially_bound
        self.begin, self.follow, self.settle = begin, follow, settle
        self.recall: Callable[[set[str]], None] = lambda nodes: None
        self.recount: Callable[[Iterable[str]], None] = lambda nodes: None
        self._protected: dict[Workload, None] = {}

    def withdraw(self, nodes: Iterable[str]) -> None:
        """Give up the placements of unbound pods on these nodes, which other pods have taken or which are gone."""
        gone = set(nodes)
        self.recall(gone)
        for workload in list(self.transitions.unbound) if gone else ():
            if workload.phase is not Phase.PLACED or self.transitions.is_in_flight(workload):
                continue
            if any(slot.node in gone and slot.pod and not slot.bound for slot in workload.slots):
                self.refused(workload, "another pod has taken its node", blameless=True)
        self.has_more(gone)

    def has_more(self, nodes: Iterable[str]) -> None:
        """Let pods that hold less than they request take the capacity that may have been freed on these nodes."""
        existing, by_key = self.existing_pods, self.members.by_key
        existing.freed(nodes)
        for key in existing.gaining():
            workload = by_key.get(key)
            if workload is not None and workload.phase is Phase.PLACED and all(slot.bound for slot in workload.slots):
                self.transitions.end(workload)
            if workload is not None and workload.phase is Phase.INCOMPLETE:  # perhaps because nothing was free for it
                self.settle(key)

    def retry_partially_bound(self) -> None:
        """Try again to place the unbound pods of partially bound gangs, if capacity has been freed."""
        for workload in self.partially_bound.to_retry():
            since, reason = workload.partial, workload.reason
            self.transitions.end(workload)
            self.begin(workload, self.members.live(workload.key))
            workload.partial, workload.reason = since, reason
            self.partially_bound.complete_all()

    def refused(self, workload: Workload, why: str, blameless: bool = False) -> None:
        """Handle the final refusal of a binding: all the workload's pods wait again, or it is completed or evicted.

        Handled once all bindings of the workload are answered, since one that is in flight may still be carried out.
        `blameless`: the workload may be placed elsewhere at once.
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
            self.recount(nodes)  # so that lost devices are not assigned again
            self.partially_bound.complete_all()
        else:
            self.transitions.requeue(workload, why, blameless)

    def _refused_in_part(self, workload: Workload) -> None:
        """Handle refused bindings of an elastic gang: the pods wait to join it, or the gang becomes partially bound."""
        self.transitions.mirror.apply_bindings(slot.pod for slot in workload.slots if slot.bound)
        nodes = [slot.node for slot in workload.slots]
        for slot in workload.slots:
            if not slot.bound:
                slot.pod = slot.was = ""
        live = self.members.live(workload.key)
        if workload.is_bound and workload.whole:
            self.follow(workload, live)
        else:
            self.transitions.end(workload)
            self.begin(workload, live)
        self.recount(nodes)  # so that lost devices are not assigned again
        self.partially_bound.complete_all()

    def stays(self, workload: Workload, protect: bool) -> None:
        """Handle a refused eviction: the workload stays. `protect`: for PROTECTED seconds it is not evicted again."""
        if workload.job and workload.phase is not Phase.PLACED:  # a partially bound gang
            self.partially_bound.keep_refused(workload)
            return
        if shrinks := bool(workload.job):  # its job was shrunk, but it still has all pods
            self.transitions.end(workload)
        workload.phase = Phase.INCOMPLETE
        if protect:
            workload.protected_until = self.transitions.core.clock() + PROTECTED
            self._protected[workload] = None
        if shrinks:
            self.begin(workload, self.members.live(workload.key))

    def look_at_protected(self) -> None:
        """Allow the preemption of workloads whose eviction was refused PROTECTED seconds ago."""
        for workload in [one for one in self._protected if one.protected_until <= self.transitions.core.clock()]:
            del self._protected[workload]
            self.transitions.unprotected[workload] = None
