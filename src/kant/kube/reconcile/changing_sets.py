"""Changing node sets: when a node set gains or loses nodes, the jobs that name it may have to be created again."""

from __future__ import annotations

from kant.kube.reconcile.elastic_gangs import ElasticGangs
from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.slots import coming
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.translate.node_sets import EVERYWHERE, NEW_TAINT, names_in, preferred_in


class ChangingSets:
    """`nowhere` has the workloads for which no node is suitable now, each with the node sets that its job names."""

    def __init__(self, transitions: Transitions, elastic: ElasticGangs, members: Membership) -> None:
        self.transitions = transitions
        self.elastic = elastic
        self.members = members
        self.nowhere: dict[Workload, frozenset[str]] = {}
        self._left: set[str] = set()  # nodes that have left node sets

    def take(self) -> dict[str, None]:
        """Return the keys of workloads whose jobs must be created again, after changes of node sets."""
        changes = self.transitions.translation.eligible.take_set_changes(self._in_use)
        names = {change.name for change in changes}
        self._left = {node for change in changes for node in change.removed}
        if not names:
            return {}
        if EVERYWHERE in names:  # from now on pods without a node selector name a node set, too
            by_job, state = self.transitions.by_job, self.transitions.core.state
            for workload in [by_job[job] for job in map(state.ids.__getitem__, state.elastic) if job in by_job]:
                if workload.phase is Phase.PLACED:
                    self.elastic.name_sets(workload)
        empty = {change.name for change in changes if change.is_empty}
        again = {
            one.key: None
            for one, sets in self.nowhere.items()
            if not sets.isdisjoint(names) and (sets.isdisjoint(empty) or not self._is_current(one))
        }
        useless = empty | names & {EVERYWHERE}
        all_waiting = NEW_TAINT in names  # waiting jobs may prefer other nodes from now on
        for workload in self.transitions.unplaced(Phase.WAITING, Phase.REJECTED):
            waits = workload.phase is Phase.WAITING
            concerned = not _sets_of(workload).isdisjoint(useless if waits else names)
            if (concerned or (waits and all_waiting)) and not workload.slots:
                self.transitions.end(workload)
                again[workload.key] = None
        return again

    def _is_current(self, workload: Workload) -> bool:
        """Whether the reported reason why no node is suitable for a workload still holds. Always False for a gang."""
        pods = self.members.pods(workload.key)
        return len(pods) == 1 and self.transitions.translation.eligible.why_no_node(pods) == workload.reason

    def take_left(self) -> set[str]:
        """Return the nodes that have left a node set, if a placed, unbound pod may therefore not run there any more."""
        left, self._left = self._left, set()
        admits, pods = self.transitions.translation.eligible.admits, self.transitions.mirror.pods
        unbound = (coming(workload.slots, pods) for workload in (self.transitions.unbound if left else ()))
        return {slot.node for own in unbound for slot, pod in own if slot.node in left and not admits(pod, slot.node)}

    def _in_use(self) -> set[str]:
        """Return the node sets that a job names, or that a workload waits for."""
        here = self.members.by_key
        self.nowhere = {one: sets for one, sets in self.nowhere.items() if here.get(one.key) is one}
        used = set().union(*self.nowhere.values(), *map(_sets_of, self.transitions.by_job.values()))
        live = self.transitions.core.state.live.values()
        return used.union(*map(names_in, live), *(preferred_in(job) for job in live if job.preferences))


def _sets_of(workload: Workload) -> set[str]:
    return {kind.role.node_set for kind in workload.kinds if kind.role is not None}
