"""Affected workloads: the keys of workloads that a change of nodes, claims, namespaces, queues or pods may affect."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kant.kube.reconcile.membership import Membership
from kant.kube.reconcile.transitions import Transitions
from kant.kube.reconcile.workload import Phase
from kant.kube.translate.annotations import names_reservation
from kant.kube.translate.provisioning import consumed_by


class Affected:
    """Most methods return the keys of workloads to settle (`Workloads.settle`). The jobs of waiting workloads are ended
    before, and created again when settled: what they request of nodes may have changed.

    `unanswered` has the gangs to settle once the result of their last binding has arrived.
    """

    def __init__(self, transitions: Transitions, members: Membership) -> None:
        self.transitions = transitions
        self.translation = transitions.translation
        self.mirror = transitions.mirror
        self.members = members
        self.unanswered: dict[str, None] = {}

    def of_changed_nodes(self, nodes: Collection[str]) -> dict[str, None]:
        """Return the workloads on these nodes, which have joined or changed, and all workloads rejected before."""
        on_node = self.mirror.on_node
        found = self.renew(uid for node in nodes for uid in on_node.get(node, ()))
        return found | self.rejected() if nodes else {}

    def rejected(self) -> dict[str, None]:
        """End the rejected workloads, and return them: nodes have changed, so they may be able to run now."""
        found = self.transitions.unplaced(Phase.REJECTED)
        for workload in found:
            self.transitions.end(workload)
        return {workload.key: None for workload in found}

    def renew(self, pods: Iterable[str]) -> dict[str, None]:
        """Return the workloads of these pods (uids), after ending the jobs of those that wait or were rejected."""
        keys = dict.fromkeys(key for uid in pods if (key := self.members.key_of.get(uid)) is not None)
        for key in keys:
            workload = self.members.by_key.get(key)
            if workload is not None and workload.phase in (Phase.WAITING, Phase.REJECTED):
                self.transitions.end(workload)
        return keys

    def waiting_in(self, namespaces: Collection[str] | None) -> dict[str, None]:
        """Return the workloads with unbound pods in these namespaces (None: in all)."""
        waiting = ((uid, pod.metadata.namespace) for uid, pod in self.mirror.pods.items() if not pod.spec.node_name)
        return self.renew(uid for uid, space in waiting if namespaces is None or space in namespaces)

    def resized(self, pods: Collection[str]) -> bool:
        """Handle pods (uids) whose requests changed: end their jobs, waiting or running, to create them again.

        Returns whether running jobs of Kant were ended; their start time is then unknown until the state is rebuilt.
        """
        ours = False
        for key in self.renew(pods):
            workload = self.members.by_key.get(key)
            if workload is None or workload.phase is not Phase.PLACED:
                continue
            if any(slot.pod and not slot.bound for slot in workload.slots):
                self.translation.stale = True  # the state is rebuilt once no binding is in flight
                continue
            ours = ours or not workload.foreign
            self.transitions.end(workload)
        return ours

    def answered(self) -> dict[str, None]:
        """Return the gangs in `unanswered` whose bindings have all been answered by now, and remove them there."""
        in_flight, workloads = self.transitions.is_in_flight, self.members.by_key
        keys = {key: None for key in self.unanswered if key not in workloads or not in_flight(workloads[key])}
        for key in keys:
            del self.unanswered[key]
        return keys

    def naming_reservations(self) -> dict[str, None]:
        """Return the workloads that name a reservation."""
        named = (uid for uid, pod in self.mirror.pods.items() if names_reservation(pod))
        return dict.fromkeys(key for uid in named if (key := self.members.key_of.get(uid)) is not None)

    def consuming(self, requests: Collection[tuple[str, str]]) -> dict[str, None]:
        """Return the workloads that consume one of these ProvisioningRequests (namespace, name)."""
        pods = self.mirror.pods.items()
        named = (uid for uid, pod in pods if (pod.metadata.namespace, consumed_by(pod)) in requests)
        return self.renew(named) if requests else {}

    def vacant_on(self, node: str) -> dict[str, None]:
        """Return the placed workloads that have a slot on this node without a bound pod."""
        return {
            workload.key: None
            for workload in self.transitions.with_vacancies()
            if any(slot.node == node and not slot.bound for slot in workload.slots)
        }
