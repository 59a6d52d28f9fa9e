"""A leader without an API server, in memory: it builds its state from a mirror, and what it places is bound at once."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from kant.cluster.columns import FREE
from kant.kube.act.plan_executor import KubeExecutor
from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Pod
from kant.kube.reconcile.fleet import Fleet, cluster_of
from kant.kube.reconcile.slots import Slot
from kant.kube.reconcile.translation import Translation
from kant.kube.reconcile.workload import Phase
from kant.kube.reconcile.workloads import Workloads
from kant.live.core import Core
from kant.scheduler.profile import Profile, builtin_profile

Notes = Callable[[Slot, Pod], dict[str, str]]
"""What is written onto a pod when it is bound."""


def no_notes(slot: Slot, pod: Pod) -> dict[str, str]:
    return {}


class Leader:
    """Each of them starts from nothing, as after a restart."""

    def __init__(self, mirror: Mirror, profile: Profile | None = None, notes: Notes = no_notes) -> None:
        self.mirror, self.notes = mirror, notes
        self.translation = translation = Translation(mirror)
        translation.begin(0)
        spec = cluster_of(mirror, translation, 0)
        assert spec is not None
        self.core = core = Core(spec, profile or builtin_profile("kant"), None, 0)
        self.fleet = Fleet(core, mirror, translation)
        self.workloads = Workloads(core, mirror, translation)
        self.executor = KubeExecutor(core, mirror, self.workloads, {})
        translation.queues.follow(core, 0)
        self.settle()
        self.fleet.follow(mirror.nodes)
        self.workloads.rule_changes.count_beside([(uid, node) for node, own in mirror.on_node.items() for uid in own])

    def settle(self) -> None:
        """Take in all pods there are."""
        notes = [self.workloads.members.note(uid, pod) for uid, pod in self.mirror.pods.items()]
        self.workloads.settle_all({key: None for key in notes if key is not None})

    def turn(self, heard: bool = True) -> list[Slot]:
        """Decide once, and bind what is placed. Returns the places of those pods.

        Not `heard`: the bindings have been answered, and whatever they change is heard of later.
        """
        self.executor.execute(self.core.cycle())
        self.core.state.check()
        bound = []
        for workload in self.workloads.transitions.to_bind:
            for slot in workload.slots if workload.phase is Phase.PLACED else ():
                pod = self.mirror.pods[slot.pod]
                notes = dict(pod.metadata.annotations or {}) | self.notes(slot, pod)
                spec, meta = replace(pod.spec, node_name=slot.node), replace(pod.metadata, annotations=notes)
                self.mirror.pod("modified", replace(pod, spec=spec, metadata=meta))
                slot.bound = True
                bound.append(slot)
        self.workloads.transitions.to_bind.clear()
        if heard:
            self.settle()
        return bound

    def free(self) -> dict[str, int]:
        """Thousandths of GPUs that are free, by node."""
        table = self.core.state.table
        return {node.name: int(table[at, FREE]) for at, node in enumerate(self.core.state.spec.nodes)}
