"""Tells the core, from reports of node autoscalers, which waiting jobs may still get a new node instead of preempting.

The core's state is compared with the latest report on each pod, so the time at which a report arrived does not matter.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.kube.reconcile.workload import Phase, Workload
from kant.kube.reconcile.workloads import Workloads
from kant.kube.translate.autoscaling import ScaleUp, of_gang, sentence
from kant.model.event import JobAwaitsNode

SOON = 1.0  # seconds between two comparisons without a new report


class AwaitedNodes:
    """Keeps track of reports on waiting jobs. `listen` starts to read the Events of autoscalers."""

    def __init__(self, workloads: Workloads, listen: Callable[[], None]) -> None:
        self.all = workloads
        self.listen = listen
        self._next = 0.0

    def follow(self) -> None:
        """Tell the core for which waiting jobs autoscalers add no node, and for which that is no longer so."""
        core, scale_ups = self.all.core, self.all.mirror.scale_ups
        self.listen()
        if not scale_ups.touched and (not scale_ups.of_pod or core.clock() < self._next):
            return
        self._next = core.clock() + SOON
        touched, scale_ups.touched = scale_ups.touched, {}
        found = self._waiting()
        for workload in found:
            if any(member.pod.metadata.uid in touched for member in workload.members):
                workload.reason = ""  # so that the reason is determined again
        state = core.state
        refused = [one.job for one, said in found.items() if (last := of_gang(said)) and last.comes is False]
        without = {row for job in refused if (row := state.rows.get(job, -1)) in state.pending}
        for row in [row for row in state.without_node if row not in without]:
            core.happen(JobAwaitsNode(core.now, state.ids[row], True))
        for row in without - state.without_node.keys():
            core.happen(JobAwaitsNode(core.now, state.ids[row]))

    def _waiting(self) -> dict[Workload, list[ScaleUp]]:
        """Return the waiting workloads, each with what autoscalers have reported on its pods."""
        scale_ups, mirror, members = self.all.mirror.scale_ups, self.all.mirror, self.all.members
        found = dict[Workload, list[ScaleUp]]()
        for uid, said in list(scale_ups.of_pod.items()):
            pod, workload = mirror.pods.get(uid), members.by_key.get(members.key_of.get(uid, ""))
            if pod is None or pod.spec.node_name:
                del scale_ups.of_pod[uid]
            elif workload is not None and workload.phase is Phase.WAITING:
                found.setdefault(workload, []).append(said)
        return found


def scale_up_remark(workloads: Workloads, workload: Workload) -> str:
    """Return one sentence on whether autoscalers add a node for a waiting workload; "" if they report nothing."""
    of_pod = workloads.mirror.scale_ups.of_pod
    uids = (member.pod.metadata.uid for member in workload.members) if of_pod else ()
    said = of_gang([of_pod[uid] for uid in uids if uid in of_pod])
    return sentence(said) if said is not None else ""
